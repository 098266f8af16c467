"""The group that an observer builds from changes is that of all entries at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gazette_aio.consumer.allocator.model import Allocation, Assignment, Item, Member, MemberID
from gazette_aio.consumer.allocator.observed import ObservedGroup
from tests.consumer.allocator import settling
from tests.consumer.allocator.settling import assignment, item

BAR, FOO, BAZ = MemberID("us-east", "bar"), MemberID("us-east", "foo"), MemberID("us-west", "baz")


def member(identity, limit, revision=1, *, exiting=False):
    return settling.member(*identity, limit, exiting=exiting, created=revision)


def held(name, by, slot):
    return assignment(name, *by, slot)


FIXTURE = [
    member(BAR, 1, 2),
    member(FOO, 2, 1),
    member(BAZ, 3, 1),
    item("item-1", 2),
    item("item-two", 1),
    held("item-1", BAR, 0),
    held("item-1", BAZ, 1),
    held("item-missing", FOO, 0),
    held("item-two", BAZ, 0),
    held("item-two", FOO, 1),
]


def observed(local, parts=FIXTURE):
    group = ObservedGroup(local)
    group.observe([(None, each) for each in parts])
    return group


def test_a_group():
    allocation = observed(FOO).allocation
    assert (allocation.member_slots, allocation.item_slots) == (6, 3)
    assert [allocation.totals[each] for each in (BAR, FOO, BAZ)] == [1, 1, 2]
    assert [allocation.primaries[each] for each in (BAR, FOO, BAZ)] == [1, 0, 1]


def test_local_items_and_the_leader():
    assert [each.item.id for each in observed(BAZ).local_items] == ["item-1", "item-two"]
    assert [each.item.id for each in observed(FOO).local_items] == ["item-two"]
    nobody = observed(MemberID("us-east", "nobody"))
    assert (nobody.local_member, nobody.local_items, nobody.leads) == (None, [], False)
    assert [observed(each).leads for each in (BAR, FOO, BAZ)] == [False, True, False]


def test_the_lowest_slot_counts_of_several_assignments_of_a_member():
    slots = [held("item-1", FOO, slot) for slot in range(3)]
    group = observed(FOO, [member(FOO, 5), item("item-1", 1), *slots, held("item-1", BAZ, 3)])
    assert [each.slot for each in group.assignments("item-1")] == [0, 3]
    assert group.local_item("item-1").assignment.slot == 0
    # The newest is deleted first.
    for slot in (2, 0, 1):
        group.observe([(slots[slot], None)])
        left = group.local_item("item-1")
        assert (left and left.assignment.slot) == {2: 0, 0: 1, 1: None}[slot]
    assert [each.member for each in group.assignments("item-1")] == [BAZ]


def test_a_member_exits_only_when_it_holds_nothing():
    parts = [member(FOO, 1, exiting=True), item("i", 1), held("i", FOO, 0)]
    group = observed(FOO, parts)
    assert not group.should_exit
    group.observe([(parts[2], None)])
    assert group.should_exit
    assert not observed(FOO, [member(FOO, 0)]).should_exit


POOL = [
    *FIXTURE,
    member(FOO, 5),
    item("item-1", 3),
    held("item-1", FOO, 0),
    held("item-1", BAR, 3),
]


@given(st.lists(st.tuples(st.sampled_from(POOL), st.booleans()), max_size=40), st.integers(1, 5))
def test_any_changes_lead_to_the_group_of_all_entries(steps, size):
    group = ObservedGroup(FOO)
    present, changes = {}, []
    for thing, is_put in steps:
        key = thing.raw.key
        before, after = present.get(key), thing if is_put else None
        if before is None and after is None:
            continue
        changes.append((before, after))
        if after is None:
            del present[key]
        else:
            present[key] = after
    for begin in range(0, len(changes), size):
        group.observe(changes[begin : begin + size])
        group.allocation  # noqa: B018 - Allocations of the past share nothing that changes later.
    things = list(present.values())
    assert group.allocation == Allocation.of(
        [each for each in things if isinstance(each, Member)],
        [each for each in things if isinstance(each, Item)],
        [each for each in things if isinstance(each, Assignment)],
    )
    for journal in ("a", "b", "c"):
        readers = [each.spec for each in things if isinstance(each, Item) and journal in each.id]
        assert group.shards_with_source(journal) == readers
