"""Index of a journal's fragments, which answers reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_aio.aio.signal import Signal
from gazette_aio.broker.fragments.cover_index import FragmentCover
from gazette_aio.broker.host.workers import wait_until

if TYPE_CHECKING:
    import asyncio

    from gazette_aio.broker.fragments.cover_index import IndexEntry
    from gazette_aio.broker.host.clock import Deadline


class FragmentIndex:
    """All fragments of a journal: listed in its stores, or only local."""

    def __init__(self) -> None:
        self.cover: FragmentCover = FragmentCover()
        """The fragments as of now, for readers."""
        self.ended: bool = False
        """Whether waits for a change have ended."""
        self.waiters: int = 0
        """Number of readers that wait for a change."""
        self._changed = Signal()
        self._local = FragmentCover()
        self._persisted: list[tuple[int, IndexEntry]] = []
        self._generation = 0

    def __repr__(self) -> str:
        return f"<FragmentIndex {self.cover} waiters={self.waiters}>"

    def next_change(self) -> asyncio.Event:
        """Return the event of the next change. Take it before looking at the cover."""
        return self._changed.next()

    async def wait(self, change: asyncio.Event, until: Deadline | None) -> bool:
        """Wait for an event of `next_change` up to a time; return whether it was set.

        Cancellation: safe.
        """
        self.waiters += 1
        try:
            return await wait_until(change, until)
        finally:
            self.waiters -= 1

    def end(self) -> None:
        """Let readers see the end of their streams rather than wait. Idempotent."""
        self.ended = True
        self._changed.set()

    def add_local(self, entry: IndexEntry) -> None:
        """Add a local fragment, or a further extent of it."""
        self._local.add(entry)
        self.cover.add(entry)
        self._changed.set()

    def add_persisted(self, entry: IndexEntry) -> None:
        """Replace a local fragment by its persisted form."""
        self._local.drop_inside(entry.begin, entry.end)
        self.cover.add(entry)
        self._generation += 1
        self._persisted.append((self._generation, entry))
        self._changed.set()

    def begin_listing(self) -> int:
        """Declare the begin of a listing of stores, and return a token for `replace_listed`."""
        return self._generation

    def replace_listed(self, listed: FragmentCover, token: int) -> None:
        """Adopt a listing of all stores."""
        # Race: the listing may lack fragments that were persisted after its begin.
        self._persisted = [item for item in self._persisted if item[0] > token]
        for _, entry in self._persisted:
            listed.add(entry)
        self._local = self._local.without_covered(listed)
        for entry in self._local:
            listed.add(entry)
        self.cover = listed
        self._changed.set()  # Readers look again, and find out whether anything is different.
