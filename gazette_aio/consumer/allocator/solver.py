"""Solution of a group: which member should hold which replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_aio.consumer.allocator.flow import place
from gazette_aio.consumer.allocator.model import Desired

if TYPE_CHECKING:
    from gazette_aio.consumer.allocator.model import Allocation


def solve(allocation: Allocation) -> list[Desired]:
    """Return the replicas to have, ordered by item and member.

    In order of priority: as many replicas as there's room for, where items that come first are
    served first; items of several replicas in more than one zone; members within their fair share;
    replicas where they are; replicas spread evenly over zones.
    """
    members = [member for member, limit in allocation.limits.items() if limit > 0]
    numbers = {member: number for number, member in enumerate(members)}
    current = [
        sorted({numbers[each.member] for each in held if each.member in numbers})
        for held in (allocation.assignments.get(item, ()) for item in allocation.items)
    ]
    held = place(
        [item.replication for item in allocation.items.values()],
        [allocation.limits[member] for member in members],
        [member.zone for member in members],
        current,
    )
    return [
        Desired(item, members[number])
        for item, holders in zip(allocation.items, held, strict=True)
        for number in holders
    ]
