"""`gazette-aio journals read` and `append` with selectors."""

from __future__ import annotations

import base64
import json
import signal
from pathlib import Path
from typing import Any

import pytest

import gazette_aio.protocol as pb
from gazette_aio.cli.journals.committed_read import json_line
from gazette_aio.cli.journals.read_offsets import format_offsets
from gazette_aio.cli.journals.read_outputs import file_name_of
from gazette_aio.cli.journals.records import RecordSplitter
from gazette_aio.message import (
    OUTSIDE_TXN,
    Envelope,
    FixedFraming,
    Flags,
    NDJSONFraming,
    ProducerID,
    Publisher,
    build_uuid,
    json_adapter,
    modulo_mapping,
    new_producer_id,
    rendezvous_mapping,
)
from gazette_aio.testing import create_journals, journal_spec
from gazette_aio.testing.stub_broker import StubBroker
from tests.cli.conftest import spawn
from tests.client.support import MemoryJournals, refused

NAMES = ["test/a", "test/b", "test/c"]
ALL = ["-l", "prefix=test/"]


@pytest.fixture
async def topic(gazette_client: Any) -> list[str]:
    labels = {"content-type": "application/x-ndjson"}
    await create_journals(
        gazette_client, *(journal_spec(name, labels=labels, stores=["file:///"]) for name in NAMES)
    )
    return NAMES


