"""Messages that shards read in uniform runs are the messages that they'd read one by one."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Generator, Sequence
from contextlib import nullcontext
from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gazette_aio.client.appends.futures import AsyncOperation, finished_operation
from gazette_aio.client.rpc.route_cache import NoopDispatchRouter
from gazette_aio.consumer.application import DeferToNextTransaction
from gazette_aio.consumer.application.hooks import Hooks
from gazette_aio.consumer.transactions.channel import MessageChannel
from gazette_aio.consumer.transactions.checkpoints import flatten_read_through
from gazette_aio.consumer.transactions.driver import PrimaryLoop
from gazette_aio.consumer.transactions.progress import ProgressCell
from gazette_aio.consumer.transactions.readers import SourceReaders
from gazette_aio.message import ACK_TXN, OUTSIDE_TXN, Envelope, ProducerID
from gazette_aio.message.envelopes.uniform_run import UniformRun
from gazette_aio.message.reading.formats import JournalFormats
from gazette_aio.protocol.consumer import Checkpoint, ShardSpec
from tests.consumer.transactions.clocked import ClockedShard, ClockLoop, run_clocked
from tests.consumer.transactions.world import NDJSON, Observer, shard_spec
from tests.message.fakes import FakeClient, FakeReader
from tests.message.reading.test_uniform_runs import (
    ADAPTER,
    START,
    A,
    line,
    one_by_one,
    random_lines,
)
from tests.waiting import turns

JOURNAL = "a/j"
LAST = ProducerID(b"\x01LLLLL")
"""Producer of the last message, which is outside of transactions."""
MIN = 1.0


@pytest.fixture(autouse=True)
def _quiet() -> Generator[None]:
    """Leave out what is logged of misbehaving producers."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


class Journals(FakeClient):
    """A client of one journal."""

    router = NoopDispatchRouter()

    def __init__(self, content: bytes, chunk: int = 50_000) -> None:
        super().__init__({JOURNAL: NDJSON}, chunk=chunk)
        self.append(JOURNAL, content)

    def read(self, request: Any, *, timeout: float) -> FakeReader:
        reader: FakeReader = super().read(request)
        return reader


class Ledger:
    """A store of the list of messages, which commits at once."""

    def __init__(self) -> None:
        self.state: list[Any] = []
        self.commits: list[tuple[Checkpoint, list[Any]]] = [(Checkpoint(), [])]

    def start_commit(self, shard: Any, checkpoint: Checkpoint, wait_for: Any) -> AsyncOperation:
        self.commits.append((checkpoint, list(self.state)))
        return finished_operation()

    async def restore_checkpoint(self, shard: Any) -> Checkpoint:
        checkpoint, state = self.commits[-1]
        self.state = list(state)
        return checkpoint


class Limited:
    """Consumes a number of messages in each transaction, until it gets stuck.

    Args:
        rng: Decides on these numbers.
        stuck_at: Number of messages after which a call never ends, if any.
        sizes: The numbers.
    """

    run_in_thread = False

    def __init__(
        self,
        rng: random.Random,
        stuck_at: int = -1,
        sizes: Sequence[int] = (1, 2, 7, 40, 300, 1000),
    ) -> None:
        self.is_stuck = self.is_deferring = False
        self.calls: list[list[int]] = []
        self._sizes = sizes
        self._rng = rng
        self._room = 0
        self._until_stuck = stuck_at

    def adapter(self, spec: Any) -> Any:
        return ADAPTER

    def new_store(self, shard: Any, recorder: Any) -> Any:
        raise NotImplementedError

    def begin_txn(self, shard: Any, store: Any) -> None:
        self._room = self._rng.choice(self._sizes)

    def finished_txn(self, shard: Any, store: Any, commit: Any) -> None:
        pass

    async def take(self, store: Ledger, envelopes: list[Envelope[Any]]) -> int:
        """Consume the first messages, and return how many."""
        self.calls.append([each.end for each in envelopes])
        taken = envelopes[: self._room]
        self._room -= len(taken)
        self.is_deferring = len(taken) < len(envelopes)
        for each in taken:
            number = None if each.message is None else each.message.n
            row = each.begin, each.end, each.clock, each.flags, each.producer, number
            assert each.spec.name == each.journal == JOURNAL
            if self._until_stuck == 0:
                self.is_stuck = True
                await asyncio.Event().wait()
            self._until_stuck -= 1
            store.state.append(row)
        return len(taken)


