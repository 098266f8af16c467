"""Transactions that are cancelled at each await, whatever the form of the hooks."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any

import pytest

from gazette_aio.aio import turns as loop_turns
from gazette_aio.client.appends.futures import AsyncOperation
from gazette_aio.consumer.application import DeadLetter, DeferToNextTransaction, Retry
from gazette_aio.consumer.transactions import (
    acknowledgements,
    consuming,
    finisher,
    message_errors,
    primary,
    produced,
)
from gazette_aio.message import Clock, Envelope, Publisher, SequencerCheckpoint, json_adapter
from gazette_aio.message.publishing import backlog
from gazette_aio.protocol.consumer import Checkpoint
from gazette_aio.protocol.errors import TransactionError
from tests.cancellation import Line, awaits_left, cancel_at
from tests.consumer.transactions.clocked import Clocked, ClockLoop, Content, run_clocked
from tests.consumer.transactions.test_loop_clocked import INTENT
from tests.consumer.transactions.world import OUT, read_through, shard_spec, to_out
from tests.waiting import eventually, turns

MODULES = (acknowledgements, consuming, finisher, message_errors, primary, produced)
FINISHED = {"aclose", "_ended", "_awaited", "_read", "send"}
"""Functions that are awaited to their end, whatever is cancelled, or by another task."""
AGAIN = {"committing: await finish(self._ended(ending))"}
"""Awaits that only a second cancellation meets. It's tried below."""
OF_JOURNALS = {
    "pass_over: letter = await self._letter(envelope, suspect)",
    "pass_over: await append",
    "_letter: content = None if self._hooks.producer is not None else await self._content(envelope)",
    "consume: await errors.decoding_failed(first, suspect)",
    "decoding_failed: if not await self._decide(envelope, suspect, name, error):",
    "_content: async with client.read(request, timeout=math.inf) as reader:",
    "_content: while chunk := await next_chunk(client, envelope.journal, reader):",
}
"""Awaits for messages of journals. Tests of services try them."""
DEAD = 30
"""Begin of a message that always fails."""
READINGS = 3
"""Readings of an assignment, the last of which have no messages."""


class NeverWaiting(selectors.DefaultSelector):
    """A selector that lets no real time pass."""

    def select(self, timeout: float | None = None) -> Any:
        return super().select(None if timeout is None else 0)


class HastyLoop(ClockLoop):
    """An event loop whose time passes with each look at it, and only so."""

    def __init__(self) -> None:
        super().__init__(NeverWaiting())

    def time(self) -> float:
        self.now += 0.001
        return self.now


class Replay:
    """Envelopes, each of which is waited for, and so is the end."""

    def __init__(self, envelopes: list[Envelope[Any]]) -> None:
        self._envelopes = iter(envelopes)

    def __aiter__(self) -> Replay:
        return self

    async def __anext__(self) -> Envelope[Any]:
        await asyncio.sleep(0)
        try:
            return next(self._envelopes)
        except StopIteration:
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        await asyncio.sleep(0)


