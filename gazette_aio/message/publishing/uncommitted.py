"""Uncommitted messages of a Publisher, which are acknowledged together or abandoned."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from gazette_aio.protocol.errors import DependencyError

if TYPE_CHECKING:
    from gazette_aio.client import AsyncJournalClient
    from gazette_aio.client.appends.journal_errors import ClearedError
    from gazette_aio.message.publishing.intent_record import AckIntent
    from gazette_aio.message.publishing.routes import Routes
    from gazette_aio.message.uuid import Clock

_logger = logging.getLogger(__name__)


class Uncommitted:
    """The uncommitted messages of a Publisher.

    Args:
        appends: Service which appends them.
        routes: Routes of the Publisher.
        clock: Its clock.
    """

    def __init__(self, appends: AsyncJournalClient, routes: Routes[Any], clock: Clock) -> None:
        self.appends = appends
        self._routes = routes
        self._clock = clock

    def acknowledge(self) -> list[AckIntent]:
        """Return acknowledgements of the messages, and forget these.

        Raises:
            Exception: The adapter raises it. Nothing is forgotten.
        """
        return self._routes.acknowledge(self._clock)

    def abandon(self) -> None:
        """Forget the messages, take a fresh producer ID, and roll back what can be at once."""
        # Invariant: whatever fails below, no acknowledgement is built for these messages any more.
        for route, clock in self._routes.abandon():
            if clock <= 0:
                continue  # No acknowledgement rolls back: a zero clock is always committed.
            try:
                self.appends.try_append(route.journal, self._routes.acknowledgement(route, clock))
            except Exception as error:  # noqa: BLE001 - readers can do without it.
                extra = {"journal": route.journal, "producer": route.producer.hex()}
                _logger.warning("can't roll back uncommitted messages: %s", error, extra=extra)

    async def flush(self) -> None:
        """Wait until the broker has written the messages.

        Cancellation: safe.

        Raises:
            GazetteError: If an append failed, or may have failed whose error was cleared.
        """
        for route in list(self._routes.pending):
            # Invariant: appends of one journal complete in order, and fail all later ones, until
            # somebody clears the error.
            if route.last is not None:
                await route.last
            cleared = self.appends.cleared_error(route.journal)
            if cleared is not route.cleared_error:
                raise missing(route.journal, cleared)

    def __repr__(self) -> str:
        journals = len(self._routes.pending)
        return f"<Uncommitted of {self._routes.producer.hex()} in {journals} journals>"


def missing(journal: str, cleared: ClearedError | None) -> DependencyError:
    """Return the error of messages which may be missing, as an error was cleared."""
    assert cleared is not None, "an error which was cleared is never forgotten"
    error = DependencyError(
        f"messages to {journal} may be missing, as an error of its appends was cleared: "
        f"{cleared.error}"
    )
    error.__cause__ = cleared.error
    return error
