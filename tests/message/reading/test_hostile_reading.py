"""Reading of hostile content, and what is left when reading is broken off."""

from __future__ import annotations

import asyncio

import pytest

import gazette_aio.protocol as pb
from gazette_aio.message import (
    ACK_TXN,
    CONTINUE_TXN,
    OUTSIDE_TXN,
    ReadCommittedIter,
    ReadUncommittedIter,
    Sequencer,
    build_uuid,
    json_adapter,
)
from gazette_aio.message.envelopes.content import JournalContent
from gazette_aio.message.envelopes.origin import JournalFormat, Origin
from gazette_aio.message.framing import NDJSONFraming
from gazette_aio.protocol.errors import ConfigurationError, ReadError, ReplayError
from tests.message.fakes import FakeClient

NDJSON = "application/x-ndjson"
PRODUCER = b"\x01abcde"


def line(clock, flags=OUTSIDE_TXN, value=0):
    stamped = json_adapter().encode({"v": value}, build_uuid(PRODUCER, clock, flags))
    return stamped + b"\n"


class Turns:
    """Counts the turns which others have."""

    def __init__(self):
        self.count = 0

    async def run(self):
        while True:
            self.count += 1
            await asyncio.sleep(0)

    async def __aenter__(self):
        self._task = asyncio.create_task(self.run())
        return self

    async def __aexit__(self, *_exc):
        self._task.cancel()


@pytest.mark.parametrize("kind", [ReadCommittedIter, ReadUncommittedIter])
async def test_skipped_frames_take_linear_time_and_let_others_have_turns(kind):
    client = FakeClient({"a/j": NDJSON}, chunk=1 << 20)
    client.append("a/j", b"\n" * 20_000 + line(160))
    async with (
        kind("a/j", json_adapter(), client=client, on_error="skip") as messages,
        Turns() as turns,
    ):
        # What remains isn't copied for each frame, nor is all of it skipped in one turn.
        async with asyncio.timeout(50):
            assert [env.begin async for env in messages] == [20_000]
        assert messages.skipped == 20_000
        assert turns.count > 15


def test_offsets_of_many_bad_frames():
    origin = Origin(pb.JournalSpec(name="a/j"))
    content = JournalContent(JournalFormat("a/j", origin, NDJSONFraming(), json_adapter()), 0)
    content.feed(b"\n" * 3000, 0)
    for offset in range(3000):
        assert content.offset == offset
        refusal = content.read(1 << 20)
        assert (refusal.begin, refusal.end) == (offset, offset + 1)
    assert content.read(1 << 20) is None
    assert content.offset == 3000


@pytest.mark.parametrize("batches", [False, True])
async def test_large_commits_let_others_have_turns(batches):
    client = FakeClient({"a/j": NDJSON}, chunk=1 << 20)
    content = [line(160 * n, CONTINUE_TXN, n) for n in range(1, 4001)]
    client.append("a/j", b"".join(content) + line(160 * 4001, ACK_TXN))
    async with (
        ReadCommittedIter("a/j", json_adapter(), client=client, skip_acks=True) as messages,
        Turns() as turns,
    ):
        await anext(messages)
        before, values = turns.count, []
        if batches:
            async for batch in messages.batches():
                assert len(batch) < 2048
                values += [env.message["v"] for env in batch]
        else:
            values = [env.message["v"] async for env in messages]
        assert values == list(range(2, 4001))
        assert turns.count - before > 5


async def test_closing_wakes_who_waits_for_several_journals():
    client = FakeClient({"a/j": NDJSON, "b/j": NDJSON})
    messages = ReadCommittedIter(["a/j", "b/j"], json_adapter(), client=client, block=True)
    waiting = asyncio.create_task(anext(messages))
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(client.readers) == 2
    await messages.aclose()
    async with asyncio.timeout(30):
        with pytest.raises(StopAsyncIteration):
            await waiting


async def test_closing_wakes_who_waits_amid_a_message():
    """Whoever closes doesn't make the present content be that of a journal which ends there."""
    client = FakeClient({"a/j": NDJSON})
    client.append("a/j", line(160)[:-5])
    messages = ReadUncommittedIter("a/j", json_adapter(), client=client, block=True)
    waiting = asyncio.create_task(anext(messages))
    for _ in range(20):
        await asyncio.sleep(0)
    await messages.aclose()
    async with asyncio.timeout(30):
        with pytest.raises(StopAsyncIteration):
            await waiting


