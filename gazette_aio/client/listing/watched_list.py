"""Lists of journals that are kept up to date."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, ClassVar, Final, Self

import gazette_aio.protocol as pb
from gazette_aio.aio.owner import Owner
from gazette_aio.aio.task import OwnedTask
from gazette_aio.client.deadline import checked_timeout
from gazette_aio.client.listing.calls import list_request
from gazette_aio.client.listing.changes import changes_between
from gazette_aio.client.listing.upkeep import Upkeep
from gazette_aio.client.retry import Operation
from gazette_aio.client.status import WatchStatus

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable

    from gazette_aio.client.client import JournalClient
    from gazette_aio.client.listing.changes import ListChanges
    from gazette_aio.client.retry import RetryPolicy

POLL_INTERVAL: Final = 60.0
"""Seconds between listings of a broker without watches."""


class WatchedList(Owner):
    """List of the journals that a selector matches, kept up to date by a watch.

    It's an async context manager, and up to date while it's entered. Failures are retried, and the
    newest listing remains usable meanwhile. Changes of routes aren't watched. Brokers up to v0.99,
    which have no watches, are polled.

    Args:
        client: Client to use. It must be closed after the list.
        selector: A selector, its text, or a request, of which only the selector is used.
        changed: Set when there is a newer listing, or the list has failed. Several lists may share
            it. The task that waits for it clears it.
        on_error: Called with each error that is retried, except regular ends of streams. It must
            not block.
        poll_interval: Seconds between listings of a broker without watches; 60 by default.
        retry_policy: Failures to retry; None for the policy of the client.
        timeout: Seconds for which `ready()` waits for the first listing; None for no limit.
            `client.watch()` takes that of the client by default.

    Raises:
        ValidationError: The selector is invalid.
        ConfigurationError: Another argument is invalid.

    Example:
        async with client.watch("app.gazette.dev/message-type=Event") as partitions:
            await partitions.ready()
            mapping = random_mapping(partitions.list)
    """

    _operation: ClassVar[Operation] = Operation.WATCH

    def __init__(
        self,
        client: JournalClient,
        selector: pb.ListRequest | pb.LabelSelector | str = "",
        *,
        changed: asyncio.Event | None = None,
        on_error: Callable[[pb.GazetteError], None] | None = None,
        poll_interval: float = POLL_INTERVAL,
        retry_policy: RetryPolicy | None = None,
        timeout: float | None = None,
    ) -> None:
        if not poll_interval > 0:  # NaN isn't positive either.
            raise pb.ConfigurationError("poll_interval must be positive")
        if isinstance(selector, pb.ListRequest):
            selector = selector.selector
        request = list_request(selector)
        self._selector = pb.format_label_selector(request.selector)
        self._context = client.context
        self._timeout = checked_timeout(timeout)
        self._upkeep = Upkeep(
            self._operation,
            self._context,
            request,
            changed=changed,
            on_error=on_error,
            poll_interval=poll_interval,
            retry_policy=retry_policy or self._context.retry_policy,
        )
        self._task = OwnedTask()

    @property
    def last_error(self) -> Exception | None:
        """The latest error, or None if there was none since the last success."""
        return self._upkeep.last_error

    def list(self) -> pb.ListResponse | None:
        """Return the newest listing, or None before the first one.

        It's the same object while nothing changes, and must not be modified.
        """
        return self._upkeep.listing

    async def ready(self) -> pb.ListResponse:
        """Wait for the first listing, and return the newest one.

        Raises:
            GazetteError: A permanent error ended the list.
            OperationTimeoutError: There's no listing in time. The list is still being retried.
            UsageError: The list isn't entered, or was closed.

        Cancellation: safe.
        """
        if not await self._begun():
            raise pb.UsageError(f"{self!r} is closed")
        listing = self._upkeep.listing
        assert listing is not None
        return listing

    async def _begun(self) -> bool:
        begun = self._upkeep.newer_than(0)
        if self._timeout is None:
            return await begun
        deadline = self._context.deadline(f"watch of {self._selector!r}", self._timeout)
        return await deadline.run(begun, lambda: self.last_error)

    def updates(self) -> AsyncIterator[pb.ListResponse]:
        """Iterate the newest listings: the present one, and then each newer one.

        Each iterator yields a listing at most once. A slow one skips listings, but never the last.
        The iteration ends when the list is closed, and raises the error that ended the list.

        Cancellation: safe — a cancelled `anext()` loses nothing.
        """
        return _Updates(self._upkeep, self)

    def changes(self) -> AsyncIterator[ListChanges]:
        """Iterate the differences between listings, as `updates()` iterates listings.

        The first step always occurs, and has all journals as added ones.

        Cancellation: safe — a cancelled `anext()` loses nothing.
        """
        return _Changes(self._upkeep, self)

    @property
    def is_live(self) -> bool:
        """Whether it's entered and not closed."""
        return self._task.has_begun and self._upkeep.state != "closed"

    def status(self) -> WatchStatus:
        """Return the status of the list."""
        listing, error = self.list(), self.last_error
        return WatchStatus(
            selector=self._selector,
            state=self._upkeep.state,
            journals=None if listing is None else len(listing.journals),
            revision=None if listing is None else listing.header.etcd.revision,
            last_error=None if error is None else str(error),
        )

    async def aclose(self) -> None:
        """End the watch. The newest listing remains. Idempotent.

        Cancellation: safe — the watch ends anyway; call again to wait for that.
        """
        self._upkeep.close()
        await self._task.aclose()

    async def __aenter__(self) -> Self:
        self._upkeep.begin()
        self._context.watches.add(self)
        self._task.start(self._upkeep.run(), f"gazette watch {self._selector}")
        return self

    def __del__(self) -> None:
        task = getattr(self, "_task", None)
        if task is not None and task.running and not task.is_orphaned:
            task.cancel_from_anywhere()
            warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=2)

    def __repr__(self) -> str:
        listing, state = self.list(), self._upkeep.state
        shown = "no listing yet"
        if listing is not None:
            count, revision = len(listing.journals), listing.header.etcd.revision
            shown = f"{count} journals as of revision {revision}"
        error = f", {self.last_error!r}" if self.last_error is not None else ""
        return f"<{type(self).__name__} of {self._selector!r}, {state}, {shown}{error}>"


