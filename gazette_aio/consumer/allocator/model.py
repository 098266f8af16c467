"""Members, items and assignments of a group, and the numbers that follow from them."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from gazette_aio.protocol.consumer import ReplicaStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gazette_aio.consumer.keyspace.operations import KeyValue
    from gazette_aio.protocol.consumer import ConsumerSpec, ShardSpec

MAX_SLOT: Final = 10**9 - 1
"""Greatest slot of an assignment. Keys of greater ones mean nothing."""


class MemberID(NamedTuple):
    """Identity of a member: unique within its group, and ordered as the members' keys."""

    zone: str
    suffix: str


class Desired(NamedTuple):
    """A replica that an item should have."""

    item: str
    member: MemberID


@dataclass(frozen=True, slots=True)
class Member:
    """A process that holds at most `limit` assignments, while the lease of its key lives."""

    raw: KeyValue
    """The key, its value and its revisions."""
    spec: ConsumerSpec
    id: MemberID

    @property
    def limit(self) -> int:
        """Most assignments of the member."""
        return self.spec.shard_limit

    @property
    def exiting(self) -> bool:
        """Whether the member wants others to take over what it holds."""
        return self.spec.exiting


@dataclass(frozen=True, slots=True)
class Item:
    """A shard that `replication` members should hold."""

    raw: KeyValue
    """The key, its value and its revisions."""
    spec: ShardSpec
    id: str
    replication: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """A shard's replica at a member. The replica of slot 0 is the primary."""

    raw: KeyValue
    """The key, its value and its revisions."""
    status: ReplicaStatus
    """Status that the replica reported last; that of a new assignment is empty."""
    item: str
    member: MemberID
    slot: int


GroupEntry: TypeAlias = Member | Item | Assignment
"""Meaning of a key of a group."""


def shard_is_consistent(assignment: Assignment, assignments: Sequence[Assignment]) -> bool:
    """Return whether a replica has caught up, so that other replicas of its shard may go.

    A failed replica counts as caught up only if the primary has failed as well, so that members
    can exit.

    Args:
        assignment: Assignment of the replica.
        assignments: All assignments of the shard.
    """
    code = assignment.status.code
    if code == ReplicaStatus.FAILED:
        return any(each.slot == 0 and each.status.code == code for each in assignments)
    return code >= ReplicaStatus.STANDBY


@dataclass(frozen=True)
class Allocation:
    """Members, items and assignments as of one revision. It's never modified.

    `members` and `items` are in the order of their keys, and so are the assignments of an item.
    """

    members: Mapping[MemberID, Member]
    items: Mapping[str, Item]
    assignments: Mapping[str, Sequence[Assignment]]

    @classmethod
    def of(
        cls,
        members: Iterable[Member],
        items: Iterable[Item],
        assignments: Iterable[Assignment] = (),
    ) -> Allocation:
        """Sort and index parts that come in any order."""
        by_item: dict[str, list[Assignment]] = defaultdict(list)
        for assignment in sorted(assignments, key=lambda each: (each.item, each.member, each.slot)):
            by_item[assignment.item].append(assignment)
        return cls(
            {member.id: member for member in sorted(members, key=lambda each: each.id)},
            {item.id: item for item in sorted(items, key=lambda each: each.id)},
            dict(by_item),
        )

    @cached_property
    def item_slots(self) -> int:
        """Replicas that all items should have."""
        return sum(item.replication for item in self.items.values())

    @cached_property
    def shed_capacity(self) -> Mapping[MemberID, int]:
        """Slots that exiting members give up, which others have to spare.

        The oldest exiting members come first, and as many members stay as an item has replicas.
        """
        slots = sum(member.limit for member in self.members.values())
        excess = max(0, slots - self.item_slots)
        shed: dict[MemberID, int] = {}
        for member in self._exiting[: max(0, len(self.members) - self.greatest_replication)]:
            shed[member.id] = min(member.limit, excess)
            excess -= shed[member.id]
        return shed

    @cached_property
    def greatest_replication(self) -> int:
        """Replicas of the item that should have most."""
        return max((item.replication for item in self.items.values()), default=0)

    @cached_property
    def _exiting(self) -> Sequence[Member]:
        """Members that exit, the oldest first."""
        exiting = (member for member in self.members.values() if member.exiting)
        return sorted(exiting, key=lambda member: (member.raw.create_revision, member.id))

    def obstacle(self, exiting: MemberID) -> str:
        """Return why an exiting member can't leave before the group changes, or an empty text."""
        place = [member.id for member in self._exiting].index(exiting)
        missing = place + 1 - (len(self.members) - self.greatest_replication)
        if self.members[exiting].limit > 0 and missing > 0:
            return (
                "as many members have to stay as a shard has replicas (at most "
                f"{self.greatest_replication}), and the group has {len(self.members)}: "
                f"start {missing} more"
            )
        if self.limits[exiting] > 0 or self.member_slots < self.item_slots:
            return "the limits of the other members are too low: raise them, or start one more"
        return ""

    @cached_property
    def limits(self) -> Mapping[MemberID, int]:
        """Effective limits of members: less what exiting members shed."""
        shed = self.shed_capacity
        return {each.id: each.limit - shed.get(each.id, 0) for each in self.members.values()}

    @cached_property
    def member_slots(self) -> int:
        """Replicas that all members may hold."""
        return sum(self.limits.values())

    @cached_property
    def totals(self) -> Counter[MemberID]:
        """Assignments of items that exist, by member."""
        return Counter(
            each.member for item in self.items for each in self.assignments.get(item, ())
        )

    @cached_property
    def primaries(self) -> Counter[MemberID]:
        """Those of slot 0, by member."""
        return Counter(
            each.member
            for item in self.items
            for each in self.assignments.get(item, ())
            if each.slot == 0
        )

    @cached_property
    def network(self) -> int:
        """Hash of all that a solution depends on besides assignments, for this process alone."""
        return hash(
            (
                tuple(self.limits.items()),
                tuple((item.id, item.replication) for item in self.items.values()),
            )
        )


def load_ratio(count: int, limit: int | None) -> float:
    """Return how loaded a member is: its assignments per slot.

    A member that vanished (`limit` None) is more loaded than any member, and a member without slots
    the more so. A member with nothing to hold and nothing held counts as full as well.
    """
    if limit is None:
        return float(2**31)
    return count / limit if limit > 0 else float("inf")
