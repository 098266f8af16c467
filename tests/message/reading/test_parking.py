"""A replay that fails holds up its own journal, and no other."""

from __future__ import annotations

import asyncio
import random

import pytest

import gazette_aio.protocol as pb
from gazette_aio.client import RetryPolicy
from gazette_aio.message import (
    ACK_TXN,
    CONTINUE_TXN,
    OUTSIDE_TXN,
    ReadCommittedIter,
    Sequencer,
    SequencerCheckpoint,
    build_uuid,
    json_adapter,
)
from gazette_aio.message.reading.arrow import RecordEngine
from gazette_aio.protocol.errors import (
    ReplayError,
    SequencerStateError,
    TransportError,
)
from tests.message.fakes import FakeClient, FakeReader
from tests.waiting import eventually

NDJSON = "application/x-ndjson"
ADAPTER = json_adapter()
TOPIC = pb.parse_label_selector("topic=t")
LATER = 3600.0

pytestmark = pytest.mark.usefixtures("nothing_leaks", "quick_leaving")


@pytest.fixture(autouse=True)
def _replay_in_parts(monkeypatch):
    """Deliver each chunk of a replay before the next one is read."""
    monkeypatch.setattr(RecordEngine, "replay_bytes", 1)


def line(clock, flags=OUTSIDE_TXN, producer=b"\x01abcde"):
    return ADAPTER.encode({"v": clock}, build_uuid(producer, clock, flags)) + b"\n"


def outside(*clocks):
    return b"".join(map(line, clocks))


def transaction(begin, size, producer=b"\x01abcde"):
    rows = [line(begin + n, CONTINUE_TXN, producer) for n in range(size)]
    return b"".join(rows) + line(begin + size, ACK_TXN, producer)


class Reader(FakeReader):
    """A reader that fails within replays, as its client says."""

    async def __anext__(self):
        request = self.request
        if request.end_offset and self.client.fails(request.journal, request.offset):
            raise TransportError("UNAVAILABLE", "the store is gone")
        return await super().__anext__()


class Client(FakeClient):
    """A client whose replays may fail.

    Args:
        delays: Seconds of back-off of attempts; the last one stands for all further ones.
    """

    def __init__(self, contents, *, delays=(0.0,), chunk=100):
        super().__init__(dict.fromkeys(contents, NDJSON), chunk=chunk)
        for name, content in contents.items():
            self.append(name, content)
        self.broken_from = {}
        self.attempts = []
        self.delays = delays
        self.retry_policy = RetryPolicy(backoff=self.delay)

    def delay(self, attempt):
        self.attempts.append(attempt)
        return self.delays[min(attempt, len(self.delays) - 1)]

    def fails(self, journal, offset):
        return offset >= self.broken_from.get(journal, float("inf"))

    def read(self, request):
        super().read(request)
        self.readers[-1] = reader = Reader(self, self.reads[-1])
        return reader


def envelopes(client, source=TOPIC, *, checkpoint=None, block=True):
    sequencer = Sequencer.from_checkpoint(checkpoint or SequencerCheckpoint(), buffer=1)
    return ReadCommittedIter(source, ADAPTER, client=client, sequencer=sequencer, block=block)


def arrow(client, source=TOPIC, *, checkpoint=None, block=True):
    return ReadCommittedIter(source, ADAPTER, client=client, checkpoint=checkpoint, block=block)


class Form:
    """A form of iteration, whose outputs are pairs of a journal and a clock."""

    def __init__(self, name, client, **options):
        self.iterator = (envelopes if name == "envelopes" else arrow)(client, **options)
        self._batches = None
        self._rows = []
        if name == "arrow":
            self._batches = self.iterator.arrow(max_pending_bytes=0, batch_bytes=1, acks=True)

    async def next(self):
        """Return the next messages at once: one, or a batch."""
        if self._batches is None:
            envelope = await anext(self.iterator)
            return [(envelope.journal, envelope.clock)]
        batch = await anext(self._batches)
        journals = batch.column("_journal").to_pylist()
        return list(zip(journals, batch.column("_clock").to_pylist(), strict=True))

    async def take(self, count):
        """Return so many messages, and the number of errors meanwhile."""
        got, errors = [], []
        async with asyncio.timeout(30):
            while len(got) < count:
                try:
                    got += await self.next()
                except ReplayError as error:
                    errors.append(error)
        assert len(got) == count
        return got, errors


FORMS = ["envelopes", "arrow"]
SOURCES = [TOPIC, ("j/a", "j/b", "j/c")]


@pytest.mark.parametrize("source", SOURCES, ids=["selector", "names"])
@pytest.mark.parametrize("name", FORMS)
async def test_others_are_read_while_a_replay_fails(name, source):
    rows = transaction(10, 9)
    client = Client({"j/a": outside(*range(1, 40)), "j/b": rows, "j/c": transaction(50, 20)})
    client.delays = (LATER,)
    middle = rows.index(line(14, CONTINUE_TXN))
    client.broken_from["j/b"] = middle
    form = Form(name, client, source=source)
    async with form.iterator as iterator:
        got, errors = await form.take(39 + 21 + 4)
        # Both precede and follow: what's delivered of the replay is delivered once.
        clocks = {each: [c for journal, c in got if journal == each] for each in client.journals}
        assert clocks == {
            "j/a": [*range(1, 40)],
            "j/b": [10, 11, 12, 13],
            "j/c": [*range(50, 71)],
        }
        [error] = errors
        assert error.journal == "j/b"
        assert middle <= error.offset < middle + 100
        # There's no error for each message of others, either.
        client.append("j/a", outside(40, 41))
        assert await form.take(2) == ([("j/a", 40), ("j/a", 41)], [])
        checkpoint = iterator.checkpoint()
    assert checkpoint.offsets["j/b"] == rows.index(line(19, ACK_TXN))
    assert client.attempts == [0]
    client.broken_from.clear()
    form = Form(name, client, source=source, checkpoint=checkpoint, block=False)
    async with form.iterator:
        assert await form.take(6) == ([("j/b", clock) for clock in range(14, 20)], [])
        with pytest.raises(StopAsyncIteration):
            await form.next()


