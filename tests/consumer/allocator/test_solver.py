"""Properties of solutions of any group: validity, capacity, zones, balance, stability."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_aio.consumer.allocator import flow
from gazette_aio.consumer.allocator.model import Allocation, MemberID, change_summary
from gazette_aio.consumer.allocator.solver import Problem, solve
from tests.consumer.allocator.settling import assignment, item, member

GROUPS = st.builds(
    lambda limits, replication: Allocation.of(
        [member(f"zone-{n % 3}", f"m{n:03}", limit) for n, limit in enumerate(limits)],
        [item(f"item-{n:03}", count) for n, count in enumerate(replication)],
    ),
    st.lists(st.integers(0, 6), max_size=7),
    st.lists(st.integers(0, 4), max_size=12),
)


def assigned(allocation, desired):
    return Allocation.of(
        allocation.members.values(),
        allocation.items.values(),
        [assignment(each.item, *each.member, 0) for each in desired],
    )


def without(allocation, lost):
    members = [each for each in allocation.members.values() if each.id != lost]
    held = [each for of in allocation.assignments.values() for each in of if each.member != lost]
    return Allocation.of(members, allocation.items.values(), held)


@given(GROUPS)
def test_solutions_are_valid_and_serve_the_first_items(allocation):
    desired = solve(Problem.of(allocation))
    assert desired == sorted(set(desired))
    by_member, by_item = Counter(x.member for x in desired), Counter(x.item for x in desired)
    assert all(count <= allocation.limits[member] for member, count in by_member.items())
    assert all(count <= allocation.items[item].replication for item, count in by_item.items())
    usable = sum(limit > 0 for limit in allocation.limits.values())
    wanted = [
        min(item.replication, len(allocation.members), usable) for item in allocation.items.values()
    ]
    # Members of one slot each may not be able to take all: a flow is as large as it can be.
    assert len(desired) <= min(sum(wanted), allocation.member_slots)
    if all(limit >= len(allocation.items) for limit in allocation.limits.values() if limit):
        assert [by_item[item] for item in allocation.items] == wanted


@pytest.mark.parametrize(
    ("slots", "replication"), [(1, [3, 2, 2, 1]), (2, [2, 3, 1, 2, 1, 3]), (2, [3, 3, 2, 3])]
)
def test_members_with_the_greatest_limit_leave_no_replica_out(slots, replication):
    def placed(limit):
        limits = enumerate([limit, slots, limit])
        members = [member(f"zone-{n % 2}", f"m{n}", each) for n, each in limits]
        items = [item(f"item-{n}", count) for n, count in enumerate(replication)]
        return len(solve(Problem.of(Allocation.of(members, items))))

    assert placed(2**32 - 1) == placed(100)


@given(GROUPS)
def test_solutions_are_stable(allocation):
    desired = solve(Problem.of(allocation))
    again = solve(Problem.of(assigned(allocation, desired)))
    assert change_summary(assigned(allocation, desired), again).added == 0
    assert len(again) == len(desired)


@given(st.integers(2, 6), st.integers(1, 30), st.integers(1, 2))
def test_members_have_their_fair_shares_and_items_two_zones(members, items, replication):
    allocation = Allocation.of(
        [member(f"zone-{n % 2}", f"m{n}", items) for n in range(members)],
        [item(f"item-{n}", replication) for n in range(items)],
    )
    desired = solve(Problem.of(allocation))
    assert len(desired) == items * replication
    held = Counter(each.member for each in desired)
    if replication == 1 or members % 2 == 0:
        assert max(held.values()) <= -(-items * replication // members)
    if replication == 2:
        assert all(
            len({each.member.zone for each in desired if each.item == item}) == 2
            for item in allocation.items
        )


@given(st.integers(3, 8), st.integers(1, 40))
def test_only_replicas_of_a_lost_member_move(members, items):
    allocation = Allocation.of(
        [member("zone", f"m{n}", items) for n in range(members)],
        [item(f"item-{n:02}", 1) for n in range(items)],
    )
    before = assigned(allocation, solve(Problem.of(allocation)))
    left = without(before, MemberID("zone", "m0"))
    change = change_summary(left, solve(Problem.of(left)))
    assert change.removed == 0
    assert change.unchanged + change.added == items


@pytest.mark.parametrize("arcs", [1, 17, 40])
def test_large_groups_are_solved_in_parts_within_limits(monkeypatch, arcs):
    monkeypatch.setattr(flow, "MAX_ARCS", arcs)
    allocation = Allocation.of(
        [member(f"zone-{n % 2}", f"m{n}", 7) for n in range(6)],
        [item(f"item-{n:02}", 2) for n in range(21)],
    )
    desired = solve(Problem.of(allocation))
    held = Counter(each.member for each in desired)
    assert len(desired) == len(set(desired))
    assert all(count <= 7 for count in held.values())
    assert len(desired) >= 40


def test_nothing_to_solve():
    assert solve(Problem.of(Allocation.of([], [item("a", 1)]))) == []
    assert solve(Problem.of(Allocation.of([member("z", "m", 1)], []))) == []
