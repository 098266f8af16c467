"""Listings of a journal's stores, which update its index with persisted fragments."""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.aio.turns import in_thread_slices, sorted_rows
from gazette_aio.broker.fragments.cover_index import FragmentCover, pack
from gazette_aio.broker.host.files import os_error_text
from gazette_aio.broker.host.workers import STOPPING
from gazette_aio.protocol.go.text import clean_path

if TYPE_CHECKING:
    from gazette_aio.broker.fragments.index import FragmentIndex
    from gazette_aio.broker.host.scheduler import Timer
    from gazette_aio.broker.host.workers import Workers
    from gazette_aio.broker.journal.life import JournalLife
    from gazette_aio.broker.keyspace.keyspace import JournalItem, KeySpace
    from gazette_aio.broker.runtime import Runtime
    from gazette_aio.broker.stores import FragmentStore

_logger = logging.getLogger(__name__)

_MAX_TIME = (1 << 63) - 1
_IDLE_SECONDS = 60.0

_Row = tuple[int, int, str, int, int, bytes]
"""Begin, end negated, path, end, modification time, and the rest packed."""


class StoreListing:
    """Listings of the stores of one journal: on demand, and periodically while it's used.

    Args:
        is_listed: Whether the stores are known to be empty.
    """

    def __init__(
        self,
        runtime: Runtime,
        space: KeySpace,
        life: JournalLife,
        index: FragmentIndex,
        *,
        is_listed: bool,
    ) -> None:
        self._is_listed = is_listed
        self._error = ""
        self._runtime = runtime
        self._space = space
        self._life = life
        self._index = index
        self._lock = asyncio.Lock()
        self._used = True
        """Whether somebody used the journal since the last listing."""
        self._idle = False
        """Whether stores aren't listed periodically, for want of users."""
        self._timer: Timer | None = None
        """Timer of the next periodic listing."""

    def __repr__(self) -> str:
        return f"<StoreListing {self._life.name} {'idle' if self._idle else 'used'} {self._error}>"

    @property
    def is_listed(self) -> bool:
        """Whether the index has ever adopted a listing."""
        return self._is_listed

    @property
    def error(self) -> str:
        """Error of the last listing, or an empty text."""
        return self._error

    async def use(self) -> None:
        """Declare a use of the journal. List its stores if the journal was unused for long.

        Cancellation: safe — the next use lists them.
        """
        self._used = True
        if self._idle:
            await self.begin()

    async def begin(self) -> None:
        """List the stores now, and again after each refresh interval.

        Cancellation: safe — the next use lists them.
        """
        self._idle = False
        self.stop()
        try:
            await self.refresh()
        except BaseException:
            self._idle = True
            raise
        finally:
            self._arm()

    def follow_stores(self) -> None:
        """Follow a change of the stores: the next use lists them."""
        self._idle = True

    def follow_interval(self) -> None:
        """Follow a change of the refresh interval, which begins anew."""
        self.stop()
        if not self._idle:
            self._arm()

    def stop(self) -> None:
        """List the stores no more by itself."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def refresh(self) -> None:
        """List the stores now. A failure sets `error`, and leaves the index unchanged.

        Cancellation: safe.
        """
        async with self._lock:  # An older listing must not replace a newer one.
            await self._refresh()

    def _arm(self) -> None:
        """Schedule the next listing, after the refresh interval."""
        self.stop()
        if self._life.closed or not self._life.first_store:
            return
        interval = self._life.spec.fragment.refresh_interval
        seconds = interval.seconds + interval.nanos / 1e9
        if self._idle:
            seconds = max(seconds, _IDLE_SECONDS)
        name, lane = f"refresh {self._life.name}", self._life.first_store
        self._timer = self._runtime.scheduler.after(seconds, name, self._next_round, lane=lane)

    async def _next_round(self) -> None:
        self._timer = None
        if not self._used and not self._index.waiters and self._is_listed:
            # Without readers, the next use lists the stores first. But a slow reader may come to
            # wait without a further use.
            self._idle = True
            self._arm()
            return
        self._used = False
        await self.begin()

    async def _refresh(self) -> None:
        name, runtime = self._life.name, self._runtime
        urls = list(self._life.spec.fragment.stores)
        # Taken now: threads don't read the key space.
        separate = urls and runtime.options.nested_journals == "separate"
        nested = self._space.prefixed(name + "/") if separate else []
        token = self._index.begin_listing()
        listed = FragmentCover(name)
        try:
            for url in urls:
                handle = runtime.stores.get(url)
                # The thread also builds the set: a journal may have very many fragments.
                count = await handle.run(_list, name, nested, listed, handle.workers)
                runtime.metrics.store_list_items += count
        except (OSError, pb.GazetteError) as error:
            self._error = os_error_text(error) if isinstance(error, OSError) else str(error)
            _logger.warning(
                "unable to list fragments", extra={"journal": name, "error": self._error}
            )
            return
        self._index.replace_listed(listed, token)
        self._error = ""
        self._is_listed = True


def _shared(nested: list[JournalItem], journal: str, url: str) -> frozenset[str]:
    """Return the directories of nested journals in a store, relative to that of `journal`."""
    start = len(journal) + 1
    place = _place(url)
    return frozenset(
        item.name[start:]
        for item in in_thread_slices(nested)
        if any(_place(other) == place for other in item.spec.fragment.stores)
    )


@functools.lru_cache(maxsize=256)
def _place(url: str) -> str:
    """Return the location of a store, which URLs of other arguments or spelling may share."""
    parsed = pb.parse_fragment_store(url)
    if parsed.arguments.get("find"):
        return url
    return f"{parsed.scheme}://{parsed.host}{clean_path(parsed.path)}"


def _list(
    store: FragmentStore,
    journal: str,
    nested: list[JournalItem],
    listed: FragmentCover,
    workers: Workers,
) -> int:
    skip = _shared(nested, journal, store.url)
    number = listed.begin_store(store.url)
    rows: list[_Row] = []
    ignored = 0
    for path, mod_time in in_thread_slices(store.list(journal + "/", skip=skip)):
        if workers.stopping.is_set():
            raise pb.StoreError(STOPPING)
        try:
            fragment = pb.parse_fragment(journal, path)
            if f"{fragment.path_postfix}/".startswith("../"):
                raise pb.ValidationError("PathPostfix: leads out of the journal")
        except pb.ValidationError as error:
            if not ignored:
                _logger.warning(
                    "ignored a file which isn't a fragment",
                    extra={"journal": journal, "path": path, "error": str(error)},
                )
            ignored += 1
            continue
        # Plain tuples cost the garbage collector nothing: a journal may have very many fragments.
        packed = pack(fragment, number)
        time = min(max(mod_time, -_MAX_TIME), _MAX_TIME)
        rows.append((fragment.begin, -fragment.end, path, fragment.end, time, packed))
    if ignored > 1:
        _logger.warning(
            "ignored files which aren't fragments", extra={"journal": journal, "count": ignored}
        )
    # Among fragments with one begin, the longest comes first, so that no fragment is added and then
    # dropped. Of equal fragments, the last path remains.
    for begin, _, _, end, time, packed in sorted_rows(rows):
        listed.insert(begin, end, time, packed)
    return len(rows)
