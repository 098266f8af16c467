"""`gazette-aio journals read` and `append`."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import termios

import pytest

import gazette_aio.protocol as pb
from gazette_aio.client import connect
from gazette_aio.testing import BrokerProcess, create_journals, journal_spec
from tests.cli.conftest import spawn
from tests.waiting import eventually


async def test_append_from_stdin_and_read_back(broker_cli, journal):
    appended = await broker_cli("journals", "append", journal, stdin=b"one\ntwo\n")
    read = await broker_cli("journals", "read", journal)

    assert appended.text == f"{journal}: appended 8 bytes at 0\n"
    assert (read.code, read.out, read.err) == (0, b"one\ntwo\n", "")


async def test_append_a_file_of_many_chunks_is_one_append(
    broker_cli, gazette_client, journal, tmp_path
):
    content = bytes(range(256)) * 8192
    (tmp_path / "in").write_bytes(content)

    appended = await broker_cli("journals", "append", journal, str(tmp_path / "in"), "--json")
    read = await broker_cli("journals", "read", journal, "-o", str(tmp_path / "out"))

    assert appended.json == {"journal": journal, "begin": 0, "end": len(content)}
    assert read.out == b""
    assert (tmp_path / "out").read_bytes() == content


async def test_append_of_nothing_returns_the_write_head(broker_cli, gazette_client, journal):
    await gazette_client.append(journal, b"before")

    done = await broker_cli("journals", "append", journal)

    assert done.text == f"{journal}: appended 0 bytes at 6\n"


async def test_append_at_an_offset(broker_cli, gazette_client, journal):
    await gazette_client.append(journal, b"before")

    wrong = await broker_cli("journals", "append", journal, "--offset=5", stdin=b"x")
    right = await broker_cli("journals", "append", journal, "--offset=6", stdin=b"x")

    assert (wrong.code, wrong.out) == (1, b"")
    assert "write head" in wrong.err
    assert "WRONG_APPEND_OFFSET" in wrong.err
    assert right.code == 0, right.err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--offset=3"], b"3456789"),
        (["--offset=3", "--end-offset=5"], b"34"),
        (["--offset=10"], b""),
        (["--offset=-1"], b""),
    ],
)
async def test_read_ranges(broker_cli, gazette_client, journal, options, expected):
    await gazette_client.append(journal, b"0123456789")

    done = await broker_cli("journals", "read", journal, *options)

    assert (done.code, done.out, done.err) == (0, expected, "")


async def test_read_beyond_the_write_head_fails(broker_cli, gazette_client, journal):
    await gazette_client.append(journal, b"0123456789")

    done = await broker_cli("journals", "read", journal, "--offset=11")

    assert done.code == 1
    assert done.err == f"gazette-aio: offset 11 is beyond the write head 10: {journal}\n"


async def test_unknown_journal(broker_cli):
    for command in ("read", "append"):
        done = await broker_cli("journals", command, "no/such/journal", stdin=b"x")

        assert (done.code, done.out) == (1, b"")
        assert done.err == (
            "gazette-aio: no such journal, or the token doesn't cover it: no/such/journal (JOURNAL_NOT_FOUND)\n"
        ), done.err


def test_invalid_journal_name_is_a_usage_error(inline):
    for command in ("read", "append"):
        done = inline("journals", command, "/no/name", stdin=b"x")
        short = inline("journals", command, "a/b", stdin=b"x")

        assert done.code == 2
        assert "cannot begin with '/' (/no/name)" in done.err
        assert short.err.startswith("gazette-aio: journal 'a/b': invalid length (3; ")


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("FRAGMENT_STORE_UNHEALTHY", "fragment store can't be used"),
        ("NO_JOURNAL_PRIMARY_BROKER", "no broker is the journal's primary now"),
    ],
)
async def test_refusals_say_what_is_wrong(broker_cli, gazette_broker, journal, status, words):
    gazette_broker.control.keep("append", status=pb.Status.Value(status))

    seconds, err = 0.1, ""
    while words not in err:
        seconds *= 2  # A busy machine may not hear of a refusal within it.
        timeout = f"--timeout={seconds}"
        done = await broker_cli("journals", "append", journal, timeout, stdin=b"x")
        assert done.code == 1
        err = done.err

    assert f"({status})" in err


def test_a_selector_in_place_of_a_journal_is_told_as_such(inline):
    for command in ("read", "append"):
        done = inline("journals", command, "name:prefix=a/", stdin=b"x")

        assert done.code == 2
        assert "use --selector for a label selector" in done.err


def test_missing_input_file(inline, tmp_path):
    done = inline("journals", "append", "a/journal", str(tmp_path / "missing"))

    assert done.code == 1
    assert done.err == f"gazette-aio: {tmp_path / 'missing'}: No such file or directory\n"


async def test_blocking_read_follows_and_ctrl_c_ends_it(gazette_broker, gazette_client, journal):
    await gazette_client.append(journal, b"first\n")
    process = await spawn(
        "journals", "read", journal, "--block", env={"BROKER_ADDRESS": gazette_broker.endpoint}
    )
    assert await process.stdout.readline() == b"first\n"
    await gazette_client.append(journal, b"second\n")
    assert await process.stdout.readline() == b"second\n"

    process.send_signal(signal.SIGINT)
    out, err = await process.communicate()

    assert (process.returncode, out, err) == (130, b"", b"")


async def test_a_broken_pipe_is_quiet(gazette_broker, gazette_client, journal):
    await gazette_client.append(journal, b"0123456789abcdef" * (1 << 17))
    env = {"BROKER_ADDRESS": gazette_broker.endpoint}
    process = await spawn("journals", "read", journal, env=env)
    await process.stdout.readexactly(16)

    # Closes our end of the pipe, which holds far less than the content. asyncio has no public way.
    process._transport.get_pipe_transport(1).close()
    err = await process.stderr.read()

    assert await process.wait() == 141
    assert err == b""


async def test_ctrl_c_while_waiting_for_stdin(gazette_broker, journal):
    reading, writing = os.pipe()
    os.write(writing, b"some")
    env = {"BROKER_ADDRESS": gazette_broker.endpoint}
    process = await spawn("journals", "append", journal, env=env, stdin=reading)
    # It blocks for more once it has taken what's there.
    await eventually(lambda: bytes_in(reading) == 0)

    process.send_signal(signal.SIGINT)
    _, err = await process.communicate()
    os.close(reading)
    os.close(writing)

    assert (process.returncode, err) == (130, b"")


def bytes_in(pipe: int) -> int:
    (count,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
    return int(count)


@pytest.mark.crash
async def test_a_broker_which_dies_under_a_read(tmp_path):
    async with BrokerProcess(tmp_path / "data", options=["--min-append-rate=0"]) as broker:
        async with connect(broker.endpoint) as client:
            await create_journals(client, journal_spec("a/journal"))
            await client.append("a/journal", b"line\n")
        endpoint, seconds, line = broker.endpoint, 0.25, b""
        while not line:
            seconds *= 2  # A busy machine may not connect within it.
            process = await spawn(
                "journals", "read", "a/journal", "--block", f"--timeout={seconds:g}",
                env={"BROKER_ADDRESS": endpoint},
            )  # fmt: skip
            if not (line := await process.stdout.readline()):
                await process.communicate()
        assert line == b"line\n"

        await broker.kill()
        out, err = await process.communicate()

    assert (process.returncode, out) == (1, b"")
    assert err.decode().startswith(
        f"gazette-aio: no broker answers at {endpoint} (tried for {seconds:g} s)"
    ), err
