"""Loop of a shard's primary: transactions from one checkpoint on, and restarts between readings."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from gazette_aio.aio.finish import finish
from gazette_aio.aio.frames import forget_frames
from gazette_aio.client.appends.futures import finished_operation
from gazette_aio.consumer.application.commit import commit_of
from gazette_aio.consumer.transactions.acknowledgements import Acknowledgements
from gazette_aio.consumer.transactions.consuming import HookCaller
from gazette_aio.consumer.transactions.explain import explained, explaining
from gazette_aio.consumer.transactions.finisher import Finisher
from gazette_aio.consumer.transactions.machine import Action, Durations, TransactionMachine
from gazette_aio.consumer.transactions.message_errors import MessageErrors, RepeatedError
from gazette_aio.consumer.transactions.produced import ProducedIntake
from gazette_aio.consumer.transactions.sources import SourceIntake
from gazette_aio.message import SequencerCheckpoint
from gazette_aio.message.reading.formats import JournalFormats

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterable

    from gazette_aio.client.appends.futures import OpFuture
    from gazette_aio.consumer.application.hooks import Hooks
    from gazette_aio.consumer.application.shard import Shard
    from gazette_aio.consumer.application.store import Store
    from gazette_aio.consumer.transactions.machine import Transaction
    from gazette_aio.consumer.transactions.progress import ProgressCell
    from gazette_aio.protocol.consumer import Checkpoint, ShardSpec

_logger = logging.getLogger(__name__)

SLICE_SECONDS: Final = 0.005
"""Time for which messages are consumed before the event loop has a turn."""

_FIRST_PAUSE: Final = 0.1
_LAST_PAUSE: Final = 5.0


class PrimaryLoop:
    """The loop of a shard's primary, which reads messages and runs transactions.

    It has a task for each source. Only one `run()` is made.

    Args:
        shard: The shard. Its publisher must have a clock of its own.
        hooks: Hooks of the application.
        store: Store of the shard, whose checkpoint was restored.
        progress: Told of the progress of acknowledged transactions.
        observers: Called with the shard's key and each transaction that is acknowledged. They must
            neither raise nor block.
        on_decision: Called with the shard's key and what is decided about a message that can't be
            consumed: `fail`, `retry`, `skip` or `dead_letter`; None for nobody.
        publish_clock_delta: Returns what to add to the time of published messages.
        recovery_log: Journal of the shard's recovery log, whose appends no commit waits for; or
            empty.
        clock_ns: Returns the time of published messages, in nanoseconds of Unix.
        renew_publisher: Gives the shard another publisher, whenever a transaction was given up to
            be repeated, after the end of its appends.
    """

    def __init__(
        self,
        shard: Shard,
        hooks: Hooks,
        store: Store,
        *,
        progress: ProgressCell,
        observers: Iterable[Callable[[str, Transaction], object]] = (),
        on_decision: Callable[[str, str], object] | None = None,
        publish_clock_delta: Callable[[], timedelta] = timedelta,
        recovery_log: str = "",
        clock_ns: Callable[[], int] = time.time_ns,
        renew_publisher: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self.sources: frozenset[str] = frozenset()
        """Journals that the framework reads now, which may not be those of the present spec.

        It's empty if the application is a MessageProducer.
        """
        self._shard = shard
        self._hooks = hooks
        self._store = store
        self._progress = progress
        self._observers = tuple(observers)
        self._publish_clock_delta = publish_clock_delta
        self._recovery_log = recovery_log
        self._clock_ns = clock_ns
        self._renew_publisher = renew_publisher
        self._formats = JournalFormats[Any](hooks.application.adapter)
        self._acks = Acknowledgements(shard.appends)
        self._errors = MessageErrors(hooks, shard, on_decision)
        self._finisher = Finisher(hooks, shard, store)
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None
        self._commit: OpFuture[None] = finished_operation()
        self._watched: OpFuture[Any] | None = None  # What the prior transaction waits for.
        self._failed: Exception | None = None  # Failure of the prior transaction.
        self._is_begun = False  # Whether `finished_txn()` is due.
        self._started: OpFuture[None] | None = None  # Commit of the transaction that's begun.

    async def run(self, checkpoint: Checkpoint) -> None:
        """Run transactions until cancelled, or until one fails.

        After a MessageProducer ended its reading, and all is committed and acknowledged, the
        store's checkpoint is restored, and reading begins again: at once, or after
        a pause if two readings in a row were without a message. So it does if a transaction is
        repeated because of a message, after the pause that was decided.

        Args:
            checkpoint: Checkpoint that was restored from the store.

        Raises:
            TransactionError: A transaction failed, or the checkpoint can't be restored.

        Cancellation: aborts — the transaction isn't committed, unless it has started to commit.
        """
        pauses = _pauses()
        while True:
            pause: float | None = None
            try:
                has_read = await self._run_from(checkpoint)
            except RepeatedError as repeated:
                has_read, pause = True, repeated.seconds
                forget_frames(repeated)
            if pause is not None and self._renew_publisher is not None:
                # Another publisher, so that what the failed hook has left behind can't publish.
                await self._renew_publisher()
            if has_read:
                pauses = _pauses()
            elif seconds := next(pauses):
                extra = {"shard": self._shard.id, "seconds": seconds}
                _logger.info("read_messages() ended again without a message", extra=extra)
                await asyncio.sleep(seconds)
            with explaining("restore_checkpoint()"):
                checkpoint = await self._store.restore_checkpoint(self._shard)
            await asyncio.sleep(pause or 0.0)

    async def _run_from(self, checkpoint: Checkpoint) -> bool:
        """Run transactions until reading has ended, and return whether it read any message.

        Raises:
            RepeatedError: The current transaction was given up, and the prior one is acknowledged.
            TransactionError: A transaction failed.
        """
        shard, hooks, store, errors = self._shard, self._hooks, self._store, self._errors
        wake, clock = self._wake.set, asyncio.get_running_loop().time
        self._clock = clock
        self._publisher = publisher = shard.publisher
        self._block = publisher.block(f"the transaction of shard {shard.id}")
        self._intake: SourceIntake | ProducedIntake
        if hooks.producer is None:
            self._intake = SourceIntake(
                shard.client, shard.spec, checkpoint, self._formats, errors=errors, wake=wake
            )
            self.sources = frozenset(self._intake.offsets)
        else:
            self._intake = ProducedIntake(
                hooks.producer, shard, store, checkpoint, wake=wake, clock=clock
            )
        self._caller = HookCaller(hooks, shard, store, errors, clock)
        offsets = SequencerCheckpoint.from_proto(checkpoint).offsets
        self._machine = TransactionMachine(self._intake, offsets, durations_of(shard.spec), clock())
        try:
            # Invariant: recovered acknowledgements are first in line in their journals.
            await self._acks.append_recovered(dict(checkpoint.ack_intents))
            await self._run_to_end()
        except BaseException:
            try:
                await finish(self._end_reading())
            except Exception:  # The first error says why the shard fails.
                extra = {"shard": shard.id}
                _logger.warning("failed to end reading", exc_info=True, extra=extra)
            raise
        await self._end_reading()
        return self._intake.has_read

    async def _run_to_end(self) -> None:
        self._observe()
        self._block.begin()
        try:
            self._intake.start()
            await self._act()
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
                while self._machine.prior.acknowledged is None:
                    self._wake.clear()
                    if self._failed is not None:
                        raise self._failed from None
                    await self._wake.wait()
            raise
        finally:
            self._block.end()

    async def _end_reading(self) -> None:
        """End reading, and forget the prior transaction, which may still commit.

        Cancellation: safe — reading ends anyway.
        """
        if self._watched is not None:
            self._watched.remove_done_callback(self._observe)
        self._set_timer(None)
        await self._intake.aclose()

    async def _act(self) -> None:
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
                        self._progress.update(dict((passed,)))
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
        count, is_deferred = await self._caller.consume(ready, end, is_first=is_first)
        size = sum(each.end - each.begin for each in ready[:count])
        intake.consumed(count)
        machine.consumed(count, size, is_deferred=is_deferred)

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
        self._timer = None if at is None else asyncio.get_running_loop().call_at(at, self._ring)

    def _ring(self) -> None:
        # Race: an event loop may call this ahead of time, by its resolution. It's armed again then.
        self._timer = self._timer_at = None
        self._wake.set()

    # Begin and end of transactions.

    async def _begin(self) -> None:
        with explaining("begin_txn()"):
            await self._hooks.begin_txn(self._shard, self._store)
        self._is_begun = True
        delta = self._publish_clock_delta() // timedelta(microseconds=1) * 1000
        self._publisher.clock.update(self._clock_ns() + delta)
        self._machine.begun(self._clock())

    async def _start_commit(self) -> None:
        shard, publisher = self._shard, self._publisher
        since = self._clock()
        with explaining("finalize_txn()"):
            await self._hooks.finalize_txn(shard, self._store, publisher)
        checkpoint = self._intake.checkpoint()
        with explaining("publishing"):
            # Invariant: nothing is published between messages and their acknowledgements.
            await self._block.seal()
            intents = publisher.build_ack_intents()
        proto = checkpoint.to_proto(dict(intents))
        # Invariant: the commit waits for all appends that messages of the transaction caused, so
        # that no offset passes a message whose effects may be lost.
        wait_for = shard.appends.pending_except(self._recovery_log)
        with explaining("start_commit()"):
            commit = commit_of(self._store.start_commit(shard, proto, wait_for))
            self._started = commit
            if commit.done() and (error := commit.exception()) is not None:
                raise error
        now = self._clock()
        await self._acks.append(intents, commit, publisher.producer_id)
        self._block.reopen()
        self._commit = commit
        durations = durations_of(shard.spec)
        self._machine.prepared(checkpoint.offsets, durations, since=since, now=now)
        self._set_timer(None)
        self._is_begun, self._started = False, None
        self._errors.committing()
        self._observe()
        with explaining("finished_txn()"):
            await self._finisher.committing(commit)
            await self._block.require_awaited()  # No later transaction may look at its calls.

    # The prior transaction.

    def _observe(self, _: object = None) -> None:
        """Look at the prior transaction, even while a hook is running."""
        machine, prior = self._machine, self._machine.prior
        try:
            if prior.committed is None:
                if not self._commit.done():
                    self._watch(self._commit)
                    return
                if (error := self._commit.exception()) is not None:
                    raise explained("commit of the store", error)
                machine.committed(self._clock())
            if prior.acknowledged is None:
                if (append := self._acks.next_pending()) is not None:
                    self._watch(append)
                    return
                machine.acknowledged(self._clock())
                self._progress.update(prior.read_through, self._acks.ends())
                if not prior.is_restored:
                    for observer in self._observers:
                        observer(self._shard.fqn, prior)
        except Exception as error:  # noqa: BLE001 - raised by the loop.
            self._failed = error
        self._wake.set()

    def _watch(self, future: OpFuture[Any]) -> None:
        self._watched = future
        future.add_done_callback(self._observe)


def durations_of(spec: ShardSpec) -> Durations:
    """Return the durations of the transactions of a shard."""
    return Durations(
        spec.min_txn_duration.ToNanoseconds() / 1e9,
        spec.max_txn_duration.ToNanoseconds() / 1e9,
        waits_for_acks=not spec.disable_wait_for_ack,
    )


def _pauses() -> Generator[float]:
    """Yield the seconds to pause after each of some readings in a row without a message.

    Readings that end at once, again and again, would keep the process busy.
    """
    yield 0.0
    pause = _FIRST_PAUSE
    while True:
        yield pause
        pause = min(2 * pause, _LAST_PAUSE)
