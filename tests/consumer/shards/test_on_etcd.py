"""Replicas of a group on a real Etcd."""

from __future__ import annotations

from gazette_aio.consumer.keyspace.etcd.options import EtcdOptions
from gazette_aio.consumer.keyspace.etcd.store import EtcdStore
from gazette_aio.consumer.keyspace.operations import Compare, Delete, Get, Put
from gazette_aio.consumer.shards.hints import store_recorded_hints, store_recovered_hints
from tests.consumer.shards.group import KEYS, LOCAL, A, Group, assignment_at, shard_spec
from tests.consumer.shards.test_hints import SPEC, authors, hints
from tests.waiting import eventually


async def test_the_life_of_a_replica(client, etcd):
    async with EtcdStore(EtcdOptions(endpoints=(etcd.endpoint,))) as store:
        async with store.lease(20) as lease, Group(client, store=store) as group:
            await group.create(shard_spec())
            key = KEYS.assignment(A, *LOCAL, 1)
            await group.write(Put(key, b"", lease=lease.id))
            await group.status("STANDBY", slot=1)
            entry = group.key_space.entries.get(key)
            assert entry is not None
            # A status keeps the lease, so that a lost member takes its assignments with it.
            assert entry.raw.lease == lease.id
            await group.promote()
            await group.status("PRIMARY")
            async with group.resolver.resolve(A) as resolution:
                assert resolution.status == 0
                assert resolution.header.etcd.cluster_id == group.key_space.header.cluster_id
            await eventually(lambda: group.loops.made)
            group.loops.fail(A, "an error")
            assert list((await group.status("FAILED")).errors) == ["an error"]
            replica = group.shards.replicas[A]
            await group.unassign()
            await eventually(replica.cancelled.is_set)


async def test_hints_take_turns(etcd):
    async with EtcdStore(EtcdOptions(endpoints=(etcd.endpoint,))) as store:
        result = await store.transact([], [Put("/an/assignment", b"")])
        revision = result.header.revision
        assignment = assignment_at(revision, key="/an/assignment")
        assert await authors(store) == [None, None, None]
        for number in (111, 333, 555):
            await store_recovered_hints(store, SPEC, assignment, hints(number))
            assert await store_recorded_hints(store, SPEC, assignment, hints(number * 2))
        assert await authors(store) == [1110, 555, 333]
        await store.transact([], [Delete("/an/assignment")])
        assert not await store_recorded_hints(store, SPEC, assignment, hints(7))
        assert await authors(store) == [1110, 555, 333]
        check = await store.transact([Compare.absent("/hints/shard-A.backup.2")], [Get("/hints")])
        assert check.succeeded
