"""Allocation loops of several members on one store."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from gazette_aio.consumer.allocator import allocate
from gazette_aio.consumer.allocator.allocate import Allocator, MemberLostError
from gazette_aio.consumer.allocator.model import Assignment, Item, Member, MemberID
from gazette_aio.consumer.allocator.observed import ObservedGroup
from gazette_aio.consumer.allocator.solver import solve
from gazette_aio.consumer.keyspace.embedded import EmbeddedStore
from gazette_aio.consumer.keyspace.errors import StoreUnavailableError
from gazette_aio.consumer.keyspace.key_space import KeySpace
from gazette_aio.consumer.keyspace.keys import GroupKeys
from gazette_aio.consumer.keyspace.operations import Delete, Put
from gazette_aio.protocol.consumer import ConsumerSpec, ReplicaStatus, ShardSpec
from tests.waiting import eventually

KEYS = GroupKeys("/root")
READY = ReplicaStatus(code=ReplicaStatus.STANDBY)


def decode(raw):
    match KEYS.split(raw.key):
        case ["members", zone, suffix]:
            limit, _, exiting = raw.value.decode().partition(" ")
            spec = ConsumerSpec(shard_limit=int(limit), exiting=bool(exiting))
            return Member(raw, spec, MemberID(zone, suffix))
        case ["items", name]:
            return Item(raw, ShardSpec(), name, int(raw.value))
        case [_, item, zone, suffix, slot]:
            return Assignment(raw, READY, item, MemberID(zone, suffix), int(slot))


class Running:
    """A member with its lease, and its loop."""

    def __init__(self, store, suffix, limit, lease):
        self.store, self.suffix, self.limit, self.lease = store, suffix, limit, lease
        self.rounds = []
        self.solutions = []
        self.group = ObservedGroup(MemberID("z", suffix))
        self.space = KeySpace(store, KEYS.prefix, decode, apply_delay_seconds=0)
        self.space.observers.append(self.group.observe)
        self.allocator = Allocator(
            store,
            self.space,
            self.group,
            KEYS,
            on_round=self.rounds.append,
            on_solution=self.solutions.append,
        )

    async def set(self, value, **options):
        put = Put(KEYS.member("z", self.suffix), value.encode(), **options)
        return (await self.store.transact((), [put])).header.revision

    async def start(self):
        await self.space.load(await self.set(str(self.limit), lease=self.lease.id))
        self.watch = asyncio.create_task(self.space.watch())
        self.task = asyncio.create_task(self.allocator.run())

    async def stop(self):
        for task in (self.task, self.watch):
            task.cancel()
            await asyncio.wait((task,))
            if not task.cancelled():
                task.exception()


@asynccontextmanager
async def member(store, suffix, limit=10):
    async with store.lease(9) as lease:
        running = Running(store, suffix, limit, lease)
        await running.start()
        try:
            yield running
        finally:
            await running.stop()


async def add_items(store, count, replication=1):
    for begin in range(0, count, 100):
        await store.transact(
            (),
            [
                Put(KEYS.item(f"item-{n:04}"), str(replication).encode())
                for n in range(begin, min(begin + 100, count))
            ],
        )


async def held(store):
    found = (await store.range("/root/assign/")).entries
    return sorted(
        (item, suffix, int(slot))
        for _, item, _, suffix, slot in (KEYS.split(each.key) for each in found)
    )


def holds(store, condition):
    async def check():
        return condition(await held(store))

    return eventually(check)


async def test_items_are_shared_among_members_and_move_when_one_is_lost():
    async with EmbeddedStore() as store, member(store, "a"):
        await add_items(store, 4)
        await holds(store, lambda found: len(found) == 4)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(member(store, "b"))
            await holds(
                store, lambda found: {x[1] for x in found} == {"a", "b"} and len(found) == 4
            )
        await holds(store, lambda found: [x[1:] for x in found] == [("a", 0)] * 4)


async def test_rounds_tell_what_they_changed():
    async with EmbeddedStore() as store, member(store, "a") as leader:
        await add_items(store, 2)
        await eventually(lambda: sum(each.added for each in leader.rounds) == 2)
        # One of them moves: its new replica is promoted once the old one has gone.
        async with member(store, "b") as other:
            await eventually(
                lambda: any(each.packed for each in leader.rounds) and leader.rounds[-1].is_idle
            )
            assert sum(each.added for each in leader.rounds) == 3
            assert sum(each.removed for each in leader.rounds) == 1
            assert sum(each.packed for each in leader.rounds) == 1
            assert len(leader.solutions) >= 2
            assert all(seconds > 0 for seconds in leader.solutions)
            assert other.rounds == []


async def test_the_leader_exits_once_others_hold_its_items():
    async with EmbeddedStore() as store, member(store, "a") as leader, member(store, "b"):
        await add_items(store, 3, replication=1)
        await holds(store, lambda found: len(found) == 3)
        await leader.set("10 exiting", ignore_lease=True)
        await leader.task
        assert [each[1:] for each in await held(store)] == [("b", 0)] * 3


async def test_a_lone_member_does_not_exit_with_items():
    async with EmbeddedStore() as store, member(store, "a") as only:
        await add_items(store, 1)
        await holds(store, lambda found: len(found) == 1)
        await only.set("10 exiting", ignore_lease=True)
        # It still leads, and serves an item that comes after its wish to exit.
        await add_items(store, 2)
        await holds(store, lambda found: len(found) == 2)
        assert not only.task.done()
        await store.transact((), [Delete(KEYS.item(f"item-000{n}")) for n in range(2)])
        # Assignments of items that are gone end with the lease.
        await only.task


async def test_a_lost_lease_ends_the_loop():
    async with EmbeddedStore() as store, member(store, "a") as lost:
        await add_items(store, 1)
        await holds(store, lambda found: len(found) == 1)
        await store.expire(lost.lease.id)
        with pytest.raises(MemberLostError, match="member key not found in Etcd"):
            await lost.task
        assert await held(store) == []


class Failing(EmbeddedStore):
    failures = 0

    async def transact(self, compares, operations, otherwise=()):
        assigns = any(each.key.startswith("/root/assign/") for each in operations)
        if assigns and self.failures:
            self.failures -= 1
            raise StoreUnavailableError("no leader", outcome_unknown=True)
        return await super().transact(compares, operations, otherwise)


async def test_rounds_are_repeated_after_errors_though_no_key_changes(monkeypatch):
    monkeypatch.setattr(allocate, "backoff", lambda _: 0.001)
    async with Failing() as store:
        store.failures = 3
        async with member(store, "a"):
            await add_items(store, 1)
            await holds(store, lambda found: len(found) == 1)
        assert store.failures == 0


async def test_outdated_solutions_are_discarded(monkeypatch):
    solved = []

    async with EmbeddedStore() as store, member(store, "a") as leader:
        await add_items(store, 2)
        await holds(store, lambda found: len(found) == 2)
        loop = asyncio.get_running_loop()

        async def remove_item():
            result = await store.transact((), [Delete(KEYS.item("item-0000"))])
            await leader.space.wait_for_revision(result.header.revision)

        def slow(allocation):
            desired = solve(allocation)
            if not solved:
                asyncio.run_coroutine_threadsafe(remove_item(), loop).result()
            solved.append(list(allocation.items))
            return desired

        monkeypatch.setattr(allocate, "solve", slow)
        await store.transact((), [Put(KEYS.item("item-0002"), b"1")])
        await holds(store, lambda found: [x[0] for x in found] == ["item-0001", "item-0002"])
    assert solved == [["item-0000", "item-0001", "item-0002"], ["item-0001", "item-0002"]]


async def test_every_await_of_a_round_may_be_cancelled():
    async with EmbeddedStore() as store:
        await add_items(store, 2)
        for turns in range(15):
            async with member(store, "a") as running:
                for _ in range(turns):
                    await asyncio.sleep(0)
                running.task.cancel()
                await asyncio.wait((running.task,))
                assert running.task.cancelled()
        async with member(store, "b"):
            await holds(store, lambda found: [x[1:] for x in found] == [("b", 0)] * 2)
