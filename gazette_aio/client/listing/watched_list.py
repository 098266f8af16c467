"""Listings which are kept up to date, and those who wait for newer ones."""

from __future__ import annotations

import asyncio
import warnings
from typing import TYPE_CHECKING, ClassVar, Final, Self

import gazette_aio.protocol as pb
from gazette_aio.aio.owner import Owner
from gazette_aio.client.listing.calls import in_slices, list_request
from gazette_aio.client.listing.changes import ListChanges, changes_between
from gazette_aio.client.listing.follower import FollowerOptions, PollFollower, WatchFollower
from gazette_aio.client.status import WatchStatus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from gazette_aio.client.client import JournalClient
    from gazette_aio.client.retry import RetryPolicy

POLL_INTERVAL: Final = 60.0
"""Seconds between listings, where watches aren't known."""

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
        self._next = asyncio.Event()

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

        Cancellation: safe.

        Raises:
            Exception: What the watch failed of.
            RuntimeError: It didn't begin.
        """
        if self.state == _NOT_BEGUN:
            raise RuntimeError("the list of journals isn't entered: use `async with`")
        while self.version <= version:
            if self._is_closed:
                return False
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            # Race: an event of its own for each listing, since who sets and clears a shared one
            # may do so before all have woken up.
            await self._next.wait()
        return True

    def _wake(self) -> None:
        self._next.set()
        self._next = asyncio.Event()
        if self._changed is not None:
            self._changed.set()


class _Updates:
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


class _Changes:
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
            changes = await in_slices(changes_between(before, listing))
            self._seen, self._before = version, listing
            if changes or before is None:
                return changes
        raise StopAsyncIteration


class WatchedList(Owner):
    """The journals which a selector matches, kept up to date by a watch of the broker.

    It's an async context manager, and works while that is entered. Failures are retried, and the
    newest listing remains of use meanwhile. Changes of routes aren't watched. Brokers up to v0.99,
    which don't know watches, are asked once in a while.

    Args:
        client: Client to use. It must be closed later than this.
        selector: A selector, its text, or a request, of which nothing but the selector is used.
        changed: Set whenever there is a newer listing, or the list failed. Several lists may share
            it. Who waits for it clears it.
        on_error: Called with each error which will be retried, but for streams which end in order.
            It must not block.
        poll_interval: Seconds between listings of a broker which doesn't know watches.
        retry_policy: Which failures to retry; None for the policy of the client.

    Example:
        async with client.watch("app.gazette.dev/message-type=Event") as partitions:
            await partitions.ready()
            mapping = random_mapping(partitions.list)

    Raises:
        ValidationError: The selector is invalid.
        ConfigurationError: Another argument is.
    """

    _follower: ClassVar[type[PollFollower]] = WatchFollower

    def __init__(
        self,
        client: JournalClient,
        selector: pb.ListRequest | pb.LabelSelector | str = "",
        *,
        changed: asyncio.Event | None = None,
        on_error: Callable[[pb.GazetteError], None] | None = None,
        poll_interval: float = POLL_INTERVAL,
        retry_policy: RetryPolicy | None = None,
    ) -> None:
        if not poll_interval > 0:  # Nor is what isn't a number.
            raise pb.ConfigurationError("poll_interval must be positive")
        if isinstance(selector, pb.ListRequest):
            selector = selector.selector
        request = list_request(selector)
        self._selector = pb.format_label_selector(request.selector)
        self._client = client
        self._feed = ListFeed(changed)
        self._task: asyncio.Task[None] | None = None
        options = FollowerOptions(
            client, request, on_error, poll_interval, retry_policy or client.retry_policy
        )
        self._run = self._follower(options, self._feed).run

    @property
    def last_error(self) -> Exception | None:
        """The last error, or None if all went well since."""
        return self._feed.last_error

    def list(self) -> pb.ListResponse | None:
        """Return the newest listing, or None if there is none yet.

        It's the same object while nothing changes, and must not be modified.
        """
        return self._feed.listing

    async def ready(self) -> pb.ListResponse:
        """Wait for the first listing, and return the newest one.

        Cancellation: safe.

        Raises:
            GazetteError: It failed, and isn't retried.
            RuntimeError: The list isn't entered, or was closed.
        """
        if not await self._feed.newer_than(0):
            raise RuntimeError(f"{self!r} is closed")
        listing = self._feed.listing
        assert listing is not None
        return listing

    def updates(self) -> AsyncIterator[pb.ListResponse]:
        """Iterate the newest listings: the present one, and then those which come.

        Each iterator yields each listing at most once. One which is slow leaves out some, but
        never the last. Iterations end when the list is closed, and raise what it failed of before.
        A cancelled `anext()` loses nothing.
        """
        return _Updates(self._feed, self)

    def changes(self) -> AsyncIterator[ListChanges]:
        """Iterate what differs between listings, as `updates()` does listings.

        The first step always comes, and has all journals as added ones.
        """
        return _Changes(self._feed, self)

    @property
    def is_live(self) -> bool:
        """Whether it's entered and not closed."""
        return self._task is not None and self._feed.state != "closed"

    def status(self) -> WatchStatus:
        """Return how it gets on."""
        listing, error = self.list(), self.last_error
        return WatchStatus(
            selector=self._selector,
            state=self._feed.state,
            journals=None if listing is None else len(listing.journals),
            revision=None if listing is None else listing.header.etcd.revision,
            last_error=None if error is None else str(error),
        )

    async def aclose(self) -> None:
        """End the watch. What was listed remains. Idempotent.

        Cancellation: safe — the watch ends anyway.
        """
        self._feed.close()
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def __aenter__(self) -> Self:
        self._feed.begin()
        self._client.watches.add(self)
        name = f"gazette watch {self._selector}"
        self._task = asyncio.create_task(self._run(), name=name)
        return self

    def __del__(self) -> None:
        task = getattr(self, "_task", None)
        if task is None or task.done() or task.get_loop().is_closed():
            return
        warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=2)
        task.get_loop().call_soon_threadsafe(task.cancel)

    def __repr__(self) -> str:
        listing = self.list()
        shown = "no listing yet"
        if listing is not None:
            count, revision = len(listing.journals), listing.header.etcd.revision
            shown = f"{count} journals as of revision {revision}"
        error = f", {self.last_error!r}" if self.last_error is not None else ""
        return f"<{type(self).__name__} of {self._selector!r}, {self._feed.state}, {shown}{error}>"


class PolledList(WatchedList):
    """The journals which a selector matches, listed again every `poll_interval` seconds.

    Unlike a watch it also notices changes of routes, which the client then knows. The first
    listing fails as `list_all_journals()` does. Every one after it is an update, even if nothing
    changed, which is to be told by the listing being the same object. When one fails the list
    tries again, sooner than the interval.
    """

    _follower: ClassVar[type[PollFollower]] = PollFollower
