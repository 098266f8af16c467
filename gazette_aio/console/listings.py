"""Cache of large listings of journals: scrolling requests one part of a listing after another."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Final

from gazette_aio.aio.task import start_task
from gazette_aio.client import list_all_journals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    import gazette_aio.protocol as pb
    from gazette_aio.client import JournalClient

    OpenClient = Callable[[pb.Authorizer], AbstractAsyncContextManager[JournalClient]]
    """Opens a client of the brokers with an authorizer."""

CALL_SECONDS: Final = 20.0
"""Seconds of a call to brokers or members."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListingLimits:
    """Bounds of the cache.

    Args:
        count: Most cached listings, of all browsers.
        seconds: Seconds for which a listing is cached.
        journals: Least number of journals of a cached listing.
    """

    count: int = 4
    seconds: float = 5.0
    journals: int = 1000


class Listings:
    """Lists journals, and caches large listings for seconds, by token and selector.

    Concurrent requests for the same listing share one.

    Args:
        open_client: Opens a client of the brokers.
        limits: Bounds.
    """

    def __init__(self, open_client: OpenClient, limits: ListingLimits) -> None:
        self._open_client = open_client
        self._limits = limits
        self._listings: dict[
            tuple[str | None, str], asyncio.Task[Sequence[pb.ListResponse.Journal]]
        ] = {}

    async def get(
        self, auth: pb.Authorizer, token: str | None, selector: str
    ) -> Sequence[pb.ListResponse.Journal]:
        """Return the journals that a selector matches, by name. They must not be modified.

        Args:
            auth: Authorizes the listing.
            token: Token of the browser, part of the cache key.
            selector: The selector.

        Raises:
            GazetteError: As `list_all_journals()`. Failures aren't cached.

        Cancellation: safe — the listing continues for other requests.
        """
        key = token, selector
        if (task := self._listings.get(key)) is None:
            task = start_task(self._list(auth, selector), "gazette listing of the console")
            while len(self._listings) >= self._limits.count:
                # Requests that wait for it still get it.
                del self._listings[next(iter(self._listings))]
            self._listings[key] = task
            task.add_done_callback(lambda done: self._listed(key, done))
        return await asyncio.shield(task)

    def forget(self) -> None:
        """Empty the cache. Waiting requests still get their listings."""
        self._listings.clear()

    async def aclose(self) -> None:
        """End all listings.

        Cancellation: safe — call again.
        """
        tasks = list(self._listings.values())
        self._listings.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _list(self, auth: pb.Authorizer, selector: str) -> Sequence[pb.ListResponse.Journal]:
        async with self._open_client(auth) as client:
            return (await list_all_journals(client, selector, timeout=CALL_SECONDS)).journals

    def _listed(
        self,
        key: tuple[str | None, str],
        task: asyncio.Task[Sequence[pb.ListResponse.Journal]],
    ) -> None:
        def forget() -> None:
            if self._listings.get(key) is task:
                del self._listings[key]

        # Reading the exception marks it as seen, if nobody waits any more.
        failed = task.cancelled() or task.exception() is not None
        if failed or len(task.result()) < self._limits.journals:
            forget()
        else:
            task.get_loop().call_later(self._limits.seconds, forget)
