"""Transactions of random messages, timers, commits and crashes, against simple models."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Generator, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_aio.consumer.application import DeferToNextTransaction
from gazette_aio.message import (
    ACK_TXN,
    OUTSIDE_TXN,
    Envelope,
    ProducerID,
    Sequencer,
    get_clock,
    get_flags,
    get_producer_id,
    parse_uuid,
)
from gazette_aio.protocol.consumer import Checkpoint, ShardSpec
from gazette_aio.protocol.errors import ValidationError
from tests import extent
from tests.consumer.transactions.clocked import Clocked, ClockLoop, run_clocked
from tests.consumer.transactions.forms import FORMS, SIZE, Formed, Journals, Lines
from tests.consumer.transactions.world import NDJSON, shard_spec
from tests.message.random_lines import ADAPTER, START, A, line, random_lines
from tests.waiting import turns

PRODUCERS = [ProducerID(bytes([number] * 6)) for number in range(3)]


@pytest.fixture(autouse=True)
def _quiet() -> Generator[None]:
    """Leave out what is logged of misbehaving producers."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def make_content(rng: random.Random, name: str) -> tuple[Lines, list[int]]:
    """Return a journal, and places of its committed messages in order."""
    content, committed = Lines(name), list[int]()
    spans: dict[ProducerID, list[Any]] = {producer: [] for producer in PRODUCERS}
    acked = dict.fromkeys(PRODUCERS, 0)
    for _ in range(rng.randrange(10, 60)):
        producer = rng.choice(PRODUCERS)
        span = spans[producer]
        match rng.choice(["pending"] * 6 + ["ack", "ack", "outside", "duplicate", "rollback"]):
            case "pending":
                span.append(content.pending(producer))
            case "ack":
                ack = content.ack(producer)
                committed += [each.begin for each in (*span, ack)]
                span.clear()
                acked[producer] = ack.clock
            case "outside" if not span:
                message = content.outside(producer)
                committed.append(message.begin)
                acked[producer] = message.clock
            case "duplicate" if span:
                content.pending(producer, clock=rng.choice(span).clock)
            case "duplicate" if acked[producer]:
                content.add(rng.choice([OUTSIDE_TXN, ACK_TXN]), producer, clock=acked[producer])
            case "rollback" if acked[producer]:
                content.ack(producer, clock=acked[producer])
                span.clear()
            case _:
                pass
    for producer, span in spans.items():
        if span:
            ack = content.ack(producer)
            committed += [each.begin for each in (*span, ack)]
    # Without a later message, no checkpoint would pass duplicates at the end.
    committed.append(content.outside(PRODUCERS[0]).begin)
    return content, committed


