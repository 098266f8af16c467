"""One life of a journal, from its creation to its deletion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import gazette_aio.protocol as pb
    from gazette_aio.broker.keyspace.keyspace import JournalItem


@dataclass(slots=True, eq=False)
class JournalLife:
    """A journal and its directory. Only the replica changes them; the replica's parts read them."""

    item: JournalItem
    """The present journal."""
    directory: Path
    closed: bool = False
    """Whether the journal isn't served any more."""

    @property
    def name(self) -> str:
        """Name of the journal."""
        return self.item.name

    @property
    def spec(self) -> pb.JournalSpec:
        """The present spec."""
        return self.item.spec

    @property
    def first_store(self) -> str:
        """The store which fragments are written to, or an empty text."""
        return first_store(self.item)


def first_store(item: JournalItem) -> str:
    """Return the URL of the store to which a journal's fragments are written, or an empty text."""
    stores = item.spec.fragment.stores
    return stores[0] if stores else ""
