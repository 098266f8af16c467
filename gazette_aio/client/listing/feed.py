"""Transfer of listings from the task that makes them to any number of consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from gazette_aio.aio.signal import Signal
from gazette_aio.aio.turns import in_turns
from gazette_aio.client.listing.changes import changes_between
from gazette_aio.protocol.errors import UsageError

if TYPE_CHECKING:
    import asyncio

    import gazette_aio.protocol as pb
    from gazette_aio.client.listing.changes import ListChanges

_NOT_BEGUN: Final = "not entered"


class ListFeed:
    """The newest listing, which one task sets and other tasks await.

    Args:
        changed: Set with each new listing, and at the end.
    """

    def __init__(self, changed: asyncio.Event | None) -> None:
        self.listing: pb.ListResponse | None = None
        self.version: int = 0
        """Number of listings published so far."""
        self.state: str = _NOT_BEGUN
        self.last_error: Exception | None = None
        self._changed = changed
        self._failure: Exception | None = None
        self._is_closed = False
        self._next = Signal()

    def begin(self) -> None:
        """Note that listings follow.

        Raises:
            UsageError: This was noted before.
        """
        if self.state != _NOT_BEGUN:
            raise UsageError("a list of journals can't be entered twice")
        self.state = "connecting"

    def publish(self, listing: pb.ListResponse) -> None:
        """Make a listing the newest one."""
        self.listing = listing
        self.version += 1
        self._wake()

    def fail(self, error: Exception) -> None:
        """Note that an error ends the listings."""
        self.state = "failed"
        self.last_error = self._failure = error
        self._wake()

    def close(self) -> None:
        """Note that the listings end, because they aren't needed any more. Idempotent."""
        self.state = "closed"
        self._is_closed = True
        self._wake()

    async def newer_than(self, version: int) -> bool:
        """Wait for a listing newer than `version`; return False if the listings have ended.

        Raises:
            Exception: The error that ended the listings.
            UsageError: The listings haven't begun.

        Cancellation: safe.
        """
        if self.state == _NOT_BEGUN:
            raise UsageError("the list of journals isn't entered: use `async with`")
        while self.version <= version:
            if self._is_closed:
                return False
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            await self._next.wait()
        return True

    def _wake(self) -> None:
        self._next.set()
        if self._changed is not None:
            self._changed.set()


class _Iteration:
    """Iteration of listings, with its own position.

    Args:
        feed: Source of listings.
        owner: Owner of the feed, which stays alive during the iteration.
    """

    # Not a generator, which would end when a waiting `anext()` is cancelled.
    def __init__(self, feed: ListFeed, owner: object) -> None:
        self._feed = feed
        self._owner = owner
        self._seen = 0

    def __aiter__(self) -> Self:
        return self

    async def _newer(self) -> tuple[int, pb.ListResponse]:
        feed = self._feed
        if not await feed.newer_than(self._seen):
            raise StopAsyncIteration
        assert feed.listing is not None
        return feed.version, feed.listing


class Updates(_Iteration):
    """Iterator of the newest listings."""

    async def __anext__(self) -> pb.ListResponse:
        """Wait for a newer listing. Cancellation: safe."""
        self._seen, listing = await self._newer()
        return listing


class Changes(_Iteration):
    """Iterator of the differences between the newest listing and that of the previous step."""

    _before: pb.ListResponse | None = None

    async def __anext__(self) -> ListChanges:
        """Wait for a listing that differs. Cancellation: safe."""
        while True:
            version, listing = await self._newer()
            before = self._before
            changes = await in_turns(changes_between(before, listing))
            self._seen, self._before = version, listing
            if changes or before is None:
                return changes