class EveryHookWaits:
    """Has an await in each hook, and leaves calls to publish to tasks. It's its own store."""

    commit_turns = 1

    def __init__(self, content: Content, checkpoint: Checkpoint, values: list[int]) -> None:
        self.content = content
        self.calls: list[str] = []
        self.values = list(values)
        self.committed = checkpoint, values
        self.restored = 0
        self.tasks: list[asyncio.Task[Any]] = []

    def adapter(self, spec: Any) -> Any:
        raise NotImplementedError

    def new_store(self, shard: Any, recorder: Any) -> Any:
        raise NotImplementedError

    async def begin_txn(self, shard: Any, store: Any) -> None:
        await asyncio.sleep(0)
        self.calls.append("begin")

    def is_next(self) -> bool:
        """Return whether a transaction takes another message: it takes two of three."""
        return len(self.values) % 3 != 2 or self.calls[-1] != "consume"

    def take(self, envelope: Envelope[Any]) -> None:
        if not self.is_next():
            self.calls.append("defer")
            raise DeferToNextTransaction
        self.calls.append("consume")
        self.values.append(envelope.begin)

    async def consume_message(
        self, shard: Any, store: Any, envelope: Envelope[Any], publisher: Any
    ) -> None:
        self.take(envelope)
        await asyncio.sleep(0)
        await publisher.publish_uncommitted(to_out, {"v": 1})

    async def finalize_txn(self, shard: Any, store: Any, publisher: Any) -> None:
        await asyncio.sleep(0)
        self.leave_to_a_task(shard)

    async def finished_txn(self, shard: Any, store: Any, commit: Any) -> None:
        self.calls.append("finish")
        await asyncio.sleep(0)
        self.calls.append("finished")
        if not (commit.done() and commit.exception()):
            self.leave_to_a_task(shard)

    def leave_to_a_task(self, shard: Any) -> None:
        call = shard.publisher.publish_uncommitted(to_out, {"v": 2})
        self.tasks.append(asyncio.create_task(call))

    async def read_messages(self, shard: Any, store: Any, checkpoint: Any, sink: Any) -> None:
        offset = read_through(checkpoint).get("source/A", 0)
        for envelope in self.content.read(offset):
            await sink.send([envelope])

    def replay_range(self, shard: Any, store: Any, journal: str, begin: int, end: int) -> Any:
        return Replay(self.content.read(begin, end))

    def read_through(self, shard: Any, store: Any, offsets: Any) -> Any:
        return offsets

    # The store.

    def start_commit(self, shard: Any, checkpoint: Any, wait_for: Any) -> AsyncOperation:
        """Commit in a task, as most stores do; a process that's cancelled may still commit."""
        commit, values = AsyncOperation(), self.values.copy()

        async def work() -> None:
            await turns(self.commit_turns)
            self.committed = checkpoint, values
            commit.resolve()

        self.tasks.append(asyncio.create_task(work()))
        return commit

    async def restore_checkpoint(self, shard: Any) -> Checkpoint:
        await asyncio.sleep(0)
        self.restored += 1
        if self.restored == READINGS:
            raise ValueError("the end")
        return self.committed[0]


class Plain(EveryHookWaits):
    """Publishes without waiting, so that the framework does."""

    def consume_message(self, *args: Any) -> None:  # type: ignore[override]
        _, _, envelope, publisher = args
        self.take(envelope)
        publisher.publish_uncommitted_nowait(to_out, {"v": 1})


class Batches(Plain):
    """Consumes the messages up to the one that it defers."""

    def consume_batch(self, *args: Any) -> int:
        shard, store, envelopes, publisher = args
        for number, envelope in enumerate(envelopes):
            if not self.is_next():
                self.calls.append("defer")
                return number
            self.consume_message(shard, store, envelope, publisher)
        return len(envelopes)


class AsyncBatches(Batches):
    """Has a plain end of transactions, which still leaves something to a task."""

    async def consume_batch(self, *args: Any) -> int:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().consume_batch(*args)

    def finished_txn(self, shard: Any, store: Any, commit: Any) -> None:  # type: ignore[override]
        self.calls += ("finish", "finished")
        if not (commit.done() and commit.exception()):
            self.leave_to_a_task(shard)


class DeferringBatches(AsyncBatches):
    """Raises what defers a whole batch, after it has published of its own."""

    is_behind = False

    async def consume_batch(self, *args: Any) -> int:  # type: ignore[override]
        publisher = args[-1]
        if self.calls[-1] == "consume" and not self.is_behind:
            self.is_behind = True
            publisher.publish_uncommitted_nowait(to_out, {"v": 3})
            raise DeferToNextTransaction
        self.is_behind = False
        return await super().consume_batch(*args)


class Failing(EveryHookWaits):
    """Fails amid its last transaction."""

    async def finalize_txn(self, shard: Any, store: Any, publisher: Any) -> None:
        await super().finalize_txn(shard, store, publisher)
        if len(self.values) == len(self.content.messages):
            raise ValueError("the end")


