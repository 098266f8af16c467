"""Steps from the assignments that are there to those desired, an item at a time.

An item gets its new replicas first. Old replicas go only as far as enough consistent replicas
remain, and a primary is never demoted: it stays, or goes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gazette_aio.consumer.allocator.model import MAX_SLOT, load_ratio, shard_is_consistent
from gazette_aio.consumer.keyspace.operations import (
    MAX_OPERATIONS,
    Compare,
    Delete,
    Operation,
    Put,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gazette_aio.consumer.allocator.model import (
        Allocation,
        Assignment,
        Desired,
        Item,
        MemberID,
    )
    from gazette_aio.consumer.keyspace.keys import GroupKeys


@dataclass(slots=True)
class Checkpoint:
    """Operations that take effect together, if all comparisons hold."""

    compares: list[Compare] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)


class Convergence:
    """One round of steps. Members' loads are kept up to date as steps are decided.

    Attributes:
        added: Number of new assignments, of the steps so far.
        removed: Number of removed ones.
        packed: Number of those that got another slot, promotions among them.
    """

    def __init__(
        self,
        allocation: Allocation,
        desired: Sequence[Desired],
        keys: GroupKeys,
    ) -> None:
        self._allocation = allocation
        self._keys = keys
        self._totals = Counter(allocation.totals)
        self._primaries = Counter(allocation.primaries)
        self._desired: dict[str, list[MemberID]] = defaultdict(list)
        for replica in desired:
            self._desired[replica.item].append(replica.member)
        self.added: int
        self.packed: int
        self.removed: int
        self.added = self.removed = self.packed = 0

    def checkpoints(self) -> Iterator[Checkpoint]:
        """Yield a checkpoint for each item, in order. It's empty where nothing is to be done.

        A caller may pause between two of them: each operation is guarded by comparisons.
        """
        for item_id, held in self._allocation.assignments.items():
            if item_id not in self._allocation.items:
                yield self._remove_dead(item_id, held)
        for item in self._allocation.items.values():
            yield self._converge(item)

    def _remove_dead(self, item_id: str, held: Sequence[Assignment]) -> Checkpoint:
        """Remove the assignments of an item that doesn't exist."""
        checkpoint = Checkpoint([Compare.create_revision(self._keys.item(item_id), 0)])
        for assignment in held:
            self._delete(checkpoint, assignment)
        self.removed += len(held)
        return checkpoint

    def _converge(self, item: Item) -> Checkpoint:
        current: list[Assignment] = []
        extra: list[Assignment] = []  # A member's assignments after that of its lowest slot.
        for each in self._allocation.assignments.get(item.id, ()):
            is_extra = bool(current) and current[-1].member == each.member
            (extra if is_extra else current).append(each)
        desired = self._desired.get(item.id, [])
        wanted = set(desired)
        held = {assignment.member for assignment in current}
        slot = max((assignment.slot for assignment in current + extra), default=-1) + 1
        adds = [member for member in desired if member not in held]
        kept = [assignment for assignment in current if assignment.member in wanted]
        surplus = [assignment for assignment in current if assignment.member not in wanted]
        slots = sorted(assignment.slot for assignment in kept)
        if len(desired) == len(current) and slots == list(range(len(desired))) and not extra:
            return Checkpoint()  # Fast path: as desired, and slots are packed.
        removes, stay = self._constrain_removals(item, current, surplus)
        removes += extra
        kept = self._in_order(kept + stay, current)

        checkpoint = Checkpoint()
        added = 0
        for member in adds if current else self._primary_first(adds):
            # Beyond the last slot, nothing is added until the slots in use are packed.
            if self._totals[member] < self._limit(member) and slot <= MAX_SLOT:
                self._add(checkpoint, item, member, slot)
                added += 1
            slot += 1
        for assignment in removes:
            self._remove(checkpoint, item, assignment)
        if kept and kept[0].slot != 0:
            self._move(checkpoint, kept[0], 0)
        if not added and not removes:
            for index, assignment in enumerate(kept[1:], start=1):
                if assignment.slot != index:
                    self._move(checkpoint, assignment, index)
                    break
        return checkpoint

    def _constrain_removals(
        self, item: Item, current: Sequence[Assignment], surplus: list[Assignment]
    ) -> tuple[list[Assignment], list[Assignment]]:
        """Split what isn't desired: what may go now, and what has to stay for the time being."""
        consistent = {each.member for each in current if shard_is_consistent(each, current)}
        left = sum(each.member in consistent for each in current)
        surplus.sort(
            key=lambda each: load_ratio(self._totals[each.member], self._limits(each.member)),
            reverse=True,
        )
        for index, assignment in enumerate(surplus):
            is_consistent = assignment.member in consistent
            if left < item.replication or (is_consistent and left == item.replication):
                return surplus[:index], surplus[index:]
            left -= is_consistent
        return surplus, []

    def _in_order(self, kept: list[Assignment], current: Sequence[Assignment]) -> list[Assignment]:
        """Order by slot. Where there is no primary, the one to promote comes first."""
        kept.sort(key=lambda each: each.slot)
        if kept and kept[0].slot != 0:
            promoted = min(
                kept,
                key=lambda each: (
                    not shard_is_consistent(each, current),
                    load_ratio(self._primaries[each.member], self._limits(each.member)),
                ),
            )
            kept.remove(promoted)
            kept.insert(0, promoted)
        return kept

    def _primary_first(self, members: list[MemberID]) -> list[MemberID]:
        """Put the member with the fewest primaries for its slots in front, if it has room."""
        free = [each for each in members if self._totals[each] < self._limit(each)]
        if not free:
            return members
        primary = min(free, key=lambda each: load_ratio(self._primaries[each], self._limits(each)))
        return [primary, *(each for each in members if each != primary)]

    def _add(self, checkpoint: Checkpoint, item: Item, member: MemberID, slot: int) -> None:
        holder = self._allocation.members[member]
        checkpoint.compares.append(Compare.unchanged(holder.raw))
        key = self._keys.assignment(item.id, *member, slot)
        checkpoint.operations.append(Put(key, b"", lease=holder.raw.lease))
        self._totals[member] += 1
        self._primaries[member] += slot == 0
        self.added += 1

    def _remove(self, checkpoint: Checkpoint, item: Item, assignment: Assignment) -> None:
        compare = Compare.unchanged(item.raw)
        if compare not in checkpoint.compares:
            checkpoint.compares.append(compare)
        self._delete(checkpoint, assignment)
        self._totals[assignment.member] -= 1
        self._primaries[assignment.member] -= assignment.slot == 0
        self.removed += 1

    def _move(self, checkpoint: Checkpoint, assignment: Assignment, slot: int) -> None:
        """Give an assignment another slot. Its value and lease stay."""
        self._delete(checkpoint, assignment)
        key = self._keys.assignment(assignment.item, *assignment.member, slot)
        checkpoint.operations.append(Put(key, assignment.raw.value, lease=assignment.raw.lease))
        self._primaries[assignment.member] += slot == 0
        self.packed += 1

    @staticmethod
    def _delete(checkpoint: Checkpoint, assignment: Assignment) -> None:
        checkpoint.compares.append(Compare.unchanged(assignment.raw))
        checkpoint.operations.append(Delete(assignment.raw.key))

    def _limits(self, member: MemberID) -> int | None:
        return self._allocation.limits.get(member)

    def _limit(self, member: MemberID) -> int:
        return self._allocation.limits.get(member, 0)


def pack(checkpoints: Iterable[Checkpoint], fixed: Sequence[Compare] = ()) -> Iterator[Checkpoint]:
    """Yield transactions that the store accepts: whole checkpoints, with `fixed` in front.

    A checkpoint that exceeds the store's bounds by itself is a transaction of its own.
    """
    packed = Checkpoint(list(fixed))
    for checkpoint in checkpoints:
        if not checkpoint.operations:
            assert not checkpoint.compares, "a checkpoint compares only where it changes something"
            continue
        if packed.operations and (
            len(packed.compares) + len(checkpoint.compares) > MAX_OPERATIONS
            or len(packed.operations) + len(checkpoint.operations) > MAX_OPERATIONS
        ):
            yield packed
            packed = Checkpoint(list(fixed))
        packed.compares.extend(checkpoint.compares)
        packed.operations.extend(checkpoint.operations)
    if packed.operations:
        yield packed
