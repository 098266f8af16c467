"""Loop of a shard's primary: runs of transactions, and restarts between them."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from gazette_aio.aio.finish import finish
from gazette_aio.aio.frames import forget_frames
from gazette_aio.consumer.transactions.acknowledgements import Acknowledgements
from gazette_aio.consumer.transactions.explain import step
from gazette_aio.consumer.transactions.message_errors import MessageErrors, RepeatedError
from gazette_aio.consumer.transactions.observer import Observers
from gazette_aio.consumer.transactions.run import Assignment, TransactionRun
from gazette_aio.message.reading.formats import JournalFormats

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    from gazette_aio.consumer.application.hooks import Hooks
    from gazette_aio.consumer.application.shard import Shard
    from gazette_aio.consumer.application.store import Store
    from gazette_aio.consumer.transactions.observer import TransactionObserver
    from gazette_aio.consumer.transactions.progress import ProgressCell
    from gazette_aio.protocol.consumer import Checkpoint

_logger = logging.getLogger(__name__)

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
        observer: Told of acknowledged transactions; None for nobody.
        publish_clock_delta: Returns what to add to the time of published messages.
        recovery_log: Journal of the shard's recovery log, or empty.
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
        observer: TransactionObserver | None = None,
        publish_clock_delta: Callable[[], timedelta] = timedelta,
        recovery_log: str = "",
        clock_ns: Callable[[], int] = time.time_ns,
        renew_publisher: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        observer = observer or Observers()
        self._renew_publisher = renew_publisher
        self._assignment = Assignment(
            shard,
            hooks,
            store,
            progress,
            observer,
            lambda: clock_ns() + _nanoseconds(publish_clock_delta()),
            recovery_log,
            JournalFormats(hooks.adapter),
            Acknowledgements(shard.appends),
            MessageErrors(hooks, shard, observer),
        )
        self._sources: frozenset[str] = frozenset()

    @property
    def sources(self) -> frozenset[str]:
        """Journals that the framework reads now, which may not be those of the present spec.

        It's empty if the application is a MessageProducer.
        """
        return self._sources

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
        assignment = self._assignment
        pauses = _pauses()
        while True:
            pause: float | None = None
            try:
                has_read = await self._run(checkpoint)
            except RepeatedError as repeated:
                has_read, pause = True, repeated.seconds
                forget_frames(repeated)
            if pause is not None and self._renew_publisher is not None:
                # Another publisher, so that what the failed hook has left behind can't publish.
                await self._renew_publisher()
            if has_read:
                pauses = _pauses()
            elif seconds := next(pauses):
                extra = {"shard": assignment.shard.id, "seconds": seconds}
                _logger.info("read_messages() ended again without a message", extra=extra)
                await asyncio.sleep(seconds)
            with step("restore_checkpoint()"):
                checkpoint = await assignment.store.restore_checkpoint(assignment.shard)
            await asyncio.sleep(pause or 0.0)

    async def _run(self, checkpoint: Checkpoint) -> bool:
        """Run transactions until reading has ended, and return whether it read any message."""
        run = TransactionRun(self._assignment, checkpoint)
        self._sources = run.sources
        try:
            await run.run()
        except BaseException:
            try:
                await finish(run.aclose())
            except Exception:  # The first error says why the shard fails.
                extra = {"shard": self._assignment.shard.id}
                _logger.warning("failed to end reading", exc_info=True, extra=extra)
            raise
        await run.aclose()
        return run.has_read


def _pauses() -> Generator[float]:
    """Yield the seconds to pause after each of some readings in a row without a message.

    Readings that end at once, again and again, would keep the process busy.
    """
    yield 0.0
    pause = _FIRST_PAUSE
    while True:
        yield pause
        pause = min(2 * pause, _LAST_PAUSE)


def _nanoseconds(delta: timedelta) -> int:
    return delta // timedelta(microseconds=1) * 1000