class Repeating(EveryHookWaits):
    """Fails once at every other message, and always at one, whose dead letter counts as consumed."""

    commit_turns = 20

    def __init__(self, *committed: Any) -> None:
        super().__init__(*committed)
        self.failed = set[int]()
        self.is_repeated = False

    async def consume_message(
        self, shard: Any, store: Any, envelope: Envelope[Any], publisher: Any
    ) -> None:
        at = envelope.begin
        if self.is_next() and (at == DEAD or (at % 20 and at not in self.failed)):
            self.failed.add(at)
            self.values.append(-1)
            await publisher.publish_uncommitted(to_out, {"v": -1})
            raise KeyError(at)
        await super().consume_message(shard, store, envelope, publisher)

    async def on_message_error(self, shard: Any, envelope: Any, error: Exception) -> Any:
        await asyncio.sleep(0)
        self.is_repeated = True
        retry = Retry(times=1, first_seconds=0.001)
        return DeadLetter(self.mapped) if envelope.begin == DEAD else retry

    async def mapped(self, letter: dict[str, Any]) -> tuple[str, str]:
        await asyncio.sleep(0)
        self.calls.append("consume")
        self.values.append(letter["begin"])
        return to_out(letter)

    async def restore_checkpoint(self, shard: Any) -> Checkpoint:
        if self.is_repeated:
            self.is_repeated = False
            await asyncio.sleep(0)
            self.values = list(self.committed[1])
            return self.committed[0]
        return await super().restore_checkpoint(shard)


class RepeatingBatches(Repeating):
    """Fails in batches, whose messages are then consumed one by one."""

    async def consume_batch(
        self, shard: Any, store: Any, envelopes: list[Envelope[Any]], publisher: Any
    ) -> int:
        for number, envelope in enumerate(envelopes):
            try:
                await self.consume_message(shard, store, envelope, publisher)
            except DeferToNextTransaction:
                return number
            except KeyError:
                self.is_repeated = True
                raise
        return len(envelopes)


FORMS = [
    EveryHookWaits,
    Plain,
    Batches,
    AsyncBatches,
    DeferringBatches,
    Failing,
    Repeating,
    RepeatingBatches,
]


class Assignment:
    """An assignment that resumes from what was committed, and ends with all messages."""

    def __init__(self, loop: ClockLoop, form: Callable[..., Any], *committed: Any) -> None:
        spec = shard_spec(max_ms=10_000, ring_buffer_size=2, read_channel_size=1)
        self.world = world = Clocked(loop, spec, committed[1], renew_publisher=self.renew)
        self.application = world.application = world.store = form(*committed)
        start = world.appends.start_append

        async def start_append(*args: Any) -> Any:
            await asyncio.sleep(0)
            append = await start(*args)
            append.resolve()
            return append

        world.appends.start_append = start_append  # type: ignore[method-assign]
        world.appends.try_append = lambda *_: None  # type: ignore[method-assign, assignment, return-value]
        self._renew()

    async def renew(self) -> None:
        await asyncio.sleep(0)
        self._renew()

    def _renew(self) -> None:
        shard = self.world.shard
        shard.publisher = Publisher(shard.appends, json_adapter(), clock=Clock())

    async def run(self) -> None:
        with pytest.raises(TransactionError, match="the end"):
            await self.world.primary().run(self.world.checkpoint)


