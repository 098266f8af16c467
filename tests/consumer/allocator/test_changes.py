"""Changes of groups, one after the other, and what becomes of their assignments."""

from __future__ import annotations

from collections import Counter

import pytest

from gazette_aio.consumer.allocator.model import Allocation, MemberID, load_ratio
from gazette_aio.consumer.allocator.solver import solve
from tests.consumer.allocator.settling import assignment, converge, item, member, ready


def identity(name):
    """Return the identity of a member whose zone is the first letter of its name."""
    return MemberID(name[0], name)


class Group:
    """Members by their limits, items by their replication, and who holds what."""

    def __init__(self, members, items, held=()):
        self.members = dict(members)
        self.items = dict(items)
        self.exiting = set()
        self.created = {}
        self.assignments = [
            assignment(item, *identity(name), slot, is_consistent)
            for item, name, slot, is_consistent in held
        ]

    @property
    def allocation(self):
        members = [
            member(
                *identity(name),
                limit,
                exiting=name in self.exiting,
                created=self.created.get(name, 1),
            )
            for name, limit in self.members.items()
        ]
        items = [item(name, count) for name, count in self.items.items()]
        return Allocation.of(members, items, self.assignments)

    def settle(self, *, become_consistent=True):
        """Solve and take steps, and return how many items a member got and lost, by its name."""
        before = self.pairs
        if become_consistent:
            self.assignments = list(map(ready, self.assignments))
        allocation = self.allocation
        desired = solve(allocation)
        rest, self.rounds = converge(allocation, desired, become_consistent=become_consistent)
        self.assignments = [each for held in rest.assignments.values() for each in held]
        for name, limit in self.allocation.limits.items():
            if become_consistent:
                assert self.held[name.suffix] <= limit or self.is_overloaded
        return len(self.pairs - before), len(before - self.pairs)

    @property
    def is_overloaded(self):
        return self.allocation.item_slots > self.allocation.member_slots

    @property
    def pairs(self):
        return {(each.item, each.member.suffix) for each in self.assignments}

    @property
    def held(self):
        return Counter(each.member.suffix for each in self.assignments)

    def members_of(self, item):
        return {name for held, name in self.pairs if held == item}

    def zones_of(self, item):
        return {name[0] for name in self.members_of(item)}

    def slots(self, item):
        return {each.member.suffix: each.slot for each in self.assignments if each.item == item}

    def primaries(self):
        return Counter(each.member.suffix for each in self.assignments if each.slot == 0)


ONE_TO_THREE = {"item-1": 1, "item-2": 2, "item-3": 3}


def test_a_member_is_replaced_only_once_others_are_consistent():
    held = [("item-1", "a-old", 0, False), ("item-2", "a-old", 3, False)]
    group = Group({"a-old": 0, "a-new": 5}, {"item-1": 1, "item-2": 1}, held)
    assert group.settle(become_consistent=False) == (2, 0)
    assert group.settle() == (0, 2)
    assert group.held == {"a-new": 2}
    assert group.slots("item-1") == group.slots("item-2") == {"a-new": 0}


def test_members_that_take_over_have_a_primary_each():
    held = [("item-1", "a-old", 0, True), ("item-2", "a-old", 0, True)]
    group = Group({"a-old": 0, "a-new": 1, "a-too": 1}, {"item-1": 1, "item-2": 1}, held)
    assert group.settle(become_consistent=False) == (2, 0), "what's added precedes what's removed"
    group.settle()
    assert group.primaries() == {"a-new": 1, "a-too": 1}
    assert group.held == {"a-new": 1, "a-too": 1}


def test_a_member_whose_limit_changes():
    group = Group({"a": 2, "b": 4, "c": 2}, ONE_TO_THREE)
    group.settle()
    assert group.settle() == (0, 0)
    few = group.held["c"]
    group.members["c"] = 10
    added, removed = group.settle()
    assert added == removed == group.held["c"] - few
    for limit, most in ((2, 2), (1, 1)):
        group.members["c"] = limit
        surplus = max(group.held["c"] - limit, 0)
        added, removed = group.settle()
        assert added == removed >= surplus
        assert group.held["c"] <= most
        assert len(group.pairs) == 6
    assert group.settle() == (0, 0)


def test_items_whose_replication_is_swapped():
    group = Group({"a": 9, "b": 9, "c": 9}, ONE_TO_THREE)
    group.settle()
    before = group.members_of("item-1"), group.members_of("item-3")
    group.items |= {"item-1": 3, "item-3": 1}
    added, removed = group.settle()
    assert added == removed
    assert group.members_of("item-1") > before[0]
    assert group.members_of("item-3") < before[1]
    assert list(group.slots("item-3").values()) == [0]


def test_a_group_that_has_too_few_slots_at_first():
    group = Group({"a1": 1}, ONE_TO_THREE)
    assert group.settle() == (1, 0)
    assert group.members_of("item-1") == {"a1"}
    group.members["a2"] = 2
    group.settle()
    assert {item: len(group.members_of(item)) for item in ONE_TO_THREE} == {
        "item-1": 1, "item-2": 2, "item-3": 0,
    }  # fmt: skip
    group.members["a3"] = 3
    group.settle()
    assert {item: len(group.members_of(item)) for item in ONE_TO_THREE} == ONE_TO_THREE
    # A member of a full group keeps what nobody else can hold.
    group.members["a3"] = 2
    assert group.settle() == (0, 0)


