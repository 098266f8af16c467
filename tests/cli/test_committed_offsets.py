"""`gazette-aio journals read --committed --offsets --offsets-out`."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from gazette_aio.message import Publisher, SequencerCheckpoint, json_adapter
from gazette_aio.testing import create_journals, journal_spec
from tests.cli.conftest import Finished, spawn

LINES = "application/x-ndjson"
NAMES = ("test/a", "test/b")


@pytest.fixture
async def topic(gazette_client: Any) -> None:
    labels = {"content-type": LINES}
    await create_journals(gazette_client, *(journal_spec(name, labels=labels) for name in NAMES))


@pytest.fixture
def read(broker_cli: Any, tmp_path: Path) -> Any:
    """Run a read of committed messages, which resumes at the end of the last one."""
    path = tmp_path / "offsets.json"
    path.write_text("{}")

    async def read(*args: str) -> Finished:
        source = args or ("-l", "prefix=test/")
        same = ("--offsets", str(path), "--offsets-out", str(path))
        result: Finished = await broker_cli("journals", "read", *source, "--committed", *same)
        return result

    read.path = path  # type: ignore[attr-defined]
    return read


def numbers(done: Finished) -> list[int]:
    assert (done.code, done.err) == (0, "")
    return sorted(json.loads(line)["n"] for line in done.text.splitlines())


def to(journal: str) -> Any:
    def mapping(_message: Any) -> tuple[str, str]:
        return journal, LINES

    return mapping


async def test_each_message_is_delivered_once(gazette_client: Any, topic: None, read: Any) -> None:
    first, second = (Publisher(gazette_client.appends, json_adapter()) for _ in range(2))
    async with second.transaction():
        await second.publish_uncommitted(to("test/b"), {"n": 1})
    async with first.transaction():
        # Pending, and interleaved with messages of a transaction that commits.
        await (await first.publish_uncommitted(to("test/a"), {"n": 2}))
        await (await first.publish_uncommitted(to("test/b"), {"n": 3}))
        async with second.transaction():
            await second.publish_uncommitted(to("test/a"), {"n": 4})
        assert numbers(await read()) == [1, 4]
        await (await first.publish_uncommitted(to("test/a"), {"n": 5}))
        assert numbers(await read()) == []
    assert numbers(await read()) == [2, 3, 5]
    assert numbers(await read()) == []

    previous = read.path.with_name("offsets.json.previous")
    assert previous.read_text() == read.path.read_text()
    SequencerCheckpoint.from_json(read.path.read_text())


async def test_a_repeated_message_is_left_out_after_resuming(
    gazette_client: Any, topic: None, read: Any
) -> None:
    publisher = Publisher(gazette_client.appends, json_adapter())
    async with publisher.transaction():
        await publisher.publish_uncommitted(to("test/a"), {"n": 1})
    assert numbers(await read("test/a")) == [1]
    # As of an append that was retried though it had succeeded.
    async with gazette_client.read("test/a") as reader:
        content = await anext(reader)
    await gazette_client.append("test/a", content)
    assert numbers(await read("test/a")) == []


async def test_plain_offsets_begin_a_read(gazette_client: Any, topic: None, read: Any) -> None:
    publisher = Publisher(gazette_client.appends, json_adapter())
    for journal in NAMES:
        await publisher.publish_committed(to(journal), {"n": 1})
    head = (await gazette_client.append("test/a", b"")).commit.end
    await publisher.publish_committed(to("test/a"), {"n": 2})
    read.path.write_text(json.dumps({"test/a": head, "test/b": -1}))

    assert numbers(await read()) == [2]


async def test_messages_before_a_time_are_left_out(
    gazette_client: Any, topic: None, read: Any
) -> None:
    publisher = Publisher(gazette_client.appends, json_adapter())
    await publisher.publish_committed(to("test/a"), {"n": 1})

    assert numbers(await read("test/a", "--from", "2100-01-01T00:00:00Z")) == []


async def test_a_time_does_not_go_with_plain_offsets(
    gazette_client: Any, topic: None, read: Any
) -> None:
    publisher = Publisher(gazette_client.appends, json_adapter())
    await publisher.publish_committed(to("test/a"), {"n": 1})
    head = (await gazette_client.append("test/a", b"")).commit.end
    read.path.write_text(offsets := json.dumps({"test/a": head}))

    done = await read("test/a", "--from", "2000-01-01T00:00:00Z")

    assert (done.code, done.out) == (2, b"")
    assert "--from doesn't go with" in done.err
    assert read.path.read_text() == offsets


async def test_a_signal_saves_offsets(
    gazette_broker: Any, gazette_client: Any, topic: None, read: Any
) -> None:
    publisher = Publisher(gazette_client.appends, json_adapter())
    await publisher.publish_committed(to("test/a"), {"n": 1})
    process = await spawn(
        "journals", "read", "test/a", "--committed", "--block", f"--offsets-out={read.path}",
        env={"BROKER_ADDRESS": gazette_broker.endpoint},
    )  # fmt: skip
    assert json.loads(await process.stdout.readline())["n"] == 1
    process.send_signal(signal.SIGINT)
    out, err = await process.communicate()
    assert (process.returncode, out, err) == (0, b"", b"")
    await publisher.publish_committed(to("test/a"), {"n": 2})

    assert numbers(await read("test/a")) == [2]


async def test_messages_before_a_failure_are_not_repeated(
    gazette_client: Any, topic: None, read: Any
) -> None:
    publisher = Publisher(gazette_client.appends, json_adapter())
    await publisher.publish_committed(to("test/a"), {"n": 1})
    await gazette_client.append("test/a", b"no JSON\n")

    failed = await read("test/a")
    again = await read("test/a")

    assert (failed.code, again.code) == (1, 1)
    assert "test/a at offset" in failed.err
    assert again.err == failed.err
    assert json.loads(failed.out)["n"] == 1
    assert again.out == b""


@pytest.mark.parametrize(
    ("args", "text", "reason"),
    [
        (
            ["-l", "name=some/journal"],
            '{"version":1,"offsets":{},"producers":[]}',
            "these are offsets of --committed",
        ),
        (
            ["a/journal", "--committed"],
            '{"version":9,"offsets":{},"producers":[]}',
            "has version 9",
        ),
        (["a/journal", "--committed"], '{"a/journal":"1"}', "isn't an offset"),
        (["a/journal", "--committed"], "{", "Expecting property name"),
    ],
)
def test_bad_files(inline: Any, tmp_path: Path, args: list[str], text: str, reason: str) -> None:
    path = tmp_path / "offsets.json"
    path.write_text(text)
    same = ["--offsets", str(path), "--offsets-out", str(path)]
    done = inline("journals", "read", *args, *same)

    assert done.code == 2
    assert done.err.startswith(f"gazette-aio: {path}: ")
    assert reason in done.err
    assert path.read_text() == text
