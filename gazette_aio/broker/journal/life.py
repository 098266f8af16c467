"""One life of a journal, from its creation to its deletion."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import gazette_aio.protocol as pb
    from gazette_aio.broker.keyspace.keyspace import JournalItem


class JournalLife:
    """A journal and its directory. Only the replica changes it; its parts look at it."""

    __slots__ = ("_closed", "_item", "directory", "name")

    def __init__(self, item: JournalItem, directory: Path) -> None:
        self.name = item.name
        self.directory = directory
        self._item = item
        self._closed = False

    @property
    def item(self) -> JournalItem:
        """The journal as of now."""
        return self._item

    @property
    def closed(self) -> bool:
        """Whether the journal isn't served any more."""
        return self._closed

    def follow(self, item: JournalItem) -> None:
        """Follow a change of the spec."""
        self._item = item

    def close(self) -> None:
        """End the life. Idempotent."""
        self._closed = True

    @property
    def spec(self) -> pb.JournalSpec:
        """The present spec."""
        return self._item.spec

    @property
    def first_store(self) -> str:
        """The store which fragments are written to, or an empty text."""
        return first_store(self._item)


def first_store(item: JournalItem) -> str:
    """Return the store which fragments of a journal are written to, or an empty text."""
    stores = item.spec.fragment.stores
    return stores[0] if stores else ""
