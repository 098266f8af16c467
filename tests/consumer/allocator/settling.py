"""Steps of an allocation without a store, until nothing is left to do."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from gazette_aio.consumer.allocator.convergence import Convergence, pack
from gazette_aio.consumer.allocator.model import Allocation, Assignment, Item, Member, MemberID
from gazette_aio.consumer.keyspace.keys import GroupKeys
from gazette_aio.consumer.keyspace.operations import Delete, KeyValue, Put
from gazette_aio.protocol.consumer import ConsumerSpec, ReplicaStatus, ShardSpec

KEYS = GroupKeys("/consumers")
LEASE = 7


READY = ReplicaStatus(code=ReplicaStatus.STANDBY)


def member(zone, suffix, limit, *, exiting=False, created=1, changed=1):
    raw = KeyValue(KEYS.member(zone, suffix), b"", created, changed, 1, LEASE)
    return Member(raw, ConsumerSpec(shard_limit=limit, exiting=exiting), MemberID(zone, suffix))


def item(name, replication, *journals):
    spec = ShardSpec(id=name, sources=[ShardSpec.Source(journal=each) for each in journals])
    return Item(KeyValue(KEYS.item(name), b"", 1, 1, 1), spec, name, replication)


def assignment(item, zone, suffix, slot, is_consistent=False):
    status = READY if is_consistent else ReplicaStatus()
    key = KEYS.assignment(item, zone, suffix, slot)
    raw = KeyValue(key, status.SerializeToString(), 1, 1, 1, LEASE)
    return Assignment(raw, status, item, MemberID(zone, suffix), slot)


def ready(each):
    """Return an assignment whose replica has caught up."""
    return assignment(each.item, *each.member, each.slot, is_consistent=True)


def converge(allocation, desired, *, become_consistent):
    """Take steps until nothing changes; return the allocation, and how many steps that took."""
    for number in range(20):
        convergence = Convergence(allocation, desired, KEYS)
        before = {each.raw.key: each for held in allocation.assignments.values() for each in held}
        after = dict(before)
        for transaction in pack(convergence.checkpoints()):
            assert len(transaction.compares) <= 128
            assert len(transaction.operations) <= 128
            for operation in transaction.operations:
                match operation:
                    case Delete(key):
                        del after[key]
                    case Put(key, value, lease):
                        assert lease == LEASE
                        assert key not in after
                        _, name, zone, suffix, slot = KEYS.split(key)
                        after[key] = assignment(name, zone, suffix, int(slot), bool(value))
        if after == before:
            return allocation, number
        check_step(allocation, after.values())
        if become_consistent:
            after = {key: ready(each) for key, each in after.items()}
        allocation = Allocation.of(
            allocation.members.values(), allocation.items.values(), after.values()
        )
    pytest.fail("it doesn't come to rest")


def check_step(allocation, after):
    """No member has more than its limit by a step, and no item loses consistent replicas."""
    held = Counter(each.member for each in after if each.item in allocation.items)
    for member, count in held.items():
        assert count <= max(allocation.limits.get(member, 0), allocation.totals[member])
    ready = Counter(each.item for each in after if each.raw.value)
    for item, assignments in allocation.assignments.items():
        if item in allocation.items:
            was_ready = sum(bool(each.raw.value) for each in assignments)
            assert ready[item] >= min(was_ready, allocation.items[item].replication)


def properties(pairs):
    zones = defaultdict(set)
    for item, member in pairs:
        zones[item].add(member.zone)
    return {
        "total": len(pairs),
        "replicas_of_item": dict(Counter(item for item, _ in pairs)),
        "items_of_member": dict(Counter("#".join(member) for _, member in pairs)),
        "zones_of_item": {item: len(of_item) for item, of_item in zones.items()},
    }


def pairs(allocation):
    return [(each.item, each.member) for held in allocation.assignments.values() for each in held]
