"""Uncommitted messages of a Publisher, which are acknowledged together or abandoned."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from gazette_aio.protocol.errors import DependencyError, OperationTimeoutError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gazette_aio.client import AsyncJournalClient
    from gazette_aio.client.appends.journal_errors import ClearedError
    from gazette_aio.message.publishing.backlog import Backlog
    from gazette_aio.message.publishing.intent_record import AckIntent
    from gazette_aio.message.publishing.routes import Journals
    from gazette_aio.message.uuid import Clock

_logger = logging.getLogger(__name__)


class Uncommitted:
    """The uncommitted messages of a Publisher.

    Args:
        appends: Service that appends them.
        journals: Journals of the Publisher.
        clock: Its clock.
        backlog: Messages that are queued.
    """

    def __init__(
        self, appends: AsyncJournalClient, journals: Journals, clock: Clock, backlog: Backlog
    ) -> None:
        self.appends = appends
        self.backlog = backlog
        self._journals = journals
        self._clock = clock

    def acknowledge(self) -> list[AckIntent]:
        """Return acknowledgements of the messages, and forget these.

        Raises:
            Exception: The adapter raises it. Nothing is forgotten.
        """
        return self._journals.acknowledge(self._clock)

    def abandon(self) -> None:
        """Forget the messages, take a fresh producer ID, and roll back what can be at once."""
        # Invariant: whatever fails below, no acknowledgement is built for these messages any more.
        self.backlog.abandon()
        for state, clock in self._journals.abandon():
            if clock <= 0:
                continue  # No acknowledgement rolls back: a zero clock is always committed.
            try:
                self.appends.try_append(state.journal, state.acknowledgement(clock))
            except Exception as error:  # noqa: BLE001 - readers can do without it.
                extra = {"journal": state.journal, "producer": state.producer.hex()}
                _logger.warning("can't roll back uncommitted messages: %s", error, extra=extra)

    @property
    def is_empty(self) -> bool:
        """Whether no messages are pending or queued."""
        return not (self._journals.pending or self.backlog)

    async def flush(self) -> None:
        """Wait until the broker has written the messages.

        Raises:
            GazetteError: An append failed, or may have failed whose error was cleared.

        Cancellation: safe.
        """
        for error in (await self.failures()).values():
            raise error

    async def failures(self) -> dict[str, Exception]:
        """Wait until the broker has written the messages, and return errors by journal.

        Cancellation: safe.
        """
        failed: dict[str, Exception] = {}
        late: OperationTimeoutError | None = None
        pending = [state for state in self._journals.pending if state.last is not None]
        for state in pending:
            last = state.last
            assert last is not None
            # Invariant: appends of one journal complete in order, and fail all later ones, until
            # the error is cleared or passed over, which `_missing()` finds.
            if late is not None and not last.done():
                failed[state.journal] = late  # All of them have waited as long.
                continue
            try:
                await last
            except Exception as error:  # noqa: BLE001 - the caller raises it.
                failed[state.journal] = error
                if isinstance(error, OperationTimeoutError):
                    late = error
        for missed in self._missing():
            failed.setdefault(*missed)
        return failed

    def check(self) -> None:
        """Raise if messages may be missing, since an append of a journal failed.

        Raises:
            DependencyError: One failed after the first message, though later ones succeeded.
        """
        for _, error in self._missing():
            raise error

    def _missing(self) -> Iterator[tuple[str, DependencyError]]:
        for state in self._journals.pending:
            cleared = self.appends.cleared_error(state.journal)
            if cleared is not state.cleared_error:
                yield state.journal, missing(state.journal, cleared)

    def __repr__(self) -> str:
        journals = len(self._journals.pending)
        return f"<Uncommitted of {self._journals.producer.hex()} in {journals} journals>"


def missing(journal: str, cleared: ClearedError | None) -> DependencyError:
    """Return the error of messages that may be missing, as an append failed."""
    assert cleared is not None, "an error which was cleared is never forgotten"
    error = DependencyError(
        f"messages to {journal} may be missing, as an append failed: {cleared.error}"
    )
    error.__cause__ = cleared.error
    return error
