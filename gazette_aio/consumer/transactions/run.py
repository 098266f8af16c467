"""Transactions of a shard from one checkpoint on, until reading ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gazette_aio.client.appends.futures import finished_operation
from gazette_aio.consumer.application.commit import commit_of
from gazette_aio.consumer.transactions.consuming import SuspectingConsumer, consumer_of
from gazette_aio.consumer.transactions.explain import explained, step
from gazette_aio.consumer.transactions.finisher import Finisher
from gazette_aio.consumer.transactions.machine import Action, Durations, Phase, TransactionMachine
from gazette_aio.consumer.transactions.message_errors import RepeatedError
from gazette_aio.consumer.transactions.observer import report_of
from gazette_aio.consumer.transactions.produced import ProducedIntake
from gazette_aio.consumer.transactions.sources import SourceIntake
from gazette_aio.message import SequencerCheckpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gazette_aio.client.appends.futures import OpFuture
    from gazette_aio.consumer.application.hooks import Hooks
    from gazette_aio.consumer.application.shard import Shard
    from gazette_aio.consumer.application.store import Store
    from gazette_aio.consumer.transactions.acknowledgements import Acknowledgements
    from gazette_aio.consumer.transactions.message_errors import MessageErrors
    from gazette_aio.consumer.transactions.observer import TransactionObserver
    from gazette_aio.consumer.transactions.progress import ProgressCell
    from gazette_aio.message.reading.formats import JournalFormats
    from gazette_aio.protocol.consumer import Checkpoint, ShardSpec

SLICE_SECONDS: Final = 0.005
"""Time for which messages are consumed before the event loop has a turn."""


def durations_of(spec: ShardSpec) -> Durations:
    """Return the durations of the transactions of a shard."""
    return Durations(
        spec.min_txn_duration.ToNanoseconds() / 1e9,
        spec.max_txn_duration.ToNanoseconds() / 1e9,
        waits_for_acks=not spec.disable_wait_for_ack,
    )


@dataclass(frozen=True, slots=True)
class Assignment:
    """State that outlasts the runs of an assignment."""

    shard: Shard
    hooks: Hooks
    store: Store
    progress: ProgressCell
    observer: TransactionObserver
    publish_clock: Callable[[], int]
    """Returns the time of published messages, in nanoseconds of Unix."""
    recovery_log: str
    """Journal of the recovery log, whose appends no commit waits for; or empty."""
    formats: JournalFormats[Any]
    acknowledgements: Acknowledgements
    errors: MessageErrors


class TransactionRun:
    """Transactions from one checkpoint on, until reading ends."""

    def __init__(self, assignment: Assignment, checkpoint: Checkpoint) -> None:
        self.sources: frozenset[str] = frozenset()
        """Journals that the framework reads."""
        self._assignment = assignment
        self._shard = shard = assignment.shard
        self._hooks = hooks = assignment.hooks
        self._store = store = assignment.store
        self._publisher = shard.publisher
        self._block = shard.publisher.block(f"the transaction of shard {shard.id}")
        self._acks = assignment.acknowledgements
        self._intents = dict(checkpoint.ack_intents)
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time
        self._errors = errors = assignment.errors
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None
        wake = self._wake.set
        self._intake: SourceIntake | ProducedIntake
        if hooks.is_producer:
            self._intake = ProducedIntake(
                hooks, shard, store, checkpoint, wake=wake, clock=self._clock
            )
        else:
            self._intake = SourceIntake(
                shard.client, shard.spec, checkpoint, assignment.formats, errors=errors, wake=wake
            )
            self.sources = frozenset(self._intake.offsets)
        offsets = SequencerCheckpoint.from_proto(checkpoint).offsets
        durations = durations_of(shard.spec)
        self._machine = TransactionMachine(self._intake, offsets, durations, self._clock())
        consumer = consumer_of(hooks, shard, store, self._publisher, self._clock)
        self._consumer = SuspectingConsumer(consumer, errors, self._publisher)
        self._finisher = Finisher(hooks, shard, store)
        self._commit: OpFuture[None] = finished_operation()
        self._watched: list[OpFuture[Any]] = []
        self._failed: Exception | None = None  # Failure of the prior transaction.
        self._is_begun = False  # Whether `finished_txn()` is due.
        self._started: OpFuture[None] | None = None  # Commit of the transaction that's begun.

    @property
    def has_read(self) -> bool:
        """Whether a MessageProducer has read any message, or the framework reads."""
        return not isinstance(self._intake, ProducedIntake) or self._intake.has_read

    async def run(self) -> None:
        """Run transactions until reading has ended, and all is acknowledged.

        Raises:
            RepeatedError: The current transaction was given up, and the prior one is acknowledged.
            TransactionError: A transaction failed.

        Cancellation: aborts — the current transaction fails, and the prior one may still commit.
        """
        # Invariant: recovered acknowledgements are first in line in their journals.
        await self._acks.append_recovered(self._intents)
        self._watch(self._acks.pending)
        self._block.begin()
        try:
            self._intake.start()
            await self._run()
        except BaseException as error:
            if isinstance(error, RepeatedError):
                self._publisher.abandon()
            # The hook, and tasks that wait to publish, would wait until the end of the block.
            # No traceback of a cancellation is kept: its frames lead to the publisher.
            is_cancelled = isinstance(error, asyncio.CancelledError)
            self._block.fail(asyncio.CancelledError() if is_cancelled else error)
            if self._is_begun:
                self._is_begun = False
                # If it started to commit, it may have succeeded nevertheless.
                await self._finisher.failed(self._started or finished_operation(error))
            if isinstance(error, RepeatedError):
                # Invariant: the store has no commit under way when it's restored.
                while self._machine.prior.phase is not Phase.ACKNOWLEDGED:
                    self._wake.clear()
                    if self._failed is not None:
                        raise self._failed from None
                    await self._wake.wait()
            raise
        finally:
            self._block.end()

    async def aclose(self) -> None:
        """End reading, and forget the prior transaction, which may still commit.

        Cancellation: safe — reading ends anyway.
        """
        for future in self._watched:
            future.remove_done_callback(self._observe)
        self._watched = []
        self._set_timer(None)
        await self._intake.aclose()

    async def _run(self) -> None:
        machine, intake, clock = self._machine, self._intake, self._clock
        slice_end = clock() + SLICE_SECONDS
        while True:
            now = clock()
            if now >= slice_end:
                await asyncio.sleep(0)
                slice_end = (now := clock()) + SLICE_SECONDS
            # Race: from here on to `_wait()` nothing is awaited, so that no event is missed.
            self._wake.clear()
            if self._failed is not None:
                raise self._failed
            match machine.next(now):
                case Action.CONSUME:
                    await self._consume(slice_end)
                case Action.ADVANCE:
                    if (passed := intake.advance()) and machine.passed(*passed):
                        self._assignment.progress.update(dict((passed,)))
                case Action.WAIT:
                    await self._wait()
                    slice_end = clock() + SLICE_SECONDS
                case Action.BEGIN:
                    await self._begin()
                case Action.COMMIT:
                    await self._start_commit()
                case Action.READ_AGAIN:
                    await intake.read_again()
                case Action.DRAINED:
                    return

    async def _consume(self, slice_end: float) -> None:
        machine, intake = self._machine, self._intake
        deadline, ready = machine.deadline, intake.ready
        end = slice_end if deadline is None else min(slice_end, deadline)
        is_first = not machine.current.messages
        count, is_deferred = await self._consumer.consume(ready, end, is_first=is_first)
        size = sum(each.end - each.begin for each in ready[:count])
        intake.consumed(count)
        machine.consumed(count, size)
        if is_deferred:
            machine.deferred()

    async def _wait(self) -> None:
        self._set_timer(self._machine.deadline)
        await self._wake.wait()

    def _set_timer(self, at: float | None) -> None:
        """Have `at` end the next wait."""
        if at == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = None if at is None else self._loop.call_at(at, self._ring)

    def _ring(self) -> None:
        # Race: an event loop may call this ahead of time, by its resolution. It's armed again then.
        self._timer = self._timer_at = None
        self._wake.set()

    # Begin and end of transactions.

    async def _begin(self) -> None:
        with step("begin_txn()"):
            await self._hooks.begin_txn(self._shard, self._store)
        self._is_begun = True
        self._publisher.clock.update(self._assignment.publish_clock())
        self._machine.begun(self._clock())

    async def _start_commit(self) -> None:
        self._machine.preparing(self._clock())
        offsets, intents, commit = await self._prepare()
        now = self._clock()
        await self._acks.append(intents, commit, self._publisher.producer_id)
        self._block.reopen()
        self._commit = commit
        self._machine.prepared(offsets, durations_of(self._shard.spec), now)
        self._set_timer(None)
        self._is_begun, self._started = False, None
        self._errors.committing()
        self._watch((commit, *self._acks.pending))
        with step("finished_txn()"):
            await self._finisher.committing(commit)
            await self._block.require_awaited()  # No later transaction may look at its calls.

    async def _prepare(self) -> tuple[dict[str, int], list[Any], OpFuture[None]]:
        shard, publisher = self._shard, self._publisher
        with step("finalize_txn()"):
            await self._hooks.finalize_txn(shard, self._store, publisher)
        checkpoint = self._intake.checkpoint()
        with step("publishing"):
            # Invariant: nothing is published between messages and their acknowledgements.
            await self._block.seal()
            intents = publisher.build_ack_intents()
        proto = checkpoint.to_proto(dict(intents))
        # Invariant: the commit waits for all appends that messages of the transaction caused, so
        # that no offset passes a message whose effects may be lost.
        wait_for = shard.appends.pending_except(self._assignment.recovery_log)
        with step("start_commit()"):
            commit = self._started = commit_of(self._store.start_commit(shard, proto, wait_for))
            if commit.done() and (error := commit.exception()) is not None:
                raise error
        return checkpoint.offsets, intents, commit

    # The prior transaction.

    def _watch(self, futures: Iterable[OpFuture[Any]]) -> None:
        self._watched = [future for future in futures if not future.done()]
        for future in self._watched:
            future.add_done_callback(self._observe)
        self._observe()

    def _observe(self, _: object = None) -> None:
        """Look at the prior transaction, even while a hook is running."""
        machine, prior = self._machine, self._machine.prior
        try:
            if prior.phase is Phase.COMMITTING:
                if not self._commit.done():
                    return
                if (error := self._commit.exception()) is not None:
                    raise explained("commit of the store", error)
                machine.committed(self._clock())
            if prior.phase is Phase.ACKNOWLEDGING and self._acks.are_appended():
                acknowledged = machine.acknowledged(self._clock())
                self._assignment.progress.update(acknowledged.offsets, self._acks.ends())
                if not acknowledged.is_restored:
                    self._assignment.observer.acknowledged(report_of(acknowledged))
        except Exception as error:  # noqa: BLE001 - raised by the loop.
            self._failed = error
        self._wake.set()
