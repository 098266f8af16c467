"""View of a key space as a group: members, items, assignments, and those of this member."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from gazette_aio.consumer.allocator.model import Allocation, Assignment, Item, Member

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gazette_aio.consumer.allocator.model import GroupEntry, MemberID
    from gazette_aio.consumer.keyspace.entries import Change
    from gazette_aio.protocol.consumer import ShardSpec

_KEY_ORDER: Final = attrgetter("member", "slot")


@dataclass(frozen=True, slots=True)
class LocalItem:
    """An item that this member holds a replica of, with the assignments of the item."""

    item: Item
    assignment: Assignment
    assignments: Sequence[Assignment]


class ObservedGroup:
    """The group as of the last change of a key space. Its `observe` is an observer of that.

    Args:
        local: Identity of this member.
    """

    def __init__(self, local: MemberID) -> None:
        self.local = local
        self._members: dict[MemberID, Member] = {}
        self._items: dict[str, Item] = {}
        self._assignments: dict[str, list[Assignment]] = {}
        self._local: dict[str, Assignment] = {}
        self._readers: dict[str, dict[str, ShardSpec]] = defaultdict(dict)  # By journal.
        self._allocation: Allocation | None = None

    def __repr__(self) -> str:
        return (
            f"<ObservedGroup {self.local.zone}#{self.local.suffix} members={len(self._members)} "
            f"items={len(self._items)} local={len(self._local)}>"
        )

    def observe(self, changes: Sequence[Change[GroupEntry]]) -> None:
        """Take changes of the key space."""
        for before, after in changes:
            if before is not None:
                self._forget(before)
            if after is not None:
                self._add(after)
        if changes:
            self._allocation = None

    @property
    def members(self) -> Mapping[MemberID, Member]:
        """Members by identity, in no order."""
        return self._members

    @property
    def items(self) -> Mapping[str, Item]:
        """Items by ID, in no order."""
        return self._items

    def assignments(self, item: str) -> Sequence[Assignment]:
        """Return an item's assignment of each member, in the order of their keys.

        Of several assignments of one member, which the leader reduces, the lowest slot counts.
        """
        held = reversed(self._assignments.get(item, ()))
        return list({each.member: each for each in held}.values())[::-1]

    def shards_with_source(self, journal: str) -> list[ShardSpec]:
        """Return the shards that read a journal, by ID.

        Args:
            journal: Name of the journal, with the suffix that the shards give it, if any.
        """
        return [spec for _, spec in sorted(self._readers.get(journal, {}).items())]

    @property
    def local_member(self) -> Member | None:
        """This member, or None if its key is gone."""
        return self._members.get(self.local)

    @property
    def local_items(self) -> list[LocalItem]:
        """Items that exist and of which this member holds a replica, by ID."""
        items = (self.local_item(id_) for id_ in sorted(self._local))
        return [item for item in items if item is not None]

    def local_item(self, item: str) -> LocalItem | None:
        """Return an item that exists and of which this member holds a replica."""
        if item not in self._items or item not in self._local:
            return None
        return LocalItem(self._items[item], self._local[item], self.assignments(item))

    @property
    def leads(self) -> bool:
        """Whether this member allocates: it's the oldest, of several the first by key."""
        oldest = min(
            self._members.values(), key=attrgetter("raw.create_revision", "id"), default=None
        )
        return oldest is not None and oldest.id == self.local

    @property
    def should_exit(self) -> bool:
        """Whether this member is exiting, and holds nothing any longer."""
        local = self.local_member
        return local is not None and local.exiting and not self.local_items

    @property
    def allocation(self) -> Allocation:
        """The group in order, as the leader needs it. It's made anew after each change."""
        if self._allocation is None:
            self._allocation = Allocation(
                dict(sorted(self._members.items())),
                dict(sorted(self._items.items())),
                dict(sorted(self._assignments.items())),
            )
        return self._allocation

    def _forget(self, entry: GroupEntry) -> None:
        match entry:
            case Member():
                del self._members[entry.id]
            case Item():
                del self._items[entry.id]
                for source in entry.spec.sources:
                    del self._readers[source.journal][entry.id]
                    if not self._readers[source.journal]:
                        del self._readers[source.journal]
            case Assignment():
                held = self._assignments[entry.item]
                self._hold(entry.item, [each for each in held if each.raw.key != entry.raw.key])

    def _add(self, entry: GroupEntry) -> None:
        match entry:
            case Member():
                self._members[entry.id] = entry
            case Item():
                self._items[entry.id] = entry
                for source in entry.spec.sources:
                    self._readers[source.journal][entry.id] = entry.spec
            case Assignment():
                self._hold(entry.item, [*self._assignments.get(entry.item, ()), entry])

    def _hold(self, item: str, held: list[Assignment]) -> None:
        # Invariant: lists are replaced, never modified: allocations share them.
        held.sort(key=_KEY_ORDER)
        if held:
            self._assignments[item] = held
        else:
            del self._assignments[item]
        if (local := next((each for each in held if each.member == self.local), None)) is not None:
            self._local[item] = local
        else:
            self._local.pop(item, None)
