"""Index of a journal's fragments, which answers reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.aio.signal import Signal
from gazette_aio.broker.fragments.cover_index import CoverSet
from gazette_aio.broker.host.workers import wait_until

if TYPE_CHECKING:
    import asyncio

    from gazette_aio.broker.fragments.local_fragment import ContentFile
    from gazette_aio.broker.host.clock import Deadline


class IndexEntry:
    """Fragment of the index: local, with its content file, or persisted in a store.

    Args:
        fragment: The fragment; not modified afterwards.
        content: Its content file, if it's local.
    """

    __slots__ = ("begin", "content", "end", "fragment", "mod_time")

    def __init__(self, fragment: pb.Fragment, content: ContentFile | None = None) -> None:
        self.fragment: pb.Fragment = fragment
        self.content: ContentFile | None = content
        self.begin: int = fragment.begin
        self.end: int = fragment.end
        self.mod_time: int = fragment.mod_time

    def __repr__(self) -> str:
        place = "local" if self.content else self.fragment.backing_store
        return f"<IndexEntry {self.begin}-{self.end} {place}>"


class FragmentCover(CoverSet[IndexEntry]):
    """Fragments of a journal. Listed fragments stay packed until their first use."""

    __slots__ = ("_journal", "_stores")

    def __init__(self, journal: str = "") -> None:
        super().__init__()
        self._journal = journal
        self._stores: list[str] = []

    def __getitem__(self, index: int) -> IndexEntry:
        member = self._members[index]
        if isinstance(member, IndexEntry):
            return member
        assert isinstance(member, bytes)
        begin, end, mod_time = self.extent(index)
        fragment = pb.Fragment(
            journal=self._journal,
            begin=begin,
            end=end,
            sum=pb.sum_from_digest(member[:20]),
            compression_codec=pb.CompressionCodec.ValueType(member[20]),
            backing_store=self._stores[int.from_bytes(member[21:25])],
            mod_time=mod_time,
            path_postfix=member[25:].decode(),
        )
        return IndexEntry(fragment)

    def begin_store(self, url: str) -> int:
        """Begin the listed fragments of a store, and return the store's number for `pack`."""
        self._stores.append(url)
        return len(self._stores) - 1

    def add_listed(self, begin: int, end: int, mod_time: int, packed: bytes) -> bool:
        """Add a fragment of a listing as `add` does, in the form of `pack`."""
        return self._insert(begin, end, mod_time, packed)


def pack(fragment: pb.Fragment, store: int) -> bytes:
    """Return the packed form of a listed fragment: all fields except its extent."""
    head = bytes((fragment.compression_codec,)) + store.to_bytes(4)
    return pb.sum_to_digest(fragment.sum) + head + fragment.path_postfix.encode()


class FragmentIndex:
    """All fragments of a journal: listed in its stores, or only local."""

    def __init__(self) -> None:
        self._cover = FragmentCover()
        self._changed = Signal()
        self._ended = False
        self._waiters = 0
        self._local: CoverSet[IndexEntry] = CoverSet()
        self._persisted: list[tuple[int, IndexEntry]] = []
        self._generation = 0

    def __repr__(self) -> str:
        return f"<FragmentIndex {self._cover} waiters={self._waiters}>"

    @property
    def cover(self) -> FragmentCover:
        """The fragments as of now, for readers."""
        return self._cover

    @property
    def ended(self) -> bool:
        """Whether waits for a change have ended."""
        return self._ended

    @property
    def waiters(self) -> int:
        """Number of readers that wait for a change."""
        return self._waiters

    def next_change(self) -> asyncio.Event:
        """Return the event of the next change. Take it before looking at the cover."""
        return self._changed.next()

    async def wait(self, change: asyncio.Event, until: Deadline | None) -> bool:
        """Wait for an event of `next_change` up to a time; return whether it was set.

        Cancellation: safe.
        """
        self._waiters += 1
        try:
            return await wait_until(change, until)
        finally:
            self._waiters -= 1

    def end(self) -> None:
        """Let readers see the end of their streams rather than wait. Idempotent."""
        self._ended = True
        self._changed.set()

    def add_local(self, entry: IndexEntry) -> None:
        """Add a local fragment, or a further extent of it."""
        self._local.add(entry)
        self._cover.add(entry)
        self._changed.set()

    def add_persisted(self, entry: IndexEntry) -> None:
        """Replace a local fragment by its persisted form."""
        self._local.drop_inside(entry.begin, entry.end)
        self._cover.add(entry)
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
        self._cover = listed
        self._changed.set()  # Readers look again, and find out whether anything is different.