class Life:
    """An assignment, from a committed checkpoint until a crash or the end of all messages."""

    def __init__(
        self, form: Any, rng: random.Random, loop: ClockLoop, contents: dict[str, Lines], disk: Any
    ) -> None:
        self.rng = rng
        self.loop = loop
        checkpoint, state = self.disk = disk
        self.world: Formed = form(loop, contents, self._spec(contents), checkpoint)
        self.state: list[tuple[str, int]] = list(state)
        self.pending: list[Any] = []
        self.progress = dict(self.world.sent)
        self.is_first = True
        self.start = self.world.store.start_commit
        self.world.store.start_commit = self.start_commit
        self.world.application.begin_txn = self.begin
        self.world.application.consume_message = self.consume

    def _spec(self, contents: dict[str, Lines]) -> ShardSpec:
        rng = self.rng
        return shard_spec(
            *contents,
            min_ms=rng.choice([0, 500, 2000]),
            max_ms=rng.choice([1000, 3000, 8000]),
            disable_wait_for_ack=rng.random() < 0.5,
            ring_buffer_size=rng.choice([1, 2, 5, 100]),
            read_channel_size=rng.choice([1, 3, 1000]),
        )

    def begin(self, shard: Any, store: Any) -> None:
        self.is_first = True

    def consume(self, shard: Any, store: Any, envelope: Any, publisher: Any) -> None:
        if not self.is_first and self.rng.random() < 0.05:
            raise DeferToNextTransaction
        self.is_first = False
        self.state.append((envelope.journal, envelope.begin))
        self.loop.now += self.rng.choice([0, 0, 0.2])

    def start_commit(self, shard: Any, checkpoint: Any, wait_for: Any) -> Any:
        self.pending.append((checkpoint, list(self.state)))
        return self.start(shard, checkpoint, wait_for)

    @property
    def is_done(self) -> bool:
        sources = self.disk[0].sources
        contents = self.world.contents.items()
        return all(name in sources and sources[name].read_through == c.head for name, c in contents)

    async def step(self) -> None:
        rng, world = self.rng, self.world
        commits = world.store.commits
        match rng.choice(["send", "send", "time", "commit"]):
            case "send":
                name = rng.choice([*world.contents])
                end = world.sent[name] + rng.randrange(1, 12) * SIZE
                await world.send_until(name, min(end, world.contents[name].head))
            case "time":
                await self.loop.advance(rng.choice([0.1, 1.0, 5.0]))
            case "commit" if commits and not commits[-1][2].done():
                self.disk = self.pending[-1]
                await world.committed()
            case _:
                pass
        assert not world.task.done(), world.task.exception()
        for name, offset in world.read_through.items():
            assert offset >= self.progress.get(name, 0), "progress never goes back"
            self.progress[name] = offset

    async def live(self, steps: int) -> Any:
        """Take steps, then crash, and return what's on disk."""
        async with self.world:
            for _ in range(steps):
                if self.is_done:
                    break
                await self.step()
        return self.disk


@FORMS
@pytest.mark.parametrize("seed", extent.seeds(40))
def test_each_committed_message_is_consumed_once_and_in_order(form: Any, seed: int):
    rng = random.Random(seed)
    contents, expected = dict[str, Lines](), dict[str, list[int]]()
    for name in ("a", "b")[: rng.choice([1, 1, 2])]:
        contents[name], expected[name] = make_content(rng, name)

    def check(state: Any) -> None:
        for name, places in expected.items():
            assert [begin for journal, begin in state if journal == name] == places

    async def test(loop: ClockLoop) -> None:
        disk: Any = (Checkpoint(), [])
        life = Life(form, rng, loop, contents, disk)
        for steps in [*rng.choices([2, 5, 10, 30], k=20), 10_000]:
            disk = await life.live(steps)
            if life.is_done:
                break
            life = Life(form, rng, loop, contents, disk)
        assert life.is_done
        check(disk[1])
        # A single life without a crash comes to the same.
        through = Life(form, rng, loop, contents, (Checkpoint(), []))
        check((await through.live(10_000))[1])
        assert through.world.read_through == {
            "source/A": 0,
            **{name: content.head for name, content in contents.items()},
        }

    run_clocked(test)


# Messages that misbehave, in calls that end anywhere.


JOURNAL = "a/j"
LAST = ProducerID(b"\x01LLLLL")
"""Producer of the last message, which is outside of transactions."""
MIN = 1.0


def row_of(envelope: Envelope[Any]) -> Any:
    number = None if envelope.message is None else envelope.message.n
    place = envelope.begin, envelope.end
    return *place, envelope.clock, envelope.flags, envelope.producer, number


def uuid_of(frame: bytes) -> UUID:
    """Return the UUID at its usual place, whatever follows it; or any place of a document."""
    if frame.startswith(b'{"_meta":{"uuid":"') and frame[54:55] == b'"':
        with suppress(ValidationError):
            return parse_uuid(frame[18:54])
    return ADAPTER.frame_uuid(frame)