@pytest.mark.parametrize("name", FORMS)
async def test_a_failed_replay_is_retried_and_continues_once_it_can(name):
    rows = transaction(10, 9)
    client = Client({"j/a": b"", "j/b": rows + outside(30)})
    client.broken_from["j/b"] = 0
    form = Form(name, client)
    async with form.iterator as iterator:
        for attempt in range(3):
            with pytest.raises(ReplayError, match="the store is gone"):
                await form.next()
            assert client.attempts == [*range(attempt + 1)]
        client.append("j/a", outside(1))
        got, _ = await form.take(1)
        assert got == [("j/a", 1)]
        client.broken_from["j/b"] = rows.index(line(14, CONTINUE_TXN))
        got, _ = await form.take(4)
        assert got == [("j/b", clock) for clock in range(10, 14)]
        client.broken_from.clear()
        got, _ = await form.take(7)
        assert got == [("j/b", clock) for clock in (*range(14, 20), 30)]
        assert iterator.checkpoint().offsets["j/b"] == len(client.journals["j/b"])


async def test_a_parked_journal_which_leaves_resumes_when_it_joins_again():
    client = Client({"j/a": b"", "j/b": transaction(10, 9)}, delays=(LATER,))
    client.broken_from["j/b"] = 0
    form = Form("envelopes", client)
    async with form.iterator:
        with pytest.raises(ReplayError):
            await form.next()
        client.move("j/b", "other")
        client.append("j/a", outside(1))
        assert await form.take(1) == ([("j/a", 1)], [])
        waiting = asyncio.create_task(form.take(10))
        await eventually(lambda: "open=1 " in repr(form.iterator))
        client.broken_from.clear()
        client.move("j/b", "t")
        assert await waiting == ([("j/b", clock) for clock in range(10, 20)], [])


async def test_a_parked_journal_which_is_created_anew_is_read_from_its_start():
    client = Client({"j/a": b"", "j/b": transaction(10, 9)}, delays=(LATER,))
    client.broken_from["j/b"] = 0
    form = Form("envelopes", client)
    async with form.iterator:
        with pytest.raises(ReplayError):
            await form.next()
        client.delete("j/b", tell=False)
        client.create("j/b", NDJSON, outside(2))
        assert await form.take(1) == ([("j/b", 2)], [])


async def test_closing_while_a_journal_is_parked():
    client = Client({"j/a": b"", "j/b": transaction(10, 9)}, delays=(LATER,))
    client.broken_from["j/b"] = 0
    form = Form("envelopes", client)
    async with form.iterator:
        with pytest.raises(ReplayError):
            await form.next()
        waiting = asyncio.create_task(form.next())
        await asyncio.sleep(0)
    with pytest.raises(StopAsyncIteration):
        await waiting


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", FORMS)
async def test_random_failures_and_restarts(name, seed):
    """Whatever fails and whenever reading restarts: each message is delivered once, in order."""
    rng = random.Random(seed)
    client = Client(dict.fromkeys(["j/a", "j/b", "j/c"], b""), chunk=rng.choice((50, 100, 700)))
    client.fails = lambda _journal, _offset: rng.random() < 0.4
    want, clock = {}, 0
    for journal in client.journals:
        want[journal] = []
        for _ in range(6):
            size, producer = rng.randrange(7), rng.choice((b"\x01abcde", b"\x03abcde"))
            client.append(journal, transaction(clock + 1, size, producer))
            want[journal] += range(clock + 1, clock + size + 2)
            clock += size + 1
    got = {journal: [] for journal in want}
    form, errors = Form(name, client, block=False), 0
    while True:
        try:
            for journal, at in await form.next():
                got[journal].append(at)
        except ReplayError:
            errors += 1
        except StopAsyncIteration:
            break
        if rng.random() < 0.1:
            checkpoint = form.iterator.checkpoint()
            await form.iterator.aclose()
            form = Form(name, client, block=False, checkpoint=checkpoint)
    await form.iterator.aclose()
    assert got == want
    assert errors


async def test_what_follows_a_commit_is_skipped_once():
    content = transaction(10, 2) + b"bad\n" + outside(20)
    client = Client({"j/a": content, "j/b": outside(30)}, chunk=len(content))
    client.broken_from["j/a"] = 0
    options = {"client": client, "sequencer": Sequencer(buffer=1), "on_error": "skip"}
    async with ReadCommittedIter(["j/a", "j/b"], ADAPTER, **options) as iterator:
        clocks = []
        for _ in range(4):
            try:
                clocks.append((await anext(iterator)).clock)
            except ReplayError:
                assert iterator.skipped == 0
        client.broken_from.clear()
        clocks += [envelope.clock async for envelope in iterator]
        assert sorted(clocks) == [10, 11, 12, 20, 30]
        assert iterator.skipped == 1


def test_a_sequencer_which_needs_no_replay_is_not_rewound():
    sequencer = Sequencer()
    with pytest.raises(SequencerStateError):
        sequencer.rewind()