class InBatches(Limited):
    async def consume_batch(
        self, shard: Any, store: Ledger, envelopes: list[Envelope[Any]], publisher: Any
    ) -> int:
        count = await self.take(store, envelopes)
        envelopes.reverse()  # The list belongs to the hook.
        return count


class OneByOne(Limited):
    async def consume_message(
        self, shard: Any, store: Ledger, envelope: Envelope[Any], publisher: Any
    ) -> None:
        if not await self.take(store, [envelope]):
            raise DeferToNextTransaction


def random_content(rng: random.Random) -> bytes:
    end = line(0, START, OUTSIDE_TXN, LAST)
    return b"".join([*random_lines(rng), end])


def random_spec(rng: random.Random) -> ShardSpec:
    return shard_spec(
        JOURNAL,
        min_ms=1000 * MIN,
        max_ms=10_000 * MIN,
        disable_wait_for_ack=True,
        ring_buffer_size=rng.choice((2, 40, 100, 8192)),
        read_channel_size=rng.choice((1, 50, 8192)),
    )


async def assign(
    loop: ClockLoop, client: Journals, store: Ledger, application: Limited, spec: ShardSpec
) -> tuple[str | None, list[Any]]:
    """Consume the journal to its end, to an error, or until stuck; return error and reports."""
    shard: Any = ClockedShard(spec)
    shard.client = client
    progress, observer = ProgressCell([JOURNAL]), Observer()
    hooks: Any = Hooks(application)  # type: ignore[arg-type]
    primary = PrimaryLoop(shard, hooks, store, progress=progress, observer=observer)
    checkpoint = await store.restore_checkpoint(shard)
    task = asyncio.create_task(primary.run(checkpoint))
    head = {JOURNAL: len(client.journals[JOURNAL])}
    is_last = False
    while not (task.done() or application.is_stuck or is_last):
        await turns(1)
        # Time stands still otherwise, so that transactions end only where they defer a message.
        if application.is_deferring:
            application.is_deferring = False
            await loop.advance(MIN)
        is_last = bool(store.state) and store.state[-1][4] == LAST
    if is_last and not application.is_stuck:
        await loop.advance(MIN)
        assert progress.covers(head)
    task.cancel()
    await asyncio.wait((task,))
    return None if task.cancelled() else str(task.exception()), observer.reports


FORMS = pytest.mark.parametrize("form", [InBatches, OneByOne])


@FORMS
@settings(max_examples=50)
@given(seed=st.integers(0, 2**32))
def test_transactions_are_the_same(form: type[Limited], seed: int):
    rng = random.Random(seed)
    content, spec = random_content(rng), random_spec(rng)
    stores, ends = [Ledger(), Ledger()], list[Any]()

    async def test(loop: ClockLoop) -> None:
        for store, reading in zip(stores, (one_by_one(), nullcontext()), strict=True):
            client = Journals(content, rng.choice((100, 5000, 50_000)))
            with reading:
                ends.append(await assign(loop, client, store, form(random.Random(seed)), spec))

    run_clocked(test)
    want, got = stores
    (error, reports), (same_error, same_reports) = ends
    assert got.state == want.state
    assert [state for _, state in got.commits] == [state for _, state in want.commits]
    assert same_error == error
    for ours, theirs, (before, after) in zip(
        same_reports, reports, pairwise(state for _, state in want.commits), strict=True
    ):
        size = sum(end - begin for begin, end, *_ in after[len(before) :])
        assert ours.size_bytes == theirs.size_bytes == size
        assert ours.messages == theirs.messages == len(after) - len(before)
    if error is None:
        assert got.commits[-1] == want.commits[-1]