def committed_of(content: bytes) -> tuple[list[Any], int | None]:
    """Return the committed messages, one by one, and the offset of the first that is bad."""
    sequencer = Sequencer(buffer=1 << 30)
    rows: list[Any] = []
    for begin, end in pairwise((0, *accumulate(map(len, content.splitlines(keepends=True))))):
        frame = content[begin : end - 1]
        try:
            uuid = uuid_of(frame)
        except Exception:  # noqa: BLE001 - whatever the adapter raises.
            return rows, begin
        stamp = get_clock(uuid), get_flags(uuid), get_producer_id(uuid)
        sequencer.queue_uncommitted(Envelope(JOURNAL, begin, end, *stamp, frame))
        while sequencer.step():
            envelope = sequencer.dequeued
            assert envelope is not None
            try:
                envelope.message = ADAPTER.decode(envelope.message)
            except Exception:  # noqa: BLE001 - whatever the adapter raises.
                if envelope.flags != ACK_TXN:
                    return rows, envelope.begin
                envelope.message = None
            rows.append(row_of(envelope))
    return rows, None


class Ledger:
    """A store of the list of messages, which commits at once."""

    def __init__(self) -> None:
        self.state: list[Any] = []
        self.commits: list[tuple[Checkpoint, list[Any]]] = [(Checkpoint(), [])]

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

    def __init__(
        self,
        rng: random.Random,
        stuck_at: int = -1,
        sizes: Sequence[int] = (1, 2, 7, 40, 300, 1000),
    ) -> None:
        self.is_stuck = self.is_deferring = False
        self.rooms: list[int] = []
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
        self.rooms.append(self._room)

    def finished_txn(self, shard: Any, store: Any, commit: Any) -> None:
        pass

    async def take(self, store: Ledger, envelopes: list[Envelope[Any]]) -> int:
        """Consume the first messages, and return how many."""
        taken = envelopes[: self._room]
        self._room -= len(taken)
        self.is_deferring = len(taken) < len(envelopes)
        for each in taken:
            assert each.spec.name == each.journal == JOURNAL
            if self._until_stuck == 0:
                self.is_stuck = True
                await asyncio.Event().wait()
            self._until_stuck -= 1
            store.state.append(row_of(each))
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


class Assignment(Clocked):
    """Consumes a journal to its end, to an error, or until stuck."""

    def __init__(
        self,
        loop: ClockLoop,
        content: bytes,
        ledger: Ledger,
        application: Limited,
        spec: ShardSpec,
        chunk: int = 50_000,
    ) -> None:
        super().__init__(loop, spec, ledger.commits[-1][0])
        self.ledger = ledger
        self.application = application
        self.shard.client = self.client = Journals({JOURNAL: NDJSON}, chunk=chunk)
        self.client.append(JOURNAL, content)
        self.start = self.store.start_commit
        self.store = ledger
        ledger.start_commit = self.start_commit  # type: ignore[attr-defined]

    def start_commit(self, shard: Any, checkpoint: Checkpoint, wait_for: Any) -> Any:
        self.ledger.commits.append((checkpoint, list(self.ledger.state)))
        operation = self.start(shard, checkpoint, wait_for)
        operation.resolve()
        return operation

    async def run(self) -> str | None:
        """Return the error, if any."""
        self.checkpoint = await self.ledger.restore_checkpoint(self.shard)
        application, ledger = self.application, self.ledger
        is_last = False
        async with self:
            while not (self.task.done() or application.is_stuck or is_last):
                await turns(1)
                # Time stands still otherwise: transactions end only where they defer a message.
                if application.is_deferring:
                    application.is_deferring = False
                    await self.loop.advance(MIN)
                is_last = bool(ledger.state) and ledger.state[-1][4] == LAST
            if is_last and not application.is_stuck:
                await self.loop.advance(MIN)
                assert self.progress.covers({JOURNAL: len(self.client.journals[JOURNAL])})
        return None if self.task.cancelled() else str(self.task.exception())


def random_spec(rng: random.Random) -> ShardSpec:
    return shard_spec(
        JOURNAL,
        min_ms=1000 * MIN,
        max_ms=10_000 * MIN,
        disable_wait_for_ack=True,
        ring_buffer_size=rng.choice((2, 40, 100, 8192)),
        read_channel_size=rng.choice((1, 50, 8192)),
    )