async def cancelled_at_each_await(
    loop: ClockLoop, form: Any, *, by_scope: bool = False
) -> set[Line]:
    """Cancel an assignment at each await, have another one resume, and return where it was."""
    content, lines = Content(), set[Line]()
    for size in (1, 4, 2):
        for _ in range(size - 1):
            content.pending()
        content.ack()
    everything = [each.begin for each in content.messages]
    restored = SequencerCheckpoint().to_proto({OUT: INTENT})
    number, was_cancelled = 0, True
    while was_cancelled:
        before = asyncio.all_tasks()
        one = Assignment(loop, form, content, restored, [])
        was_cancelled = await cancel_at(one.run(), number, by_scope=by_scope, lines=lines)
        calls = one.application.calls
        assert calls.count("begin") == calls.count("finish") == calls.count("finished"), number
        await eventually(lambda before=before: asyncio.all_tasks() == before)
        for task in one.application.tasks:
            task.cancelled() or task.exception()
        follower = EveryHookWaits if form is Failing else form
        other = Assignment(loop, follower, content, *one.application.committed)
        await other.run()
        assert other.application.values == everything, number
        await eventually(lambda before=before: asyncio.all_tasks() == before)
        number += 1
    return lines


@pytest.fixture
def small_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each wait for a queue, for a turn, and for a pause between readings occur in small."""
    monkeypatch.setattr(loop_turns, "SLICE_SECONDS", -1.0)
    monkeypatch.setattr(consuming, "QUEUED_BYTES", 1)
    monkeypatch.setattr(backlog, "MAX_BYTES", 200)
    monkeypatch.setattr(primary, "_FIRST_PAUSE", 0.002)


@pytest.mark.usefixtures("small_queues")
def test_a_cancellation_at_any_await():
    lines = set[Line]()

    async def test(loop: ClockLoop) -> None:
        for form in FORMS:
            lines.update(await cancelled_at_each_await(loop, form))

    run_clocked(test, HastyLoop)
    for module in MODULES:
        assert set(awaits_left(module, lines, without=FINISHED)) <= AGAIN | OF_JOURNALS, (
            module.__name__
        )


@pytest.mark.usefixtures("small_queues")
@pytest.mark.parametrize("form", [EveryHookWaits, AsyncBatches])
def test_a_cancellation_by_a_scope_at_any_await(form: type[EveryHookWaits]):
    async def test(loop: ClockLoop) -> None:
        await cancelled_at_each_await(loop, form, by_scope=True)

    run_clocked(test, HastyLoop)


@pytest.mark.parametrize("has_failed", [False, True])
@pytest.mark.parametrize("is_late", [False, True])
def test_the_end_of_a_transaction_outlives_cancellations(
    is_late: bool, has_failed: bool, caplog: pytest.LogCaptureFixture
):
    """Such as a hook that releases what `begin_txn()` has acquired."""
    events: list[str] = []

    async def test(loop: ClockLoop) -> None:
        async with Clocked(loop) as world:
            may_end = asyncio.Event()

            async def finished_txn(shard: Any, store: Any, commit: Any) -> None:
                events.append("finishing")
                try:
                    await may_end.wait()
                finally:
                    events.append("finished")

            world.application.finished_txn = finished_txn
            if has_failed:
                world.application.errors["finalize"] = ValueError("an error")
            await world.send(world.content.outside())
            await loop.advance(0.001)
            for _ in range(3):
                world.task.cancel()
                await turns()
            assert events == ["finishing"]
            assert not world.task.done()
            if is_late:
                await loop.advance(finisher.FINISHED_SECONDS)
            else:
                may_end.set()
            await asyncio.wait((world.task,))
            assert world.task.cancelled()
            assert events == ["finishing", "finished"]

    run_clocked(test)
    assert ("finished_txn() failed after its transaction: TimeoutError()" in caplog.text) == is_late


def test_a_cancelled_assignment_waits_for_its_reading_to_end():
    async def test(loop: ClockLoop) -> None:
        world, may_end = Clocked(loop), asyncio.Event()

        async def read_messages(*_: Any) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await may_end.wait()

        world.application.read_messages = read_messages
        async with world:
            for _ in range(3):
                world.task.cancel()
                await turns()
                assert not world.task.done(), "it left although the application reads"
            may_end.set()
            await asyncio.wait((world.task,))
            assert world.task.cancelled()

    run_clocked(test)
