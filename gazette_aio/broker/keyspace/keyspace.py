"""Key space: specs of all journals, their revisions, and the rules of transactions.

Revisions count transactions. `decide()` makes a transaction, the caller makes it durable, and
`commit()` adopts it. No other transaction may be decided in between.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_CHANGES = 128
"""Changes of one transaction."""


class TransactionError(Exception):
    """A transaction is malformed; the text is for the client."""


@dataclass(slots=True)
class JournalItem:
    """A journal of the key space. Replaced, never modified, when its spec changes."""

    spec: pb.JournalSpec
    create_revision: int
    mod_revision: int
    _labels: pb.LabelSet | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """Name of the journal."""
        return self.spec.name

    @property
    def first_store(self) -> str:
        """URL of the store to which fragments are written, or an empty text."""
        stores = self.spec.fragment.stores
        return stores[0] if stores else ""

    @property
    def labels(self) -> pb.LabelSet:
        """Labels of the journal, with the meta-label `name`."""
        if self._labels is None:
            self._labels = pb.label_set_ext(self.spec)
        return self._labels


@dataclass(frozen=True, slots=True)
class KeySpaceTransaction:
    """Changes that lead the key space to `revision`, all or none."""

    revision: int
    puts: tuple[pb.JournalSpec, ...] = ()
    deletes: tuple[str, ...] = ()


class KeySpace:
    """Journals by name, at a revision."""

    def __init__(self, revision: int = 1) -> None:
        self.revision: int = revision
        self._items: dict[str, JournalItem] = {}
        # Invariant: names in order, and their items in parallel.
        self._names: list[str] = []
        self._ordered: list[JournalItem] = []

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[JournalItem]:
        """Iterate journals in the order of their names."""
        return iter(self._ordered)

    def __repr__(self) -> str:
        return f"<KeySpace revision={self.revision} journals={len(self._items)}>"

    def get(self, name: str) -> JournalItem | None:
        """Return a journal by its name."""
        return self._items.get(name)

    def prefixed(self, prefix: str) -> list[JournalItem]:
        """Return journals whose names begin with `prefix`, in order, as of now."""
        size = len(prefix)
        first = bisect_left(self._names, prefix)
        last = bisect_right(self._names, prefix, lo=first, key=lambda name: name[:size])
        return self._ordered[first:last]

    def decide(self, changes: Sequence[pb.ApplyRequest.Change]) -> KeySpaceTransaction | None:
        """Return the transaction of valid `changes`, or None if an expected revision differs.

        Raises:
            TransactionError: There are too many changes, or two of one journal.
        """
        if len(changes) > MAX_CHANGES:
            raise TransactionError("etcdserver: too many operations in txn request")
        seen: set[str] = set()
        puts: list[pb.JournalSpec] = []
        deletes: list[str] = []
        consistent = True
        for change in changes:
            upsert = change.HasField("upsert")
            name = change.upsert.name if upsert else change.delete
            if name in seen:
                raise TransactionError("etcdserver: duplicate key given in txn request")
            seen.add(name)
            item = self._items.get(name)
            if change.expect_mod_revision != -1:
                current = item.mod_revision if item else 0
                consistent = consistent and change.expect_mod_revision == current
            if upsert:
                puts.append(change.upsert)
            elif item is not None:
                deletes.append(name)
        if not consistent:
            return None
        step = 1 if puts or deletes else 0
        return KeySpaceTransaction(self.revision + step, tuple(puts), tuple(deletes))

    def commit(self, transaction: KeySpaceTransaction) -> None:
        """Adopt a transaction that was decided at the present revision."""
        for spec in transaction.puts:
            item = self._items.get(spec.name)
            created_at = item.create_revision if item else transaction.revision
            stored = deepcopy(spec)
            fill_presence(stored)
            made = JournalItem(stored, created_at, transaction.revision)
            index = bisect_left(self._names, made.name)
            if item is None:
                self._names.insert(index, made.name)
                self._ordered.insert(index, made)
            else:
                self._ordered[index] = made
            self._items[made.name] = made
        for name in transaction.deletes:
            if self._items.pop(name, None) is not None:
                index = bisect_left(self._names, name)
                del self._names[index], self._ordered[index]
        self.revision = max(self.revision, transaction.revision)

    def restore(self, items: Sequence[JournalItem], revision: int) -> None:
        """Replace all content with `items` as of `revision`."""
        self._ordered = sorted(items, key=lambda item: item.name)
        self._names = [item.name for item in self._ordered]
        self._items = dict(zip(self._names, self._ordered, strict=True))
        self.revision = revision


def fill_presence(spec: pb.JournalSpec) -> None:
    """Mark the parts of a spec as present that peers always send, even if empty."""
    spec.labels.SetInParent()
    fragment = spec.fragment
    fragment.SetInParent()
    fragment.refresh_interval.SetInParent()
    fragment.retention.SetInParent()
    fragment.flush_interval.SetInParent()