async def contents(client: Any, names: list[str]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name in names:
        found[name] = b""
        async with client.read(name) as reader:
            while True:
                try:
                    found[name] += await anext(reader)
                except pb.OffsetNotYetAvailableError:
                    break
    return found


@pytest.fixture
async def filled(gazette_client: Any, topic: list[str]) -> dict[str, bytes]:
    for name in topic:
        for number in range(3):
            await gazette_client.append(name, f"{name} {number}\n".encode() * 1000)
    return await contents(gazette_client, topic)


async def test_read_all_journals_with_whole_appends(
    broker_cli: Any, filled: dict[str, bytes]
) -> None:
    done = await broker_cli("journals", "read", *ALL)

    assert (done.code, done.err) == (0, "")
    lines = done.text.splitlines(keepends=True)
    for name, content in filled.items():
        assert "".join(line for line in lines if line.startswith(name)).encode() == content


async def test_offsets_resume(
    broker_cli: Any, gazette_client: Any, filled: dict[str, bytes], tmp_path: Path
) -> None:
    path = tmp_path / "offsets.json"
    path.write_text('{"test/b":3,"gone/x":7}\n')
    args = ["journals", "read", *ALL, f"--offsets={path}", f"--offsets-out={path}"]
    first = await broker_cli(*args)
    written = path.read_text()
    await gazette_client.append("test/c", b"more\n")
    second = await broker_cli(*args)

    assert len(first.out) == sum(map(len, filled.values())) - 3
    sizes = {name: len(content) for name, content in filled.items()}
    assert written == format_offsets({**sizes, "gone/x": 7})
    assert second.out == b"more\n"
    assert (tmp_path / "offsets.json.previous").read_text() == written
    assert json.loads(path.read_text())["test/c"] == sizes["test/c"] + 5


@pytest.mark.slow
@pytest.mark.parametrize("args", [(), ("--block",)])
async def test_offsets_beyond_the_head_are_an_error(
    broker_cli: Any, filled: dict[str, bytes], tmp_path: Path, args: tuple[str, ...]
) -> None:
    path = tmp_path / "offsets.json"
    path.write_text('{"test/b": 50000}')
    done = await broker_cli("journals", "read", *ALL, f"--offsets={path}", *args)
    assert done.code == 1
    head = len(filled["test/b"])
    assert f"offset 50000 is beyond the write head {head} of journal test/b" in done.err


@pytest.mark.parametrize("text", ["[]", "{", '{"a": "1"}', '{"a": -2}', '{"a": true}'])
def test_invalid_offsets_are_refused(inline: Any, tmp_path: Path, text: str) -> None:
    path = tmp_path / "offsets.json"
    path.write_text(text)
    done = inline("journals", "read", *ALL, f"--offsets={path}", "--timeout=0.1")

    assert (done.code, done.out) == (2, b"")
    assert str(path) in done.err


async def test_a_directory_has_a_file_by_journal(
    broker_cli: Any, gazette_client: Any, filled: dict[str, bytes], tmp_path: Path
) -> None:
    directory, path = tmp_path / "out", tmp_path / "offsets.json"
    path.write_text("{}")
    args = ["journals", "read", *ALL, "-o", f"{directory}/", f"--offsets={path}"]
    args += [f"--offsets-out={path}"]
    await broker_cli(*args)
    await gazette_client.append("test/c", b"more\n")
    done = await broker_cli(*args)

    assert done.code == 0, done.err
    assert [path.name for path in sorted(directory.iterdir())] == [
        "test%2Fa",
        "test%2Fb",
        "test%2Fc",
    ]
    assert (directory / "test%2Fa").read_bytes() == filled["test/a"]
    assert (directory / "test%2Fc").read_bytes() == filled["test/c"] + b"more\n"


async def test_links_do_not_lead_out_of_the_directory(
    broker_cli: Any, filled: dict[str, bytes], tmp_path: Path
) -> None:
    directory, outside = tmp_path / "out", tmp_path / "outside"
    directory.mkdir()
    outside.write_text("kept")
    (directory / "test%2Fa").symlink_to(outside)
    done = await broker_cli("journals", "read", "-l", "name=test/a", "-o", str(directory))

    assert done.code == 1
    assert outside.read_text() == "kept"


@pytest.mark.parametrize(
    "journal", ["../../etc/passwd", "..", ".", "a/../../b", "/abs", "x" * 5000, "a\x00b", "a\nb"]
)
def test_names_of_files_stay_in_the_directory(journal: str) -> None:
    name = file_name_of(journal)

    assert "/" not in name
    assert name not in {"", ".", ".."}
    assert not name.startswith(".")
    assert "\x00" not in name
    assert len(name) < 256
    assert file_name_of(f"{journal}x") != name


async def test_a_blocking_read_follows_journals_until_a_signal(
    gazette_broker: Any, gazette_client: Any, topic: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "offsets.json"
    await gazette_client.append("test/a", b"old\n")
    process = await spawn(
        "journals", "read", *ALL, "--block", f"--offsets-out={path}",
        env={"BROKER_ADDRESS": gazette_broker.endpoint},
    )  # fmt: skip
    assert await process.stdout.readline() == b"old\n"
    await gazette_client.append("test/b", b"new\n")
    assert await process.stdout.readline() == b"new\n"
    await create_journals(gazette_client, journal_spec("test/d"))
    await gazette_client.append("test/d", b"added\n")
    assert await process.stdout.readline() == b"added\n"

    process.send_signal(signal.SIGTERM)
    out, err = await process.communicate()

    assert (process.returncode, out, err) == (0, b"", b"")
    offsets = json.loads(path.read_text())
    assert offsets.pop("test/c", 0) == 0
    assert offsets == {"test/a": 4, "test/b": 4, "test/d": 6}


async def test_tail_begins_at_write_heads(
    broker_cli: Any, filled: dict[str, bytes], tmp_path: Path
) -> None:
    path = tmp_path / "offsets.json"
    done = await broker_cli("journals", "read", *ALL, "--tail", f"--offsets-out={path}")

    assert (done.code, done.out) == (0, b"")
    assert json.loads(path.read_text()) == {name: len(text) for name, text in filled.items()}


async def test_committed_messages(broker_cli: Any, gazette_client: Any, topic: list[str]) -> None:
    publisher = Publisher(gazette_client.appends, json_adapter())

    def to_a(_message: object) -> tuple[str, str]:
        return "test/a", "application/x-ndjson"

    async with publisher.transaction():
        await publisher.publish_uncommitted(to_a, {"n": 1})
    pending = Publisher(gazette_client.appends, json_adapter())
    await (await pending.publish_uncommitted(to_a, {"n": 2}))
    compact = await broker_cli("journals", "read", *ALL, "--committed")
    pretty = await broker_cli("journals", "read", "test/a", "--committed", "--pretty")
    placed = await broker_cli("journals", "read", *ALL, "--committed", "--json")

    assert [json.loads(line)["n"] for line in compact.text.splitlines()] == [1], compact.err
    assert pretty.text.startswith('{\n  "')
    message = compact.text.removesuffix("\n")
    assert placed.json == {
        "journal": "test/a",
        "begin": 0,
        "end": len(message) + 1,
        "message": json.loads(message),
    }


ODD = [
    rb'"\ud800"',  # Half of a surrogate pair.
    b'"\xff"',  # No UTF-8.
    b"NaN",
    b"9" * 5000,
    b"1.10",
]
"""Values that Python's or msgspec's JSON can't read, or would write in another way."""


async def test_committed_messages_of_odd_json_are_printed(
    broker_cli: Any, gazette_client: Any, topic: list[str]
) -> None:
    producer, content = new_producer_id(), b""
    for number, value in enumerate(ODD, 1):
        uuid = str(build_uuid(producer, number << 4, OUTSIDE_TXN)).encode()
        content += b'{"_meta":{"uuid":"%s"},"value":%s}\n' % (uuid, value)
    await gazette_client.append("test/a", content)
    pretty = await broker_cli("journals", "read", "test/a", "--committed", "--pretty")
    placed = await broker_cli("journals", "read", "test/a", "--committed", "--json")

    assert (pretty.code, placed.code) == (0, 0), (pretty.err, placed.err)
    shown = [value.replace(b"\xff", rb"\xff") for value in ODD]
    assert [value for value in shown if value not in pretty.out] == []
    starts = [line.split(b'"message":')[1][:1] for line in placed.out.splitlines()]
    assert starts == [b'"', b'"', b'"', b"{", b"{"]  # The first three are texts.


async def test_lines_of_json(broker_cli: Any, filled: dict[str, bytes], tmp_path: Path) -> None:
    found = dict.fromkeys(filled, b"")
    done = await broker_cli("journals", "read", *ALL, "--json")
    for line in map(json.loads, done.text.splitlines()):
        content = base64.b64decode(line["content"])
        assert (line["begin"], line["end"]) == (
            len(found[line["journal"]]),
            len(found[line["journal"]]) + len(content),
        )
        found[line["journal"]] += content
    assert found == filled

    one = await broker_cli("journals", "read", "test/a", "--offset=3", "--end-offset=5", "--json")
    content = base64.b64encode(filled["test/a"][3:5]).decode()
    assert one.json == {"journal": "test/a", "begin": 3, "end": 5, "content": content}


def test_messages_of_several_lines_are_printed_in_one() -> None:
    envelope = Envelope("a/journal", 3, 9, 0, Flags(0), ProducerID(b"\1" * 6), b'{"n":\n 1e3}')
    assert json_line(envelope) == b'{"journal":"a/journal","begin":3,"end":9,"message":{"n":1e3}}'


async def test_no_record_is_appended_after_one_that_failed() -> None:
    async with StubBroker() as broker:
        journals = MemoryJournals(broker)
        journals.failures = [refused(pb.Status.JOURNAL_NOT_FOUND)]
        listed = pb.ListResponse.Journal(
            spec=journal_spec("test/a"), mod_revision=1, route=broker.header().route
        )
        broker.list_handler = lambda _: pb.ListResponse(header=broker.header(), journals=[listed])
        process = await spawn(
            "--log.level=warn",
            "journals",
            "append",
            *ALL,
            "--framing=lines",
            env={"BROKER_ADDRESS": broker.endpoint},
        )
        process.stdin.write(b"first\n")
        while b"appends of journal test/a " not in (line := await process.stderr.readline()):
            assert line, "no append failed"
        out, err = await process.communicate(b"second\n")

        assert (process.returncode, out) == (1, b"")
        assert b"JOURNAL_NOT_FOUND" in err
        assert not journals.contents


async def test_a_failed_append_does_not_hide_a_bad_record(cli: Any) -> None:
    async with StubBroker() as broker:
        journals = MemoryJournals(broker)
        journals.failures = [refused(pb.Status.JOURNAL_NOT_FOUND)]
        listed = pb.ListResponse.Journal(
            spec=journal_spec("test/a"), mod_revision=1, route=broker.header().route
        )
        broker.list_handler = lambda _: pb.ListResponse(header=broker.header(), journals=[listed])
        args = ("journals", "append", *ALL, "--framing=lines", "--mapping=direct")
        stdin = b"test/a\nfirst\nno/such\nsecond\n"
        done = await cli(*args, stdin=stdin, env={"BROKER_ADDRESS": broker.endpoint})

    assert (done.code, done.out) == (1, b"")
    error = "gazette-aio: journal 'no/such' isn't one of the selector"
    assert done.err == f"{error}; appended before: at most 1 record\n"


@pytest.mark.parametrize("mapping", ["modulo", "rendezvous", "direct", "random"])
async def test_append_lines(
    broker_cli: Any, gazette_client: Any, topic: list[str], mapping: str
) -> None:
    keys = topic if mapping == "direct" else ["k1", "k2", "k3"]
    lines = [(keys[n % 3], f'{{"n": {n}}}') for n in range(30)]
    keyed = mapping != "random"
    text = "".join(f"{key}\n{line}\n" if keyed else f"{line}\n" for key, line in lines)
    done = await broker_cli(
        "journals", "append", *ALL, "--framing=lines", "-m", mapping, stdin=text.encode()
    )

    assert done.code == 0, done.err
    assert done.text.startswith("appended 30 records of ")
    found = await contents(gazette_client, topic)
    listing = await gazette_client.list("prefix=test/")
    choose = {
        "modulo": modulo_mapping(str.encode, lambda: listing),
        "rendezvous": rendezvous_mapping(str.encode, lambda: listing),
        "direct": lambda key: (key, ""),
    }.get(mapping)
    if choose is None:
        assert sorted(b"".join(found.values()).splitlines()) == sorted(
            line.encode() for _, line in lines
        )
        return
    for name in topic:
        expected = "".join(f"{line}\n" for key, line in lines if choose(key)[0] == name)
        assert found[name] == expected.encode()


@pytest.mark.parametrize(
    ("args", "text", "reason"),
    [
        (["-m", "direct"], b"no/such\n{}\n", "journal 'no/such' isn't one of the selector"),
        (["-m", "modulo"], b"key\n", "a key without its record"),
        ([], b"half", "unexpected EOF"),
        (["-m", "modulo", "--base64"], b"???\n{}\n", "key isn't base64"),
    ],
)
async def test_bad_records(
    broker_cli: Any,
    gazette_client: Any,
    topic: list[str],
    args: list[str],
    text: bytes,
    reason: str,
) -> None:
    done = await broker_cli("journals", "append", *ALL, "-f", "lines", *args, stdin=text)

    assert (done.code, done.out) == (1, b"")
    assert reason in done.err


async def test_append_to_a_random_journal(
    broker_cli: Any, gazette_client: Any, topic: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "in"
    path.write_bytes(b"content")
    done = await broker_cli("journals", "append", *ALL, "-i", str(path), "--json")
    none = await broker_cli("journals", "append", "-l", "name=no/such", stdin=b"x")

    assert done.json["end"] == 7
    assert (await contents(gazette_client, topic))[done.json["journal"]] == b"content"
    assert none.code == 1


@pytest.mark.parametrize(
    "args",
    [
        ["append", "-l", "a=b", "-m", "modulo"],
        ["append", "-l", "a=b", "-f", "fixed", "--base64"],
        ["append", "a/journal", "-f", "lines"],
        ["append"],
        ["read"],
        ["read", "a/journal", "--tail"],
        ["read", "a/journal", "--committed", "--pretty", "--json"],
        ["read", "-l", "a=b", "--offset=3"],
        ["read", "-l", "a=b", "--committed", "--offsets-out=x"],
    ],
)
def test_options_that_contradict_each_other(inline: Any, args: list[str]) -> None:
    assert inline("journals", *args).code == 2


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("framing", [NDJSONFraming(), FixedFraming()])
def test_records_do_not_depend_on_chunks(framing: Any, size: int) -> None:
    pairs = [(f"key {n}".encode(), b"x" * n) for n in range(50)]
    content = b"".join(framing.encode(key) + framing.encode(record) for key, record in pairs)
    splitter = RecordSplitter(framing, keyed=True)
    records = [
        record
        for begin in range(0, len(content), size)
        for record in splitter.feed(content[begin : begin + size])
    ]
    splitter.end()

    assert records == [(key, framing.encode(record)) for key, record in pairs]


def test_keys_of_base64() -> None:
    splitter = RecordSplitter(NDJSONFraming(), keyed=True, base64_keys=True)
    key = b"\n\x00key"

    assert list(splitter.feed(base64.b64encode(key) + b"\r\n{}\n")) == [(key, b"{}\n")]
