"""Steps of an item, and their transactions."""

from __future__ import annotations

import pytest

from gazette_aio.consumer.allocator import convergence as rules
from gazette_aio.consumer.allocator.convergence import Checkpoint, Convergence, pack
from gazette_aio.consumer.allocator.model import (
    MAX_SLOT,
    Allocation,
    Desired,
    MemberID,
    load_ratio,
)
from gazette_aio.consumer.keyspace.operations import Compare, Delete, Put
from tests.consumer.allocator import settling
from tests.consumer.allocator.settling import KEYS, LEASE, READY, assignment, item

VALUE = READY.SerializeToString()


def member(suffix, limit):
    return settling.member("z", suffix, limit, changed=5)


def held(name, suffix, slot, *, ready=True):
    return assignment(name, "z", suffix, slot, ready)


def steps(members, replication, assignments, desired, name="it"):
    items = [] if replication is None else [item(name, replication)]
    convergence = Convergence(
        Allocation.of(members, items, assignments),
        [Desired(name, MemberID("z", each)) for each in desired],
        KEYS,
    )
    return [each for each in convergence.checkpoints() if each.operations]


def removed(checkpoint):
    puts = {each.key for each in checkpoint.operations if isinstance(each, Put)}
    assert not puts
    return [KEYS.split(each.key)[3] for each in checkpoint.operations]


FIVE = [member(f"m{limit}", limit) for limit in (5, 4, 3, 2, 1)]


def of_five(*ready):
    return [held("it", f"m{n}", n - 1, ready=n in ready) for n in range(1, 6)]


@pytest.mark.parametrize(
    ("replication", "ready", "gone"),
    [
        (0, (2, 4), ["m1", "m2", "m3", "m4", "m5"]),
        (1, (1,), []),
        (2, (3,), []),
    ],
)
def test_removals_are_bounded_by_consistent_replicas(replication, ready, gone):
    found = steps(FIVE, replication, of_five(*ready), [])
    names = [name for each in found for name in removed(each)] if gone else []
    assert names == gone
    if not gone:
        assert not any(isinstance(x, Delete) for each in found for x in each.operations)


def test_the_most_loaded_replicas_go_first():
    """As far as one that's consistent is left."""
    [checkpoint] = steps(FIVE, 1, of_five(2, 4), [])
    deleted = [KEYS.split(each.key) for each in checkpoint.operations if isinstance(each, Delete)]
    assert [suffix for _, _, _, suffix, _ in deleted] == ["m1", "m2", "m3", "m4"]
    assert checkpoint.operations[-1].key == KEYS.assignment("it", "z", "m4", 0)  # Promoted.


def test_a_removal_compares_the_item_once_and_each_assignment():
    [checkpoint] = steps(
        [member("a", 1), member("b", 1)], 0, [held("it", "a", 0), held("it", "b", 1)], []
    )
    keys = [KEYS.assignment("it", "z", "a", 0), KEYS.assignment("it", "z", "b", 1)]
    assert checkpoint.compares == [
        Compare.mod_revision(KEYS.item("it"), 1),
        *(Compare.mod_revision(key, 1) for key in keys),
    ]
    assert checkpoint.operations == [Delete(key) for key in keys]


def test_a_new_replica_has_the_lease_of_its_member():
    [checkpoint] = steps([member("a", 1)], 1, [], ["a"])
    assert checkpoint.compares == [Compare.mod_revision(KEYS.member("z", "a"), 5)]
    assert checkpoint.operations == [Put(KEYS.assignment("it", "z", "a", 0), b"", lease=LEASE)]


def test_a_promotion_keeps_value_and_lease():
    members = [member("a", 2), member("b", 3), member("c", 3)]
    others = [
        held("it", "a", 9, ready=False),
        held("it", "b", 10),
        held("it", "c", 11),
    ]
    [checkpoint] = steps(members, 3, others, ["a", "b", "c"])
    assert checkpoint.operations == [
        Delete(KEYS.assignment("it", "z", "b", 10)),
        Put(KEYS.assignment("it", "z", "b", 0), VALUE, lease=LEASE),
        # Slots are packed one at a time: the first gap only.
        Delete(KEYS.assignment("it", "z", "a", 9)),
        Put(KEYS.assignment("it", "z", "a", 1), b"", lease=LEASE),
    ]


