"""Listings that one task keeps current, by watching or polling, and that other tasks await."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import gazette_aio.protocol as pb
from gazette_aio.aio.signal import Signal
from gazette_aio.client.attempts import Attempts
from gazette_aio.client.listing.calls import list_once, retried
from gazette_aio.client.listing.changes import lists_the_same
from gazette_aio.client.listing.compat import UnmarkedListingError, has_prefixes
from gazette_aio.client.listing.snapshots import list_snapshots
from gazette_aio.client.listing.watch_plan import WatchPlan
from gazette_aio.client.retry import LONGEST_DELAY, Operation

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_aio.client.context import ClientContext
    from gazette_aio.client.retry import RetryPolicy

_NOT_BEGUN: Final = "not entered"

_logger = logging.getLogger(__name__)


class Upkeep:
    """The newest listing of a WatchedList, and the work of its task.

    It has no reference to its list, so that a list that was dropped without being closed warns.

    Args:
        operation: How listings are kept current: WATCH, or POLL.
        context: State of the client.
        request: The request, without `watch`.
        changed: As of WatchedList, like all that follow.
        on_error: See `changed`.
        poll_interval: See `changed`.
        retry_policy: See `changed`.
    """

    def __init__(
        self,
        operation: Operation,
        context: ClientContext,
        request: pb.ListRequest,
        *,
        changed: asyncio.Event | None,
        on_error: Callable[[pb.GazetteError], None] | None,
        poll_interval: float,
        retry_policy: RetryPolicy,
    ) -> None:
        self.listing: pb.ListResponse | None = None
        self.version: int = 0
        """Number of listings published so far."""
        self.state: str = _NOT_BEGUN
        self.last_error: Exception | None = None
        self._operation = operation
        self._context = context
        self._request = request
        self._changed = changed
        self._on_error = on_error
        self._poll_interval = poll_interval
        self._retry_policy = retry_policy
        endpoint = context.dispatcher.endpoint
        self._attempts = Attempts(operation, retry_policy, request, endpoint)
        self._plan = WatchPlan(request.selector)
        self._failure: Exception | None = None
        self._is_closed = False
        self._next = Signal()

    def begin(self) -> None:
        """Note that listings follow.

        Raises:
            UsageError: This was noted before.
        """
        if self.state != _NOT_BEGUN:
            raise pb.UsageError("a list of journals can't be entered twice")
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

    def _wake(self) -> None:
        self._next.set()
        if self._changed is not None:
            self._changed.set()

    async def newer_than(self, version: int) -> bool:
        """Wait for a listing newer than `version`; return False if the listings have ended.

        Raises:
            Exception: The error that ended the listings.
            UsageError: The listings haven't begun.

        Cancellation: safe.
        """
        if self.state == _NOT_BEGUN:
            raise pb.UsageError("the list of journals isn't entered: use `async with`")
        while self.version <= version:
            if self._is_closed:
                return False
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            await self._next.wait()
        return True

    async def run(self) -> None:
        """Keep listings current until an error isn't retried.

        Cancellation: poisons — the listings end.
        """
        try:
            while True:
                error: pb.GazetteError | None = None
                try:
                    polls = self._operation is Operation.POLL
                    if await (self._poll() if polls else self._watch()):
                        continue
                except pb.GazetteError as failure:
                    error = failure
                delay = self._attempts.failed(error)
                if error is not None:
                    self.state = "retrying"
                    self.last_error = error
                    if self._on_error is not None:
                        self._on_error(error)
                await asyncio.sleep(delay)
        except asyncio.CancelledError:
            self.close()
            raise
        except Exception as fatal:  # noqa: BLE001 - All waiters get it.
            self.fail(fatal)
            _logger.warning(
                "the list of journals isn't kept up to date any more: %s",
                str(fatal),
                extra={"selector": pb.format_label_selector(self._request.selector)},
            )

    async def _poll(self) -> bool:
        """List once, and wait for the interval. Return that it was a success."""
        if not self._attempts.established:
            listing = await retried(self._context, self._request, list_once, self._retry_policy)
        else:
            # `run()` retries failures, as those of polled listings.
            listing = await list_once(self._context, self._request)
        return await self._polled(listing, always=True)

    async def _polled(self, listing: pb.ListResponse, *, always: bool = False) -> bool:
        self.state = "polling"
        self._attempts.succeeded()
        await self._received(listing, always=always)
        await asyncio.sleep(self._poll_interval)
        return True

    async def _received(self, listing: pb.ListResponse, *, always: bool = False) -> bool:
        """Publish a listing if it differs, else the listing before it again if `always`.

        Returns:
            Whether it differs.
        """
        self._attempts.established = True
        self.last_error = None
        before = self.listing
        # Invariant: users rely on the same object while nothing changes.
        if not await lists_the_same(before, listing):
            self.publish(listing)
            return True
        if before is not None and always:
            self.publish(before)
        return False

    async def _watch(self) -> bool:
        """Follow one stream to its end, or poll once if the broker has no watches.

        Returns:
            Whether it was a success: there was a listing that differs, or the stream stood a while.
        """
        plan = self._plan
        try:
            if (probe := plan.probe()) is not None:
                answer = await list_once(self._context, probe)
                plan.probed(answer.header)
                self.last_error = None
            try:
                return await self._follow(plan.request())
            except UnmarkedListingError as error:
                unmarked = error.listing
            if has_prefixes(self._request.selector):
                unmarked = await list_once(self._context, self._request)
        except pb.GazetteError as error:
            # Failures of transport pass, but a broker may refuse this resumption every time.
            if not error.retryable:
                plan.doubt()
            raise
        return await self._polled(unmarked)

    async def _follow(self, request: pb.ListRequest) -> bool:
        """Follow one stream of a watch to its end, and return whether it was a success."""
        stream = await self._context.rpc.list(request)
        began = time.monotonic()
        has_succeeded = False
        # The first snapshot shows that the broker has watches. A resumed watch may have no news.
        stands = request.HasField("watch_resume")
        if stands:
            self.state = "watching"
        snapshots = list_snapshots(stream, request, strict=self._context.strict)
        try:
            async with aclosing(snapshots):
                async for snapshot in snapshots:
                    self.state = "watching"
                    stands = True
                    self._plan.received(snapshot.header)
                    if await self._received(snapshot):
                        has_succeeded = True
                        self._attempts.succeeded()
        finally:
            # Streams that end at once repeatedly are throttled, whatever they deliver.
            if stands and time.monotonic() - began >= LONGEST_DELAY:
                has_succeeded = True
                self._attempts.succeeded()
            await stream.aclose()
        return has_succeeded
