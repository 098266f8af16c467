"""A fragment as the index of a journal knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_aio.broker.cover_index import CoverSet

if TYPE_CHECKING:
    import gazette_aio.protocol as pb
    from gazette_aio.broker.content_file import ContentFile


class IndexEntry:
    """Fragment of the index: local, with its content file, or persisted in a store.

    Args:
        fragment: The fragment; not modified afterwards.
        content: Its content file, if it's local.
    """

    __slots__ = ("begin", "content", "end", "fragment", "mod_time")

    def __init__(self, fragment: pb.Fragment, content: ContentFile | None = None) -> None:
        self.fragment = fragment
        self.content = content
        self.begin = fragment.begin
        self.end = fragment.end
        self.mod_time = fragment.mod_time

    def __repr__(self) -> str:
        place = "local" if self.content else self.fragment.backing_store
        return f"<IndexEntry {self.begin}-{self.end} {place}>"


class FragmentIndex:
    """All fragments of a journal: those listed in its stores, and those which are only local."""

    def __init__(self) -> None:
        self.cover: CoverSet[IndexEntry] = CoverSet()
        self._local: CoverSet[IndexEntry] = CoverSet()
        self._persisted: list[tuple[int, IndexEntry]] = []
        self._generation = 0

    def __repr__(self) -> str:
        return f"<FragmentIndex {self.cover}>"

    @property
    def last_mod_time(self) -> int:
        """Modification time of the last fragment, zero if it's local or there's none."""
        return self.cover[len(self.cover) - 1].mod_time if len(self.cover) else 0

    def add_local(self, entry: IndexEntry) -> None:
        """Add a local fragment, or a further extent of it."""
        self._local.add(entry)
        self.cover.add(entry)

    def add_persisted(self, entry: IndexEntry) -> None:
        """Replace a local fragment by its persisted form."""
        self._local = self._local.without_covered(CoverSet((entry,)))
        self.cover.add(entry)
        self._generation += 1
        self._persisted.append((self._generation, entry))

    def begin_listing(self) -> int:
        """Note that stores are about to be listed; returns a token for `replace_listed`."""
        return self._generation

    def replace_listed(self, listed: CoverSet[IndexEntry], token: int) -> None:
        """Adopt a listing of all stores."""
        # Race: what was persisted since the listing began may be missing in it.
        self._persisted = [item for item in self._persisted if item[0] > token]
        for _, entry in self._persisted:
            listed.add(entry)
        self._local = self._local.without_covered(listed)
        for entry in self._local:
            listed.add(entry)
        self.cover = listed
