"""Position of a watch, and how long to wait before it's begun again.

A watch resumes at the revision after the last event or notification of progress. The revision of
any other response is of the whole store, and may be ahead of events that are still on their way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gazette_aio.consumer.keyspace.errors import (
    CompactedError,
    StoreRefusedError,
    StoreUnavailableError,
)
from gazette_aio.consumer.keyspace.etcd import messages
from gazette_aio.consumer.keyspace.store import WatchResponse

if TYPE_CHECKING:
    from gazette_aio.consumer.keyspace.errors import KeyValueStoreError
    from gazette_aio.consumer.keyspace.etcd._generated import etcd_pb2 as pb
    from gazette_aio.consumer.keyspace.store import Event

_DENIED: Final = ("permission denied", "invalid auth token", "revision of auth store is old")
_SHORT_SECONDS: Final = 0.005
_MOST_SECONDS: Final = 5.0


class WatchDeniedError(StoreRefusedError):
    """The store refuses a watch because of its user, or because its token is outdated."""


def back_off_seconds(attempt: int) -> float:
    """Return the pause before an attempt, counted from 0 since the last response."""
    if attempt < 2:
        return 0.0
    return _SHORT_SECONDS if attempt == 2 else min(attempt - 1.0, _MOST_SECONDS)


class WatchCursor:
    """Where a watch is, over all its attempts.

    Args:
        revision: Revision of the first events.

    Attributes:
        revision: Revision to begin at, or to resume from.
        attempt: Attempts since the last response.
    """

    def __init__(self, revision: int) -> None:
        self.revision: int = revision
        self.attempt: int = 0
        self._fragments: list[Event] = []

    def begin(self) -> None:
        """Begin an attempt. Fragments of the earlier attempt come again."""
        self.attempt += 1
        self._fragments.clear()

    def receive(self, response: pb.WatchResponse) -> WatchResponse | None:
        """Take a response. Return it if it's complete, and has events or progress.

        Raises:
            CompactedError: The store has dropped the revision.
            WatchDeniedError: The store refuses the watch because of its user or token.
            StoreUnavailableError: The store has ended the watch, which may be begun again.
        """
        if response.canceled:
            raise _why_canceled(response)
        if response.created:
            return None
        events = messages.events(response.events)
        if response.fragment:
            self._fragments.extend(events)
            return None
        if self._fragments:
            events = (*self._fragments, *events)
            self._fragments.clear()
        header = messages.header(response.header)
        self.revision = (events[-1].mod_revision if events else header.revision) + 1
        self.attempt = 0
        return WatchResponse(header, events)


def _why_canceled(response: pb.WatchResponse) -> KeyValueStoreError:
    reason = response.cancel_reason
    if response.compact_revision:
        return CompactedError(response.compact_revision)
    if any(text in reason for text in _DENIED):
        return WatchDeniedError(reason)
    return StoreUnavailableError(f"Etcd has ended the watch: {reason or 'no reason given'}")