class PolledList(WatchedList):
    """List of the journals that a selector matches, listed again every `poll_interval` seconds.

    Unlike a watch it notices changes of routes too, and updates the client's routes. The first
    listing fails as `list_all_journals()` does. Each further one is an update, even if nothing has
    changed: then it's the same object. A failed listing is repeated before the interval has passed.
    """

    _operation: ClassVar[Operation] = Operation.POLL


class _Iteration:
    """Iteration of listings, with its own position.

    Args:
        upkeep: Has the listings.
        owner: The list, which stays alive during the iteration.
    """

    # Not a generator, which would end when a waiting `anext()` is cancelled.
    def __init__(self, upkeep: Upkeep, owner: WatchedList) -> None:
        self._upkeep = upkeep
        self._owner = owner
        self._seen = 0

    def __aiter__(self) -> Self:
        return self

    async def _newer(self) -> tuple[int, pb.ListResponse]:
        upkeep = self._upkeep
        if not await upkeep.newer_than(self._seen):
            raise StopAsyncIteration
        assert upkeep.listing is not None
        return upkeep.version, upkeep.listing


class _Updates(_Iteration):
    """Iterator of the newest listings."""

    async def __anext__(self) -> pb.ListResponse:
        self._seen, listing = await self._newer()
        return listing


class _Changes(_Iteration):
    """Iterator of the differences between the newest listing and that of the previous step."""

    _before: pb.ListResponse | None = None

    async def __anext__(self) -> ListChanges:
        while True:
            version, listing = await self._newer()
            before = self._before
            changes = await changes_between(before, listing)
            self._seen, self._before = version, listing
            if changes or before is None:
                return changes