async def test_closing_amid_a_replay_delivers_nothing_more():
    client = FakeClient({"a/j": NDJSON}, chunk=len(line(160)))
    rows = [line(160 * n, CONTINUE_TXN) for n in range(1, 6)]
    client.append("a/j", b"".join(rows) + line(160 * 6, ACK_TXN))
    want = [160 * n for n in range(1, 7)]
    closed_early = 0
    for steps in range(60):
        messages = ReadCommittedIter(
            "a/j", json_adapter(), client=client, sequencer=Sequencer(buffer=2)
        )
        got = []

        async def collect(messages=messages, got=got):
            async for envelope in messages:
                got.append(envelope.clock)

        reading = asyncio.create_task(collect())
        for _ in range(steps):
            await asyncio.sleep(0)
        await messages.aclose()
        await reading
        assert got == want[: len(got)]
        checkpoint = messages.checkpoint()
        closed_early += 0 < len(got) < 4
        async with ReadCommittedIter(
            "a/j", json_adapter(), client=client, checkpoint=checkpoint
        ) as messages:
            assert got + [envelope.clock async for envelope in messages] == want
    assert closed_early


async def test_a_sequencer_which_is_handed_in_is_at_what_is_delivered():
    """Its state between messages is as if it had been given no messages beyond their commit.

    A checkpoint forgets that a span began.
    """
    content = [line(160, CONTINUE_TXN), line(320, ACK_TXN), line(480), line(640)]
    content += [line(800, CONTINUE_TXN), line(960, ACK_TXN), line(1120, CONTINUE_TXN)]
    client = FakeClient({"a/j": NDJSON})
    client.append("a/j", b"".join(content))
    sequencer, got = Sequencer(), []
    async with ReadCommittedIter(
        "a/j", json_adapter(), client=client, sequencer=sequencer
    ) as messages:
        async for envelope in messages:
            through = sequencer.offsets["a/j"] // len(line(160))
            has_pending = sequencer.has_pending
            (state,) = sequencer.checkpoint().producers
            got.append((envelope.clock, through, *state.bounds[:2], has_pending))
    assert got == [
        (160, 1, 159, 320, True),
        (320, 1, 160, 320, False),
        (480, 2, 320, 480, False),
        (640, 3, 480, 640, False),
        (800, 5, 640, 960, True),
        (960, 5, 800, 960, False),
    ]
    assert sequencer.offsets["a/j"] == len(b"".join(content))


async def test_a_sequencer_within_a_commit_is_refused():
    client = FakeClient({"a/j": NDJSON})
    client.append("a/j", line(160, CONTINUE_TXN) + line(320, CONTINUE_TXN) + line(480, ACK_TXN))
    sequencer = Sequencer()
    async with ReadCommittedIter(
        "a/j", json_adapter(), client=client, sequencer=sequencer
    ) as messages:
        await anext(messages)
        with pytest.raises(ConfigurationError, match="within a commit"):
            ReadCommittedIter("a/j", json_adapter(), client=client, sequencer=sequencer)
        checkpoint = messages.checkpoint()
    async with ReadCommittedIter(
        "a/j", json_adapter(), client=client, checkpoint=checkpoint
    ) as messages:
        assert [env.clock async for env in messages] == [320, 480]


async def test_cancelled_while_a_failed_replay_closes():
    """The replay is required again, and its reader isn't forgotten."""
    client = FakeClient({"a/j": NDJSON})
    client.append("a/j", line(160, CONTINUE_TXN) + line(320, CONTINUE_TXN) + line(480, ACK_TXN))
    messages = ReadCommittedIter(
        "a/j", json_adapter(), client=client, sequencer=Sequencer(buffer=1)
    )
    closing, hold = asyncio.Event(), asyncio.Event()
    read = client.read

    def broken(request):
        reader = read(request)
        if len(client.readers) == 2:
            client.events["a/j"] = [(0, ReadError("broken", journal="a/j"))]
            whole = reader.aclose

            async def aclose():
                closing.set()
                await hold.wait()
                await whole()

            reader.aclose = aclose
        return reader

    client.read = broken
    with pytest.raises(ReplayError, match="broken"):
        await anext(messages)
    waiting = asyncio.create_task(anext(messages))
    await closing.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    hold.set()
    assert [env.clock async for env in messages] == [160, 320, 480]
    await messages.aclose()
    assert all(reader.closed for reader in client.readers)


async def test_pending_content_is_bounded(monkeypatch):
    monkeypatch.setattr("gazette_aio.message.reading.iterators.DEFAULT_PENDING_BYTES", 9000)
    client = FakeClient({"a/j": NDJSON}, chunk=500)
    content = [line(160 * n, CONTINUE_TXN, n) for n in range(1, 101)]
    client.append("a/j", b"".join(content))
    held = []
    async with ReadCommittedIter(
        "a/j", json_adapter(), client=client, block=True, skip_acks=True
    ) as messages:
        first = asyncio.create_task(anext(messages))
        while client.readers == [] or client.readers[0].offset < len(b"".join(content)):
            await asyncio.sleep(0)
            held.append(messages.pending_bytes)
        client.append("a/j", line(160 * 101, ACK_TXN))
        got = [await first] + [await anext(messages) for _ in range(99)]
        assert [env.message["v"] for env in got] == list(range(1, 101))
    assert 8000 < max(held) <= 9000
    assert len(client.reads) == 2
