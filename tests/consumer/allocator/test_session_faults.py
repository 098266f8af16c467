"""Sessions of members while Etcd, or the way to it, fails."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from gazette_aio.consumer.allocator.session import MemberSession
from gazette_aio.consumer.keyspace.errors import LeaseLostError
from gazette_aio.consumer.keyspace.etcd.options import EtcdOptions
from gazette_aio.consumer.keyspace.etcd.store import EtcdStore
from gazette_aio.consumer.keyspace.keys import GroupKeys
from gazette_aio.consumer.keyspace.operations import Compare, Put
from gazette_aio.protocol.consumer import ConsumerSpec, ReplicaStatus, ShardSpec
from gazette_aio.testing.fault_proxy import FaultProxy
from gazette_aio.testing.leaks import no_leaks
from tests.etcd import Etcd
from tests.waiting import eventually

KEYS = GroupKeys("/root")
PRIMARY = ReplicaStatus(code=ReplicaStatus.PRIMARY).SerializeToString()

BYTES_BETWEEN_FAULTS = 4096


@pytest.fixture
def own_etcd(tmp_path):
    with Etcd(tmp_path / "etcd") as server:
        yield server


def client(endpoint, **options):
    return EtcdStore(EtcdOptions(endpoints=(endpoint,), **options))


def member(store, suffix, **options):
    spec = ConsumerSpec(shard_limit=50)
    spec.process_spec.id.zone, spec.process_spec.id.suffix = "zone", suffix
    spec.process_spec.endpoint = "http://host:1"
    options = {"apply_delay_seconds": 0, **options}
    return MemberSession(store, KEYS, spec, **options)


async def add_shards(store, count):
    for n in range(count):
        spec = ShardSpec(id=f"shard-{n:02}")
        spec.sources.add(journal="a/journal")
        spec.max_txn_duration.seconds = 1
        await store.transact((), [Put(KEYS.item(spec.id), spec.SerializeToString())])


async def holders(store):
    """Return who holds each shard, and let all replicas report that they're ready."""
    found = {}
    for entry in (await store.range("/root/assign/")).entries:
        _, item, _, suffix, _ = KEYS.split(entry.key)
        found.setdefault(item, set()).add(suffix)
        if not entry.value:
            unchanged = Compare.mod_revision(entry.key, entry.mod_revision)
            await store.transact([unchanged], [Put(entry.key, PRIMARY, ignore_lease=True)])
    return found


@pytest.mark.slow
async def test_a_silent_etcd_takes_the_lease(own_etcd):
    async with no_leaks(), client(own_etcd.endpoint, timeout_seconds=3) as store:
        async with member(store, "aaaa", ttl_seconds=3) as session:
            own_etcd.pause()
            with pytest.raises(LeaseLostError, match="unable to keep member lease alive"):
                await session.wait()
            # The end doesn't wait for Etcd for ever.
        own_etcd.resume()
        await eventually(lambda: is_empty(store, "/root/members/"))


async def is_empty(store, prefix):
    return not (await store.range(prefix)).entries


@pytest.mark.slow
async def test_a_restart_of_etcd_within_the_time_to_live(own_etcd):
    async with no_leaks(), client(own_etcd.endpoint) as store:
        await add_shards(store, 3)
        async with member(store, "aaaa", ttl_seconds=60) as session:
            await asyncio.to_thread(own_etcd.stop)
            await asyncio.to_thread(own_etcd.start)
            await add_shards(store, 4)
            await eventually(lambda: len(session.group.local_items) == 4)
            await eventually(lambda: held_by(store, 4, {"aaaa"}))
            async with member(store, "bbbb", ttl_seconds=60):
                session.exit_gracefully()
                leaving = asyncio.create_task(session.wait())
                await eventually(lambda: held_by(store, 4, {"bbbb"}))
                assert await leaving is True


async def held_by(store, count, expected):
    found = await holders(store)
    return len(found) == count and all(each == expected for each in found.values())


@pytest.mark.slow
async def test_shards_move_over_a_broken_network(own_etcd):
    async with FaultProxy(own_etcd.endpoint) as proxy:
        async with client(proxy.endpoint) as store, client(own_etcd.endpoint) as direct:
            await add_shards(direct, 20)
            async with member(store, "aaaa", ttl_seconds=60) as old:

                async def trouble():
                    for passed in itertools.count(BYTES_BETWEEN_FAULTS, BYTES_BETWEEN_FAULTS):
                        await eventually(lambda passed=passed: proxy.passed_bytes() >= passed)
                        await proxy.reset()

                faults = asyncio.create_task(trouble())
                await eventually(lambda: held_by(direct, 20, {"aaaa"}))
                async with member(store, "bbbb", ttl_seconds=60):
                    old.exit_gracefully()
                    leaving = asyncio.create_task(old.wait())
                    await eventually(lambda: held_by(direct, 20, {"bbbb"}))
                    assert await leaving is True
                    faults.cancel()
                    await asyncio.wait((faults,))
