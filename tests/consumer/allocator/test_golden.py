"""Groups that Gazette's allocator has solved: ours place as many replicas, as well spread."""

from __future__ import annotations

from collections import Counter

import pytest

from gazette_aio.consumer.allocator.model import Allocation
from gazette_aio.consumer.allocator.solver import solve
from tests import golden
from tests.consumer.allocator.settling import (
    assignment,
    converge,
    item,
    member,
    pairs,
    properties,
)


@pytest.fixture(params=range(50))
def problem(request):
    problems = golden.load("allocator.json")["problems"]
    assert len(problems) == 50
    return problems[request.param]


def group(problem):
    """Return the allocation of a problem, with keys and revisions as a store would give them."""
    members = [
        member(
            each["zone"],
            each["suffix"],
            each["item_limit"],
            exiting=each["exiting"],
            created=each["create_revision"],
            changed=each["create_revision"],
        )
        for each in problem["members"]
    ]
    items = [item(each["id"], each["replication"]) for each in problem["items"]]
    return Allocation.of(members, items, (assignment(*parts) for parts in problem["assignments"]))


def test_what_follows_from_a_group(problem):
    allocation, expected = group(problem), problem["state"]
    assert allocation.item_slots == expected["item_slots"]
    assert allocation.member_slots == expected["member_slots"]
    shed = [allocation.shed_capacity.get(member, 0) for member in allocation.members]
    assert shed == expected["shed_capacity"]


def test_solutions(problem):
    allocation = group(problem)
    desired = solve(allocation)
    assert desired == sorted(set(desired))
    ours, theirs = properties(desired), problem["desired_properties"]
    if problem["feasible"]:
        assert ours["total"] == allocation.item_slots
        assert ours["replicas_of_item"] == theirs["replicas_of_item"]
        assert ours["zones_of_item"] == theirs["zones_of_item"]
    else:
        assert ours["total"] >= theirs["total"]
    for name, count in ours["replicas_of_item"].items():
        assert count <= allocation.items[name].replication
    for holder, count in Counter(each.member for each in desired).items():
        assert count <= allocation.limits[holder]
    if ours["total"] == theirs["total"] > 0:
        for member, limit in allocation.limits.items():
            fair = min(limit, -(-limit * allocation.item_slots // allocation.member_slots))
            name = "#".join(member)
            held = ours["items_of_member"].get(name, 0)
            assert held <= max(fair, *theirs["items_of_member"].values())


@pytest.mark.parametrize("become_consistent", [True, False])
def test_convergence(problem, become_consistent):
    allocation = group(problem)
    desired = solve(allocation)
    rest, rounds = converge(allocation, desired, become_consistent=become_consistent)
    theirs = problem["converged" if become_consistent else "converged_without_consistency"]
    ours, theirs = properties(pairs(rest)), theirs["properties"]
    assert ours["total"] >= theirs["total"]
    if problem["feasible"] and become_consistent:
        assert rounds <= 5
        assert sorted(pairs(rest)) == desired
        for held in rest.assignments.values():
            assert sorted(each.slot for each in held) == list(range(len(held)))