def test_a_zone_is_added_that_holds_some_items_only():
    group = Group({"a1": 3, "a2": 3}, dict.fromkeys(("item-1", "item-2", "item-3"), 2))
    assert group.settle() == (6, 0)
    group.members["b"] = 2
    assert group.settle() == (2, 2)
    assert sorted(len(group.zones_of(item)) for item in group.items) == [1, 2, 2]
    group.members["b"] = 3
    assert group.settle() == (1, 1)
    assert all(group.zones_of(item) == {"a", "b"} for item in group.items)
    group.items["item-4"] = 1
    assert group.settle() == (1, 0)
    # Most of its room goes again.
    group.members["b"] = 2
    group.settle()
    assert group.held["b"] == 2
    # All of it goes, and a member of the other zone comes.
    group.members |= {"b": 0, "a3": 3}
    group.settle()
    assert group.held["b"] == 0
    assert all(group.zones_of(item) == {"a"} for item in group.items)
    assert len(group.pairs) == 7


def test_a_third_zone_gets_new_replicas_only():
    group = Group({"a1": 10, "a2": 10, "b1": 10, "b2": 10}, {"item-1": 2, "item-2": 2})
    group.settle()
    group.members["c"] = 10
    assert group.settle() == (0, 0)
    group.items = {"item-1": 3, "item-2": 3}
    assert group.settle() == (2, 0)
    assert all(group.zones_of(item) == {"a", "b", "c"} for item in group.items)
    group.members["c"] = 0
    assert group.settle() == (2, 2)
    assert all(group.zones_of(item) == {"a", "b"} for item in group.items)


@pytest.mark.parametrize("names", [("a1", "a2"), ("a1", "b1")])
def test_members_whose_limits_are_swapped(names):
    one, other = names
    group = Group({one: 1, other: 3}, {f"item-{n}": 1 for n in range(4)})
    group.settle()
    group.members = {one: 3, other: 1}
    assert group.settle() == (2, 2)
    assert group.held == {one: 3, other: 1}


def test_a_member_that_is_added():
    group = Group({"a1": 1, "a2": 2, "a3": 3}, ONE_TO_THREE)
    group.settle()
    assert group.held == {"a1": 1, "a2": 2, "a3": 3}
    group.members["a4"] = 1
    assert group.settle() == (0, 0), "nobody has more than a fair share"
    group.members["a4"] = 3
    assert group.settle() == (1, 1)
    assert group.held == {"a1": 1, "a2": 2, "a3": 2, "a4": 1}


def test_members_that_exit_are_emptied():
    group = Group(
        {"a1": 4, "a2": 4, "b1": 4, "b2": 4},
        {f"item-{n}": 1 for n in range(4)},
        [(f"item-{n}", name, 0, True) for n, name in enumerate(("a1", "a2", "b1", "b2"))],
    )
    group.created = {"a2": 1, "a1": 2, "b1": 3, "b2": 4}
    assert group.settle() == (0, 0)
    group.exiting = {"a1", "b1"}
    assert group.settle() == (2, 2)
    assert group.held["a1"] == group.held["b1"] == 0
    assert len(group.pairs) == 4


def test_assignments_of_a_member_that_has_vanished():
    held = [
        ("item-1", "a-gone", 0, True),
        ("item-2", "a-gone", 0, True),
        ("item-2", "a1", 1, True),
    ]
    group = Group({"a1": 5, "a2": 5}, {"item-1": 1, "item-2": 1}, held)
    group.settle(become_consistent=False)
    # It's needed as long as nobody else has caught up.
    assert "a-gone" in group.members_of("item-1")
    assert group.slots("item-2") == {"a1": 0}
    group.settle()
    assert "a-gone" not in group.held
    assert sorted(group.slots("item-1").values()) == [0]


@pytest.mark.parametrize(
    ("members", "limit", "items", "replication", "exiting", "shed"),
    [
        (5, 5, 5, 1, 2, [5, 5, 0, 0, 0]),
        (4, 10, 3, 3, 2, [10, 0, 0, 0]),  # Three members have to stay.
        (4, 3, 5, 1, 3, [3, 3, 1, 0]),  # Seven slots are to spare.
        (2, 2, 4, 1, 2, [0, 0]),
        (3, 9, 1, 1, 0, [0, 0, 0]),
    ],
)
def test_capacity_that_exiting_members_shed(members, limit, items, replication, exiting, shed):
    names = [f"a{n}" for n in range(members)]
    group = Group(dict.fromkeys(names, limit), {f"item-{n}": replication for n in range(items)})
    group.exiting = set(names[:exiting])
    allocation = group.allocation
    assert [allocation.shed_capacity.get(identity(name), 0) for name in names] == shed
    assert allocation.member_slots == members * limit - sum(shed)
    for name, count in zip(names, shed, strict=True):
        assert (load_ratio(0, allocation.limits[identity(name)]) == float("inf")) == (
            count == limit
        )


@pytest.mark.parametrize(
    ("limits", "replication", "obstacles"),
    [
        # Obstacles of the members that exit, from the first on.
        ([9, 9], 1, [""]),
        ([9, 9], 1, ["", "start 1 more"]),
        ([9, 9], 2, ["start 1 more"]),
        ([9, 9], 2, ["start 1 more", "start 2 more"]),
        ([9, 9, 9], 2, ["", "start 1 more"]),
        ([9], 1, ["start 1 more"]),
        ([9, 1, 1], 1, ["limits of the other members"]),
        ([0, 9], 1, [""]),
    ],
)
def test_what_keeps_exiting_members_from_leaving(limits, replication, obstacles):
    names = [f"a{n}" for n in range(len(limits))]
    group = Group(
        dict(zip(names, limits, strict=True)), dict.fromkeys(["one", "two", "three"], replication)
    )
    group.exiting = set(names[: len(obstacles)])
    found = [group.allocation.obstacle(identity(name)) for name in sorted(group.exiting)]
    for text, expected in zip(found, obstacles, strict=True):
        assert text.endswith(expected) if expected.startswith("start") else expected in text
        assert bool(text) == bool(expected)
