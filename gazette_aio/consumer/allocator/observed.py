"""View of a key space as a group: members, items, assignments, and those of this member."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from gazette_aio.consumer.allocator.model import Allocation, Assignment, Item, Member

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gazette_aio.consumer.allocator.model import IsConsistent, MemberID
    from gazette_aio.consumer.keyspace.entries import Change

K = TypeVar("K", bound="str | MemberID")
V = TypeVar("V")

GroupEntry: TypeAlias = Member | Item | Assignment
"""Meaning of a key of a group."""


@dataclass(frozen=True, slots=True)
class LocalItem:
    """An item that this member holds a replica of, with the assignments of the item."""

    item: Item
    assignment: Assignment
    assignments: Sequence[Assignment]


class _Ordered(dict[K, V]):
    """A mapping that is put in the order of its keys when that's asked for.

    It stays in order while values are replaced and keys removed, so that new keys alone cost a
    sort.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_sorted = True

    def __setitem__(self, key: K, value: V) -> None:
        if key not in self:
            self._is_sorted = False
        super().__setitem__(key, value)

    def in_order(self) -> dict[K, V]:
        """Return a copy in the order of the keys."""
        if not self._is_sorted:
            ordered = {key: self[key] for key in sorted(self)}
            self.clear()
            self.update(ordered)
            self._is_sorted = True
        return self.copy()


class ObservedGroup:
    """The group as of the last change of a key space. Its `observe` is an observer of that.

    Args:
        local: Identity of this member.
        is_consistent: Tells whether an assignment has caught up.
    """

    def __init__(self, local: MemberID, is_consistent: IsConsistent) -> None:
        self.local = local
        self.is_consistent = is_consistent
        self._members: _Ordered[MemberID, Member] = _Ordered()
        self._items: _Ordered[str, Item] = _Ordered()
        self._assignments: _Ordered[str, list[Assignment]] = _Ordered()
        self._local: dict[str, Assignment] = {}
        self._allocation: Allocation | None = None

    def __repr__(self) -> str:
        return (
            f"<ObservedGroup {self.local.zone}#{self.local.suffix} members={len(self._members)} "
            f"items={len(self._items)} local={len(self._local)}>"
        )

    def observe(self, changes: Sequence[Change[GroupEntry]]) -> None:
        """Take changes of the key space."""
        for change in changes:
            if change.before is not None:
                self._forget(change.before.decoded)
            if change.after is not None:
                self._add(change.after.decoded)
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
            self._members.values(), key=lambda each: (each.create_revision, each.id), default=None
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
                self._members.in_order(), self._items.in_order(), self._assignments.in_order()
            )
        return self._allocation

    def _forget(self, entry: GroupEntry) -> None:
        match entry:
            case Member():
                del self._members[entry.id]
            case Item():
                del self._items[entry.id]
            case Assignment():
                held = self._assignments[entry.item]
                self._hold(entry.item, [each for each in held if each.key != entry.key])

    def _add(self, entry: GroupEntry) -> None:
        match entry:
            case Member():
                self._members[entry.id] = entry
            case Item():
                self._items[entry.id] = entry
            case Assignment():
                self._hold(entry.item, [*self._assignments.get(entry.item, ()), entry])

    def _hold(self, item: str, held: list[Assignment]) -> None:
        # Invariant: lists are replaced, never modified: allocations share them.
        held.sort(key=lambda each: (each.member, each.slot))
        if held:
            self._assignments[item] = held
        else:
            del self._assignments[item]
        if (local := next((each for each in held if each.member == self.local), None)) is not None:
            self._local[item] = local
        else:
            self._local.pop(item, None)
