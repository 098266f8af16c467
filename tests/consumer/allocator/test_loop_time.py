"""A large group keeps the event loop of its leader from others for no long time."""

from __future__ import annotations

import asyncio

import pytest

from gazette_aio.consumer.allocator.allocate import Allocator
from gazette_aio.consumer.allocator.model import Assignment, Item, Member, MemberID
from gazette_aio.consumer.allocator.observed import ObservedGroup
from gazette_aio.consumer.keyspace.embedded import EmbeddedStore
from gazette_aio.consumer.keyspace.key_space import KeySpace
from gazette_aio.consumer.keyspace.keys import GroupKeys
from gazette_aio.consumer.keyspace.operations import Delete, Put
from gazette_aio.protocol.consumer import ConsumerSpec, ReplicaStatus, ShardSpec
from tests.loop_steps import SLICE_CALLS, longest_step
from tests.waiting import eventually

ITEMS, MEMBERS, REPLICAS = 10_000, 100, 3
MOST_CALLS = 6 * SLICE_CALLS
KEYS = GroupKeys("/root")
READY = ReplicaStatus(code=ReplicaStatus.STANDBY)
LOCAL = MemberID("zone-0", "member-000")


def decode(raw):
    match KEYS.split(raw.key):
        case ["items", name]:
            return Item(raw, ShardSpec(), name, REPLICAS)
        case ["assign", item, zone, suffix, slot]:
            return Assignment(raw, READY, item, MemberID(zone, suffix), int(slot))
        case [_, zone, suffix]:
            return Member(raw, ConsumerSpec(shard_limit=450), MemberID(zone, suffix))


async def put_all(store, puts):
    for begin in range(0, len(puts), 100):
        await store.transact((), puts[begin : begin + 100])


@pytest.mark.slow
async def test_a_leader_of_a_large_group():
    rounds = []
    members = [KEYS.member(f"zone-{n % 3}", f"member-{n:03}") for n in range(MEMBERS)]
    async with EmbeddedStore() as store:
        await put_all(store, [Put(each, b"") for each in members])
        await put_all(store, [Put(KEYS.item(f"item-{n:05}"), b"") for n in range(ITEMS)])
        group = ObservedGroup(LOCAL)
        space = KeySpace(store, KEYS.prefix, decode, apply_delay_seconds=0.03)
        space.observers.append(group.observe)
        allocator = Allocator(store, space, group, KEYS, on_round=rounds.append)
        with longest_step() as longest:
            await space.load()
            tasks = [asyncio.create_task(space.watch()), asyncio.create_task(allocator.run())]
            await eventually(lambda: any(each.is_idle for each in rounds))
            assert len(group.allocation.totals) == MEMBERS
            assert sum(group.allocation.totals.values()) == ITEMS * REPLICAS
            # A member is lost, with all that it held.
            lost = group.members[MemberID("zone-1", "member-001")]
            held = [
                each.raw.key
                for item in group.items
                for each in group.assignments(item)
                if each.member == lost.id
            ]
            rounds.clear()
            gone = [lost.raw.key, *held]
            for begin in range(0, len(gone), 100):
                await store.transact((), [Delete(key) for key in gone[begin : begin + 100]])
            await eventually(
                lambda: (
                    any(each.is_idle for each in rounds[-1:])
                    and sum(group.allocation.totals.values()) == ITEMS * REPLICAS
                )
            )
            for task in tasks:
                task.cancel()
                await asyncio.wait((task,))
        assert longest.calls < MOST_CALLS, longest.step
