"""Solution of a group: which member should hold which replicas.

scipy is imported by the first solution: it takes some tenths of a second.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final

from gazette_aio.consumer.allocator.model import Desired, MemberID
from gazette_aio.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from gazette_aio.consumer.allocator.model import Allocation

_INDEX: Final = "i"


@dataclass(frozen=True)
class Problem:
    """All that a solution depends on, as plain values that another process can take."""

    items: list[str]
    replication: list[int]
    members: list[MemberID]
    limits: list[int]
    current: list[tuple[int, int]]
    """Pairs of indices, of an item and of a member."""

    @classmethod
    def of(cls, allocation: Allocation) -> Problem:
        """Describe the group. Members without slots, and their assignments, are left out."""
        members = [member for member, limit in allocation.limits.items() if limit > 0]
        member_index = {member: index for index, member in enumerate(members)}
        # Assignments are in the order of members, so that the pairs are in order, too.
        current = dict.fromkeys(
            (index, member_index[each.member])
            for index, item in enumerate(allocation.items)
            for each in allocation.assignments.get(item, ())
            if each.member in member_index
        )
        return cls(
            items=list(allocation.items),
            replication=[item.replication for item in allocation.items.values()],
            members=members,
            limits=[allocation.limits[member] for member in members],
            current=list(current),
        )


def solve(problem: Problem) -> list[Desired]:
    """Return the replicas to have, ordered by item and member.

    In order of priority: as many replicas as there's room for, where items that come first are
    served first; items of several replicas in more than one zone; members within their fair share;
    replicas where they are; replicas spread evenly over zones.

    Raises:
        ConfigurationError: scipy isn't installed.
    """
    return desired(problem, solve_packed(problem))


def solve_packed(problem: Problem) -> bytes:
    """Return the same as the indices of items and members, which another process sends in no time.

    Raises:
        ConfigurationError: scipy isn't installed.
    """
    try:
        from gazette_aio.consumer.allocator.flow import place  # noqa: PLC0415
    except ImportError as error:
        raise ConfigurationError(
            f"allocation needs scipy ({error}): pip install 'gazette-aio[consumer]'"
        ) from None
    replicas = place(
        problem.replication,
        problem.limits,
        [member.zone for member in problem.members],
        problem.current,
    )
    return array(_INDEX, chain.from_iterable(replicas)).tobytes()


def desired(problem: Problem, packed: bytes) -> list[Desired]:
    """Return the replicas of a packed solution."""
    indices = array(_INDEX)
    indices.frombytes(packed)
    pairs = iter(indices)
    return [
        Desired(problem.items[item], problem.members[member])
        for item, member in zip(pairs, pairs, strict=True)
    ]
