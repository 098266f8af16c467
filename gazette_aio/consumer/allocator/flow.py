"""Maximum flow of items to members, found in stages.

A flow of one unit from an item over one of its zones to a member is a replica. Each stage relaxes
capacities and only augments the flow of earlier stages, so that earlier stages have priority:
replicas stay where they are, then spread evenly over zones and members, then go wherever there is
room. Augmenting paths may move replicas, but never lose one.

The algorithm is Dinic's (E. A. Dinitz, 1970), whose shortest paths prefer placing a replica to
moving others. The arcs from items to all members aren't stored, so that time and memory grow
with items and replicas rather than with pairs of an item and a member. It's plain Python on
purpose: a thread that solves lets the event loop run.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def place(
    replication: Sequence[int],
    limits: Sequence[int],
    zones: Sequence[str],
    current: Sequence[Sequence[int]],
) -> list[list[int]]:
    """Return the members that should hold each item, in order.

    Args:
        replication: Replicas of each item.
        limits: Slots of each member.
        zones: Zone of each member.
        current: Members that hold each item.
    """
    room = sum(limits)
    # Items are served in their order, as far as there are slots.
    wanted: list[int] = []
    slots = 0
    for replicas in replication:
        wanted.append(min(replicas, len(limits), room - slots))
        slots += wanted[-1]
    fair = [min(limit, -(-limit * slots // max(room, 1))) for limit in limits]
    floor = [limit * slots // max(room, 1) for limit in limits]

    numbers = {zone: number for number, zone in enumerate(sorted(set(zones)))}
    flow = _Flow(wanted, [numbers[zone] for zone in zones], len(numbers))
    kept: list[list[int]] = []
    even: list[list[int]] = []
    spread: list[list[int]] = []
    anywhere: list[list[int]] = []
    for replicas, held in zip(wanted, current, strict=True):
        in_zone = [0] * len(numbers)
        for member in held:
            in_zone[numbers[zones[member]]] += 1
        # With a second zone, an item of several replicas isn't all in one.
        most = min(max(replicas - 1, 1), replicas) if len(numbers) > 1 else replicas
        kept.append([min(count, most) for count in in_zone])
        share = -(-replicas // max(len(numbers), 1))
        even.append([min(max(count, share), replicas) for count in kept[-1]])
        spread.append([most] * len(numbers))
        anywhere.append([replicas] * len(numbers))
    # Each line is a stage: members of an item, its replicas in a zone, replicas of a member.
    for members, zone_slots, member_slots in (
        (current, kept, floor),
        (current, kept, fair),
        (None, even, floor),
        (None, even, fair),
        (None, spread, fair),
        (None, spread, limits),
        (None, anywhere, limits),
    ):
        flow.augment(members, zone_slots, member_slots)
    return [sorted(members) for members in flow.held]


class _Flow:
    """A flow from a source over items, items' zones and members to a sink.

    Nodes are numbers: first members, then items, then the zones of each item.

    Attributes:
        held: Members of each item, to which there is flow.
    """

    def __init__(self, wanted: Sequence[int], zone_of: Sequence[int], zones: int) -> None:
        self._wanted = wanted
        self._zone_of = zone_of
        self._zones = zones
        self._first_item = len(zone_of)
        self._first_zone = self._first_item + len(wanted)
        self._by_zone: list[list[int]] = [[] for _ in range(zones)]
        for member, zone in enumerate(zone_of):
            self._by_zone[zone].append(member)
        self._in_zone = [[0] * zones for _ in wanted]
        self._items: list[set[int]] = [set() for _ in zone_of]
        self.held: list[set[int]] = [set() for _ in wanted]

    def augment(
        self,
        members: Sequence[Sequence[int]] | None,
        zone_slots: Sequence[Sequence[int]],
        member_slots: Sequence[int],
    ) -> None:
        """Place more replicas. No replica is lost, though it may move.

        Args:
            members: Members that may hold each item; None for all.
            zone_slots: Most replicas of each item in each zone.
            member_slots: Most replicas of each member.
        """
        self._members, self._zone_slots, self._member_slots = members, zone_slots, member_slots
        while levels := self._find_levels():
            self._levels = levels
            self._spent: set[int] = set()
            self._own: dict[int, list[int]] = {}
            self._shared: dict[tuple[int, int], list[int]] = {}
            for item, replicas in enumerate(self._wanted):
                while len(self.held[item]) < replicas and self._advance(self._first_item + item):
                    pass

    def _find_levels(self) -> dict[int, int]:
        """Return how far nodes are from items that lack replicas, up to members that have room.

        It's empty if there's no such member.
        """
        lacking = enumerate(zip(self.held, self._wanted, strict=True), self._first_item)
        reached = [item for item, (held, replicas) in lacking if len(held) < replicas]
        levels = dict.fromkeys(reached, 0)
        unseen = list(map(set, self._by_zone))
        level, has_ended = 0, False
        while reached and not has_ended:
            level += 1
            following: list[int] = []
            for tail in reached:
                for head in self._heads(tail, unseen):
                    if head not in levels:
                        levels[head] = level
                        following.append(head)
                        has_ended = has_ended or self._has_room(head)
            reached = following
        return levels if has_ended else {}

    def _advance(self, item: int) -> bool:
        """Place a replica along a path whose level rises with each arc, if there's one left."""
        path = [item]
        while path:
            if self._has_room(path[-1]):
                for tail, head in pairwise(path):
                    self._push(tail, head)
                return True
            if (following := self._next(path[-1])) is not None:
                path.append(following)
            else:
                self._spent.add(path.pop())
        return False

    def _next(self, tail: int) -> int | None:
        """Return the head of the first arc of a node that may still lead to a member with room."""
        level = self._levels[tail] + 1
        if (own := self._own.get(tail)) is None:
            heads = [head for head in self._heads(tail) if self._levels.get(head) == level]
            own = self._own[tail] = heads[::-1]
        while own:
            if own[-1] not in self._spent and self._has_capacity(tail, own[-1]):
                return own[-1]
            own.pop()
        if tail < self._first_zone or self._members is not None:
            return None
        # Items share the arcs to all members of a zone: there are too many for each of them.
        item, zone = divmod(tail - self._first_zone, self._zones)
        if (shared := self._shared.get((zone, level))) is None:
            members = reversed(self._by_zone[zone])
            shared = [member for member in members if self._levels.get(member) == level]
            self._shared[zone, level] = shared
        while shared and shared[-1] in self._spent:
            shared.pop()
        free = (member for member in reversed(shared) if member not in self._spent)
        return next((member for member in free if member not in self.held[item]), None)

    def _heads(self, tail: int, unseen: list[set[int]] | None = None) -> Iterator[int]:
        """Yield the heads of a node's arcs that have capacity left.

        Args:
            tail: The node.
            unseen: Members by zone whose levels aren't known yet. Others are left out.
        """
        if tail < self._first_item:
            zone = self._zone_of[tail]
            for item in self._items[tail]:
                yield self._first_zone + item * self._zones + zone
        elif tail < self._first_zone:
            first = self._first_zone + (tail - self._first_item) * self._zones
            for head in range(first, first + self._zones):
                if self._has_capacity(tail, head):
                    yield head
        else:
            item, zone = divmod(tail - self._first_zone, self._zones)
            held = self.held[item]
            if self._members is not None:
                for member in self._members[item]:
                    if self._zone_of[member] == zone and member not in held:
                        yield member
            elif unseen is not None:
                found = unseen[zone] - held
                unseen[zone] -= found
                yield from sorted(found)
            if self._in_zone[item][zone]:
                yield self._first_item + item

    def _has_room(self, node: int) -> bool:
        """Return whether a node is a member that may hold another item."""
        return node < self._first_item and len(self._items[node]) < self._member_slots[node]

    def _has_capacity(self, tail: int, head: int) -> bool:
        item, zone = divmod(max(tail, head) - self._first_zone, self._zones)
        if head < self._first_item:
            return head not in self.held[item]
        if tail < self._first_item:
            return tail in self.held[item]
        if head < self._first_zone:
            return self._in_zone[item][zone] > 0
        return self._in_zone[item][zone] < self._zone_slots[item][zone]

    def _push(self, tail: int, head: int) -> None:
        """Take an arc's capacity, and give it to the reverse arc."""
        item, zone = divmod(max(tail, head) - self._first_zone, self._zones)
        if head < self._first_item:
            self.held[item].add(head)
            self._items[head].add(item)
        elif tail < self._first_item:
            self.held[item].remove(tail)
            self._items[tail].remove(item)
        else:
            self._in_zone[item][zone] += 1 if head > tail else -1