HOOKS = pytest.mark.parametrize("hook", [InBatches, OneByOne])


def check_error(error: str | None, bad: int | None) -> None:
    if bad is None:
        assert error is None
    else:
        assert error is not None
        assert error.startswith(f"{JOURNAL} at offset {bad}")
        assert " can't be decoded: " in error


@HOOKS
@extent.examples(20)
@given(seed=st.integers(0, 2**32))
def test_transactions_are_those_of_messages_one_by_one(hook: type[Limited], seed: int):
    rng = random.Random(seed)
    content = b"".join([*random_lines(rng), line(0, START, OUTSIDE_TXN, LAST)])
    rows, bad = committed_of(content)
    ledger, application = Ledger(), hook(random.Random(seed))

    async def test(loop: ClockLoop) -> None:
        chunk = rng.choice((100, 5000, 50_000))
        assignment = Assignment(loop, content, ledger, application, random_spec(rng), chunk)
        check_error(await assignment.run(), bad)
        sizes = [report.size_bytes for report in assignment.observer.reports]
        for size, (before, after) in zip(sizes, pairwise(ledger.commits), strict=True):
            assert size == sum(end - begin for begin, end, *_ in after[1][len(before[1]) :])

    run_clocked(test)
    assert ledger.state == rows
    ends = [*accumulate(application.rooms), 0]
    for (checkpoint, state), end in zip(ledger.commits[1:], ends, strict=False):
        assert state == rows[:end]
        assert checkpoint.sources[JOURNAL].read_through <= len(content)
    if bad is None:
        assert ledger.commits[-1][0].sources[JOURNAL].read_through == len(content)


@HOOKS
@extent.examples(20)
@given(seed=st.integers(0, 2**32))
def test_messages_are_consumed_once_whatever_call_is_cancelled(hook: type[Limited], seed: int):
    rng = random.Random(seed)
    content = b"".join([*random_lines(rng), line(0, START, OUTSIDE_TXN, LAST)])
    rows, bad = committed_of(content)
    ledger = Ledger()

    async def test(loop: ClockLoop) -> None:
        for _ in range(rng.randrange(1, 6)):
            stuck = hook(rng, rng.randrange(len(rows) + 1))
            await Assignment(loop, content, ledger, stuck, random_spec(rng)).run()
        last = Assignment(loop, content, ledger, hook(rng), random_spec(rng))
        check_error(await last.run(), bad)

    run_clocked(test)
    assert ledger.state == rows
    for _, state in ledger.commits:
        assert state == rows[: len(state)]


@HOOKS
def test_a_deferral_within_a_transaction_is_exact(hook: type[Limited]):
    clocks = [START + 160 * number for number in range(101)]
    lines = [line(1000 + number, clock) for number, clock in enumerate(clocks[:-1])]
    lines += [line(0, clocks[-1], ACK_TXN), line(0, START, OUTSIDE_TXN, LAST)]
    ends = list(accumulate(map(len, lines)))
    ledger, application = Ledger(), hook(random.Random(0), sizes=[30])

    async def test(loop: ClockLoop) -> None:
        spec = shard_spec(JOURNAL, min_ms=1000 * MIN, max_ms=10_000 * MIN)
        await Assignment(loop, b"".join(lines), ledger, application, spec).run()

    run_clocked(test)
    for number, (checkpoint, state) in enumerate(ledger.commits[1:4], 1):
        consumed = 30 * number
        assert [end for _, end, *_ in state] == ends[:consumed]
        [source] = checkpoint.sources.values()
        assert source.read_through == ends[-3]  # All but the acknowledgement.
        [producer] = [each.state for each in source.producers if each.id == A]
        assert producer.begin == ends[consumed - 2]
        assert producer.last_ack == clocks[consumed - 1]
    checkpoint, state = ledger.commits[-1]
    assert checkpoint.sources[JOURNAL].read_through == ends[-1]
    assert len(state) == 102