def test_an_inconsistent_primary_stays():
    current = [held("it", "a", 0, ready=False), held("it", "b", 1)]
    assert steps([member("a", 1), member("b", 1)], 2, current, ["a", "b"]) == []


def test_full_members_get_nothing_but_their_slots_are_left_out():
    members = [member(each, int(each != "full")) for each in ("a", "full", "x", "y")]
    [checkpoint] = steps(members, 4, [held("it", "a", 7)], ["a", "full", "x", "y"])
    puts = [each.key for each in checkpoint.operations if isinstance(each, Put)]
    assert puts == [
        KEYS.assignment("it", "z", "x", 9),
        KEYS.assignment("it", "z", "y", 10),
        KEYS.assignment("it", "z", "a", 0),
    ]


def test_a_second_assignment_of_a_member_is_removed():
    current = [held("it", "a", 0), held("it", "a", 2), held("it", "b", 1), held("it", "b", 7)]
    [checkpoint] = steps([member("a", 3), member("b", 3)], 2, current, ["a", "b"])
    assert checkpoint.operations == [
        Delete(KEYS.assignment("it", "z", "a", 2)),
        Delete(KEYS.assignment("it", "z", "b", 7)),
    ]
    assert steps([member("a", 1), member("b", 1)], 2, current[::2], ["a", "b"]) == []


def test_the_last_slot_is_packed_before_others_are_added():
    last = held("it", "a", MAX_SLOT)
    [checkpoint] = steps([member("a", 1), member("b", 1)], 2, [last], ["a", "b"])
    first = Put(KEYS.assignment("it", "z", "a", 0), VALUE, lease=LEASE)
    assert checkpoint.operations == [Delete(last.raw.key), first]


def test_assignments_of_items_that_are_gone():
    [checkpoint] = steps([member("a", 1)], None, [held("it", "a", 0), held("it", "b", 1)], [])
    assert checkpoint.compares[0] == Compare.create_revision(KEYS.item("it"), 0)
    assert len(checkpoint.compares) == 3
    assert removed(checkpoint) == ["a", "b"]


def test_primaries_of_new_items_are_spread():
    members = [member("a", 9), member("b", 9)]
    items = [item(f"i{n}", 2) for n in range(4)]
    desired = [Desired(each.id, of.id) for each in items for of in members]
    convergence = Convergence(Allocation.of(members, items), desired, KEYS)
    made = [KEYS.split(x.key) for each in convergence.checkpoints() for x in each.operations]
    assert [suffix for _, _, _, suffix, slot in made if slot == "0"] == ["a", "b", "a", "b"]


def test_load_ratios():
    assert load_ratio(1, 2) == 0.5
    assert load_ratio(1, None) == 2**31
    assert load_ratio(0, 0) == load_ratio(3, 0) == float("inf")


def checkpoint(compares, operations):
    return Checkpoint(
        [Compare.absent(str(n)) for n in range(compares)],
        [Delete(str(n)) for n in range(operations)],
    )


def sizes(*checkpoints):
    packed = pack(checkpoints, [Compare.absent("fixed")])
    return [(len(each.compares), len(each.operations)) for each in packed]


def test_transactions_hold_whole_checkpoints(monkeypatch):
    monkeypatch.setattr(rules, "MAX_OPERATIONS", 3)
    assert sizes(checkpoint(1, 1), checkpoint(1, 1), checkpoint(1, 1)) == [(3, 2), (2, 1)]
    assert sizes(checkpoint(0, 2), checkpoint(0, 2)) == [(1, 2), (1, 2)]
    assert sizes(checkpoint(0, 0)) == []
    assert sizes() == []


def test_comparisons_without_operations_are_a_mistake():
    with pytest.raises(AssertionError, match="only where it changes something"):
        sizes(checkpoint(1, 0))
