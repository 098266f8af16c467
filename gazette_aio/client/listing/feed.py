"""Hand-over of listings from the task that makes them to any number of consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from gazette_aio.aio.signal import Signal
from gazette_aio.aio.turns import in_turns
from gazette_aio.client.listing.changes import changes_between

if TYPE_CHECKING:
    import asyncio

    import gazette_aio.protocol as pb
    from gazette_aio.client.listing.changes import ListChanges

_NOT_BEGUN: Final = "not entered"


class ListFeed:
    """Hands listings from one task, which makes them, to any others.

    Args:
        changed: Set whenever others should look again.
    """

    def __init__(self, changed: asyncio.Event | None) -> None:
        self.listing: pb.ListResponse | None = None
        self.version = 0
        """Raised by each listing which others should look at."""
        self.state = _NOT_BEGUN
        self.last_error: Exception | None = None
        self._changed = changed
        self._failure: Exception | None = None
        self._is_closed = False
        self._next = Signal()

    def begin(self) -> None:
        """Note that listings will come.

        Raises:
            RuntimeError: They did before.
        """
        if self.state != _NOT_BEGUN:
            raise RuntimeError("a list of journals can't be entered twice")
        self.state = "connecting"

    def publish(self, listing: pb.ListResponse) -> None:
        """Make a listing the newest one."""
        self.listing = listing
        self.version += 1
        self._wake()

    def fail(self, error: Exception) -> None:
        """Note that there will be no further listing, and why."""
        self.state = "failed"
        self.last_error = self._failure = error
        self._wake()

    def close(self) -> None:
        """Note that there will be no further listing, as nobody wants any. Idempotent."""
        self.state = "closed"
        self._is_closed = True
        self._wake()

    async def newer_than(self, version: int) -> bool:
        """Wait for a listing which is newer than `version`, and return False if none will be.

        Raises:
            Exception: What the watch failed of.
            RuntimeError: It didn't begin.

        Cancellation: safe.
        """
        if self.state == _NOT_BEGUN:
            raise RuntimeError("the list of journals isn't entered: use `async with`")
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


class Updates:
    """The newest listing, whenever there is a newer one. Each iterator has its own position.

    Args:
        feed: Where listings come from.
        owner: What keeps the feed going, for as long as it's being iterated.
    """

    # Not a generator, which would end when a waiting `anext()` is cancelled.
    __slots__ = ("_feed", "_owner", "_seen")

    def __init__(self, feed: ListFeed, owner: object) -> None:
        self._feed = feed
        self._owner = owner
        self._seen = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pb.ListResponse:
        """Wait for a newer listing. Cancellation: safe."""
        feed = self._feed
        if not await feed.newer_than(self._seen):
            raise StopAsyncIteration
        assert feed.listing is not None
        self._seen = feed.version
        return feed.listing


class Changes:
    """What differs between the newest listing and the one of the step before, which may be none.

    Args:
        feed: Where listings come from.
        owner: What keeps the feed going, for as long as it's being iterated.
    """

    __slots__ = ("_before", "_feed", "_owner", "_seen")

    def __init__(self, feed: ListFeed, owner: object) -> None:
        self._feed = feed
        self._owner = owner
        self._seen = 0
        self._before: pb.ListResponse | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ListChanges:
        """Wait for a listing which differs. Cancellation: safe."""
        feed = self._feed
        while await feed.newer_than(self._seen):
            version, listing, before = feed.version, feed.listing, self._before
            assert listing is not None
            changes = await in_turns(changes_between(before, listing))
            self._seen, self._before = version, listing
            if changes or before is None:
                return changes
        raise StopAsyncIteration