@FORMS
@settings(max_examples=50)
@given(seed=st.integers(0, 2**32))
def test_messages_are_consumed_once_whatever_call_is_cancelled(form: type[Limited], seed: int):
    rng = random.Random(seed)
    content = random_content(rng)
    want, got = Ledger(), Ledger()

    async def test(loop: ClockLoop) -> None:
        client = Journals(content)
        with one_by_one():
            error, _ = await assign(loop, client, want, form(rng), random_spec(rng))
        # The consumed messages of the last assignment are a part of these.
        for _ in range(rng.randrange(1, 6)):
            stuck_at = rng.randrange(len(want.state) + 1)
            await assign(loop, client, got, form(rng, stuck_at), random_spec(rng))
        same_error, _ = await assign(loop, client, got, form(rng), random_spec(rng))
        assert same_error == error

    run_clocked(test)
    assert got.state == want.state
    for _, state in got.commits:
        assert state == want.state[: len(state)]


def transaction(size: int) -> list[bytes]:
    """Return the lines of a transaction, whose messages are as long as each other."""
    clocks = [START + 160 * number for number in range(size)]
    pending = [line(1000 + number, clock) for number, clock in enumerate(clocks)]
    return [*pending, line(0, clocks[-1] + 160, ACK_TXN)]


async def read_all(client: Journals, channel: MessageChannel) -> list[Any]:
    """Return the elements that the readers of a journal put into a channel."""
    formats: Any = JournalFormats(ADAPTER)
    errors: Any = None
    readers = SourceReaders(client, {JOURNAL: 0}, formats, {}, channel, errors=errors)  # type: ignore[arg-type]
    elements: list[Any] = []
    async with readers:
        readers.start()
        head = len(client.journals[JOURNAL])
        while not elements or elements[-1][-1].end < head:
            await turns(1)
            while channel.is_ready:
                elements.append(channel.take())
    return elements


async def test_sources_are_read_in_uniform_runs():
    lines = transaction(100)
    elements = await read_all(Journals(b"".join(lines)), MessageChannel(lambda: None))
    run, (ack,) = elements
    assert isinstance(run, UniformRun)
    assert len(run) == 100
    assert ack.flags == ACK_TXN
    assert ack.begin == run.end


def test_a_deferral_within_a_run_is_exact():
    lines = transaction(100)
    client = Journals(b"".join([*lines, line(0, START, OUTSIDE_TXN, LAST)]))
    ends = list(accumulate(map(len, lines)))
    store, application = Ledger(), InBatches(random.Random(0), sizes=[30])

    async def test(loop: ClockLoop) -> None:
        spec = shard_spec(JOURNAL, min_ms=1000 * MIN, max_ms=10_000 * MIN)
        await assign(loop, client, store, application, spec)

    run_clocked(test)
    calls = application.calls
    consumed = 0
    for checkpoint, state in store.commits[1:4]:
        assert calls.pop(0)[:30] == ends[consumed : consumed + 30]
        consumed += 30
        assert [end for _, end, *_ in state] == ends[:consumed]
        [source] = checkpoint.sources.values()
        assert source.read_through == ends[-2]  # All but the acknowledgement.
        [producer] = [each.state for each in source.producers if each.id == A]
        assert producer.begin == ends[consumed - 2]
        assert producer.last_ack == START + 160 * (consumed - 1)
    assert calls[0] == ends[consumed:]
    checkpoint, state = store.commits[-1]
    assert flatten_read_through(checkpoint) == {JOURNAL: len(client.journals[JOURNAL])}
    assert len(state) == 102


@pytest.mark.parametrize("bounds", [{"messages": 40}, {"size_bytes": 1}])
async def test_channels_bound_uniform_runs(bounds: dict[str, int]):
    client = Journals(b"".join(transaction(100)))
    elements = await read_all(client, MessageChannel(lambda: None, **bounds))
    whole = await read_all(client, MessageChannel(lambda: None))
    assert [each for run in elements for each in run] == [each for run in whole for each in run]
    assert [*map(len, elements)] == ([40, 40, 20, 1] if "messages" in bounds else [100, 1])
