"""Replicas of a group on a real Etcd."""

from __future__ import annotations

from gazette_aio.consumer.keyspace.etcd.options import EtcdOptions
from gazette_aio.consumer.keyspace.etcd.store import EtcdStore
from gazette_aio.consumer.keyspace.operations import Put
from tests.consumer.shards.group import KEYS, LOCAL, A, Group, shard_spec
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
