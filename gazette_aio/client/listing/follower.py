"""Tasks that keep listings up to date, by watching or polling."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, ClassVar

import gazette_aio.protocol as pb
from gazette_aio.aio.turns import in_turns
from gazette_aio.client.attempts import Attempts
from gazette_aio.client.listing.calls import (
    list_once,
    list_retried,
    list_selected_here,
    update_routes,
)
from gazette_aio.client.listing.changes import lists_the_same
from gazette_aio.client.listing.prefixes import has_prefixes
from gazette_aio.client.listing.snapshots import UnmarkedListingError, list_snapshots
from gazette_aio.client.listing.watch_plan import WatchPlan
from gazette_aio.client.retry import LONGEST_DELAY, Operation

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_aio.client.context import HasContext
    from gazette_aio.client.listing.feed import ListFeed
    from gazette_aio.client.retry import RetryPolicy

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class FollowerOptions:
    """Options of a list that is kept up to date, as documented by WatchedList."""

    client: HasContext
    request: pb.ListRequest
    """The request, without `watch`."""
    on_error: Callable[[pb.GazetteError], None] | None
    poll_interval: float
    retry_policy: RetryPolicy


class PollFollower:
    """Keeps a feed up to date by polling.

    It has no reference to its list, so that a list that was dropped without being closed warns.

    Args:
        options: Options of the list.
        feed: Receives listings.
    """

    operation: ClassVar[Operation] = Operation.POLL

    def __init__(self, options: FollowerOptions, feed: ListFeed) -> None:
        self._options = options
        self._feed = feed
        endpoint = options.client.context.dispatcher.endpoint
        self._attempts = Attempts(self.operation, options.retry_policy, options.request, endpoint)
        self._has_progressed = False

    async def run(self) -> None:
        """Follow until an error isn't retried. Cancellation: poisons — the feed is closed."""
        feed = self._feed
        try:
            while True:
                error = await self._followed()
                if error is None and self._has_progressed:
                    continue  # A regular end of a stream that delivered a listing.
                delay = self._attempts.failed(error)
                if error is not None:
                    feed.state = "retrying"
                    feed.last_error = error
                    if self._options.on_error is not None:
                        self._options.on_error(error)
                await asyncio.sleep(delay)
        except asyncio.CancelledError:
            feed.close()
            raise
        except Exception as error:  # noqa: BLE001 - All waiters get it.
            feed.fail(error)
            _logger.warning(
                "the list of journals isn't kept up to date any more: %s",
                str(error),
                extra={"selector": pb.format_label_selector(self._options.request.selector)},
            )

    async def _followed(self) -> pb.GazetteError | None:
        self._has_progressed = False
        try:
            await self._follow()
        except pb.GazetteError as error:
            return error
        return None

    async def _follow(self) -> None:
        options = self._options
        while True:
            if not self._attempts.established:
                listing = await list_retried(options.client, options.request, options.retry_policy)
            else:
                # `run()` retries failures, as those of polled listings.
                listing = await list_once(options.client, options.request)
                await update_routes(options.client, listing.journals)
            self._feed.state = "polling"
            self._progress()
            await self._received(listing, always=True)
            await asyncio.sleep(options.poll_interval)

    async def _received(self, listing: pb.ListResponse, *, always: bool = False) -> bool:
        """Publish a listing if it differs, else the listing before it again if `always`.

        Returns:
            Whether it differs.
        """
        feed = self._feed
        self._attempts.established = True
        feed.last_error = None
        before = feed.listing
        # Invariant: users rely on the same object while nothing changes.
        if not await in_turns(lists_the_same(before, listing)):
            feed.publish(listing)
            return True
        if before is not None and always:
            feed.publish(before)
        return False

    def _progress(self) -> None:
        self._has_progressed = True
        self._attempts.succeeded()


class WatchFollower(PollFollower):
    """Keeps a feed up to date by watching, or by polling brokers without watches.

    Args:
        options: Options of the list.
        feed: Receives listings.
    """

    operation: ClassVar[Operation] = Operation.WATCH

    def __init__(self, options: FollowerOptions, feed: ListFeed) -> None:
        super().__init__(options, feed)
        self._plan = WatchPlan(options.request.selector)

    async def _follow(self) -> None:
        """Follow one stream to its end, or poll once if the broker has no watches."""
        plan, feed = self._plan, self._feed
        try:
            if (probe := plan.probe()) is not None:
                answer = await list_once(self._options.client, probe)
                plan.probed(answer.header)
                feed.last_error = None
            unmarked = await self._watch(plan.request())
            if unmarked is not None and has_prefixes(self._options.request.selector):
                unmarked = await list_selected_here(self._options.client, self._options.request)
        except pb.GazetteError as error:
            # Failures of transport pass, but a broker may refuse this resumption every time.
            if not error.retryable:
                plan.doubt()
            raise
        if unmarked is not None:
            feed.state = "polling"
            self._progress()
            await self._received(unmarked)
            await asyncio.sleep(self._options.poll_interval)

    async def _watch(self, request: pb.ListRequest) -> pb.ListResponse | None:
        """Follow one stream to its end, and return the listing of a broker without watches."""
        plan, feed = self._plan, self._feed
        context = self._options.client.context
        stream = await context.rpc.list(request)
        began = time.monotonic()
        # The first snapshot shows that the broker has watches. A resumed watch may have no news.
        stands = request.HasField("watch_resume")
        snapshots = list_snapshots(stream, request, strict=context.strict)
        try:
            if stands:
                feed.state = "watching"
            async with aclosing(snapshots):
                async for snapshot in snapshots:
                    feed.state = "watching"
                    stands = True
                    plan.received(snapshot.header)
                    if await self._received(snapshot):
                        self._progress()
        except UnmarkedListingError as error:
            return error.listing
        finally:
            # Streams that end at once repeatedly are throttled, whatever they deliver.
            if stands and time.monotonic() - began >= LONGEST_DELAY:
                self._progress()
            await stream.aclose()
        return None
