"""Properties of solutions of any group: validity, capacity, zones, balance, stability."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_aio.consumer.allocator.flow import place
from gazette_aio.consumer.allocator.model import Allocation, MemberID
from gazette_aio.consumer.allocator.solver import solve
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
    desired = solve(allocation)
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
        return len(solve(Allocation.of(members, items)))

    assert placed(2**32 - 1) == placed(100)


@given(GROUPS)
def test_solutions_are_stable(allocation):
    desired = solve(allocation)
    again = solve(assigned(allocation, desired))
    assert set(again) == set(desired)


@given(st.integers(2, 6), st.integers(1, 30), st.integers(1, 2))
def test_members_have_their_fair_shares_and_items_two_zones(members, items, replication):
    allocation = Allocation.of(
        [member(f"zone-{n % 2}", f"m{n}", items) for n in range(members)],
        [item(f"item-{n}", replication) for n in range(items)],
    )
    desired = solve(allocation)
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
    desired = solve(allocation)
    lost = MemberID("zone", "m0")
    again = solve(without(assigned(allocation, desired), lost))
    assert {each for each in desired if each.member != lost} <= set(again)
    assert len(again) == items


def least_cut(wanted, limits, zones, most_in_zone):
    """Return how many replicas can be placed at most: the least cut of all sets of members."""
    members = range(len(limits))
    return min(
        sum(limits[member] for member in cut)
        + sum(
            min(replicas, sum(min(most, len(of - cut)) for of in zones))
            for replicas, most in zip(wanted, most_in_zone, strict=True)
        )
        for size in range(len(limits) + 1)
        for cut in map(set, itertools.combinations(members, size))
    )


@given(
    st.lists(st.tuples(st.integers(1, 6), st.sampled_from("abc")), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 4), st.sets(st.integers(0, 5))), max_size=10),
)
def test_no_assignment_has_more_replicas_or_more_items_in_two_zones(members, items):
    limits, zones = [limit for limit, _ in members], [zone for _, zone in members]
    current = [sorted(each for each in held if each < len(members)) for _, held in items]
    wanted, room = [], sum(limits)
    for replicas, _ in items:
        wanted.append(min(replicas, len(limits), room))
        room -= wanted[-1]
    held = place([replicas for replicas, _ in items], limits, zones, current)
    by_zone = [{n for n, each in enumerate(zones) if each == zone} for zone in set(zones)]
    load = Counter(itertools.chain.from_iterable(held))
    assert all(load[number] <= limit for number, limit in enumerate(limits))
    assert all(of == sorted(set(of)) for of in held)
    assert all(len(of) <= replicas for of, replicas in zip(held, wanted, strict=True))
    assert sum(map(len, held)) == least_cut(wanted, limits, by_zone, wanted)
    spread = [max(replicas - 1, 1) if len(by_zone) > 1 else replicas for replicas in wanted]
    if least_cut(wanted, limits, by_zone, spread) == sum(wanted):
        for of, most in zip(held, spread, strict=True):
            assert max(Counter(zones[each] for each in of).values(), default=0) <= most


def test_nothing_to_solve():
    assert solve(Allocation.of([], [item("a", 1)])) == []
    assert solve(Allocation.of([member("z", "m", 1)], [])) == []
