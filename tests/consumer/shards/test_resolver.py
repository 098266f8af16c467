"""Resolutions of shards: statuses, headers, waits, and what changes of the group do."""

from __future__ import annotations

import asyncio

import pytest

import gazette_aio.protocol as pb
from gazette_aio.consumer.keyspace.operations import Delete, Put
from gazette_aio.consumer.shards.errors import ResolverError, ResolverStoppedError
from gazette_aio.consumer.shards.transitions import Transition, transition
from gazette_aio.protocol.consumer import Status
from tests.cancellation import cancel_at
from tests.consumer.shards.group import (
    KEYS,
    LOCAL,
    REMOTE,
    A,
    Application,
    Group,
    assignment_at,
    shard_spec,
)
from tests.waiting import eventually

LOCAL_ID = pb.ProcessSpec.ID(zone="local", suffix="consumer")
REMOTE_ID = pb.ProcessSpec.ID(zone="remote", suffix="consumer")


def claims(selector):
    return pb.Claims(pb.Capability.ALL, pb.parse_label_selector(selector))


async def test_unknown_shards(group):
    resolution = await group.resolve("missing/shard")
    assert resolution.status == Status.SHARD_NOT_FOUND
    assert resolution.header.process_id == LOCAL_ID
    assert resolution.header.route == pb.Route(primary=-1)
    assert resolution.header.etcd.revision == group.key_space.header.revision
    assert resolution.header.etcd.cluster_id
    assert resolution.header.etcd.raft_term
    assert resolution.spec is resolution.shard is resolution.store is None
    pb.validate(resolution.header)


async def test_a_member_whose_key_is_gone_has_a_placeholder(client):
    async with Group(client) as group:
        await group.write(Delete(KEYS.member(*LOCAL)))
        resolution = await group.resolve("missing/shard")
        missing = pb.ProcessSpec.ID(zone="local ConsumerSpec", suffix="missing from Etcd")
        assert resolution.header.process_id == missing
        await group.create(shard_spec())
        await group.assign(member=REMOTE)
        resolution = await group.resolve(A)
        assert (resolution.status, resolution.header.process_id) == (Status.OK, REMOTE_ID)


async def test_a_shard_without_a_primary(group):
    await group.create(shard_spec())
    await group.assign(slot=1, member=REMOTE)
    resolution = await group.resolve(A)
    assert resolution.status == Status.NO_SHARD_PRIMARY
    assert resolution.header.process_id == LOCAL_ID
    assert resolution.header.route == pb.Route(
        members=[REMOTE_ID], endpoints=["http://remote/endpoint"], primary=-1
    )
    assert resolution.spec == shard_spec()


async def test_a_primary_elsewhere(group):
    await group.create(shard_spec())
    await group.assign(member=REMOTE)
    resolution = await group.resolve(A, may_proxy=False)
    assert resolution.status == Status.NOT_SHARD_PRIMARY
    assert resolution.header.process_id == LOCAL_ID
    resolution = await group.resolve(A)
    assert (resolution.status, resolution.header.process_id) == (Status.OK, REMOTE_ID)
    assert resolution.shard is resolution.store is None
    await group.write(Delete(KEYS.member(*REMOTE)))
    resolution = await group.resolve(A)
    assert list(resolution.header.route.endpoints) == [""]


async def test_claims_hide_shards_and_their_routes(group):
    await group.create(shard_spec())
    await group.assign(member=REMOTE)
    resolution = await group.resolve(A, claims=claims("id=shard-B"))
    assert resolution.status == Status.SHARD_NOT_FOUND
    assert not resolution.header.route.members
    assert resolution.spec is None
    resolution = await group.resolve(A, claims=claims("id=shard-A"))
    assert resolution.status == Status.OK


async def test_a_proxied_request_waits_for_the_senders_revision(group):
    await group.create(shard_spec())
    header = group.resolver.unrouted_header()
    header.etcd.revision += 1
    waiting = asyncio.ensure_future(group.resolve(A, may_proxy=False, proxy_header=header))
    await asyncio.sleep(0)
    assert not waiting.done()
    await group.assign()
    resolution = await waiting
    assert resolution.status == Status.OK
    assert resolution.shard.is_ready
    assert resolution.store is group.application.stores[0]


@pytest.mark.parametrize("zone", ["remote", ""])
async def test_proxied_requests_for_others(group, zone):
    header = group.resolver.unrouted_header()
    header.process_id.CopyFrom(pb.ProcessSpec.ID(zone=zone, suffix="consumer" if zone else ""))
    if zone:
        with pytest.raises(ResolverError, match="request ProcessId doesn't match our own"):
            await group.resolve(A, proxy_header=header)
    else:
        resolution = await group.resolve(A, proxy_header=header)
        assert resolution.status == Status.SHARD_NOT_FOUND
    header.etcd.cluster_id = 1337
    with pytest.raises(ResolverError, match=r"request Etcd ClusterId doesn't match our own \(1337"):
        await group.resolve(A, proxy_header=header)


async def test_reading_through_waits_for_journals_that_are_read(group):
    await group.create(shard_spec())
    await group.assign()
    await group.status("PRIMARY")
    waiting = asyncio.ensure_future(group.resolve(A, read_through={"source/B": 10, "bogus": 123}))
    replica = group.shards.replicas[A]
    replica.progress_cell.update({"source/B": 9})
    await asyncio.sleep(0)
    assert not waiting.done()
    replica.progress_cell.update({"source/B": 10}, {"echo/out": 5})
    resolution = await waiting
    assert resolution.status == Status.OK
    assert dict(resolution.shard.progress().publish_at) == {"echo/out": 5}
    # A source of the spec that was added to a running shard isn't read, nor waited for.
    await group.create(shard_spec(A, "source/A", "source/B", "source/C"))
    async with group.resolver.resolve(A, read_through={"source/C": 1}) as resolution:
        assert resolution.status == Status.OK
        assert len(resolution.spec.sources) == 3


async def test_producers_say_what_to_wait_for(client):
    class Producer(Application):
        async def read_messages(self, shard, store, checkpoint, sink):
            raise NotImplementedError

        def replay_range(self, shard, store, journal, begin, end):
            raise NotImplementedError

        def read_through(self, shard, store, offsets):
            if "bad" in offsets:
                raise ValueError("no such offset")
            return {f"of/{journal}": offset for journal, offset in offsets.items()}

    async with Group(client, application=Producer()) as group:
        await group.create(shard_spec())
        await group.assign()
        await group.status("PRIMARY")
        with pytest.raises(ResolverError, match=r"MessageProducer\.ReadThrough: no such offset"):
            await group.resolve(A, read_through={"bad": 1})
        waiting = asyncio.ensure_future(group.resolve(A, read_through={"j": 3}))
        await asyncio.sleep(0)
        group.shards.replicas[A].progress_cell.update({"of/j": 3})
        await waiting


async def test_the_end_of_a_replica_ends_waits_for_it(client):
    application = Application()
    application.may_open.clear()
    async with Group(client, application=application) as group:
        await group.create(shard_spec())
        await group.assign()
        for_store = asyncio.ensure_future(group.resolve(A))
        await application.opening.wait()
        await group.unassign()
        assert (await for_store).status == Status.SHARD_STOPPED
        application.may_open.set()
        await group.assign()
        await group.status("PRIMARY")
        for_offset = asyncio.ensure_future(group.resolve(A, read_through={"source/A": 1}))
        await asyncio.sleep(0)
        await group.unassign()
        assert (await for_offset).status == Status.SHARD_STOPPED


async def test_a_member_that_stops_serves_only_others_shards(group):
    await group.create(shard_spec(), shard_spec("shard-B"))
    await group.assign()
    await group.assign("shard-B", member=REMOTE)
    await group.status("PRIMARY")
    group.shards.stop()
    with pytest.raises(ResolverStoppedError, match="resolver has stopped serving local shards"):
        await group.resolve(A)
    assert (await group.resolve("shard-B")).status == Status.OK
    await group.create(shard_spec("shard-C"))
    await group.assign("shard-C")
    assert await group.shards.replica("shard-C") is None
    await eventually(lambda: not group.shards.replicas)


async def test_each_await_of_a_resolution_cancelled(group):
    """Cancelled waits leave no reference that would hold up the tear-down."""
    await group.create(shard_spec())
    await group.assign()
    await group.status("PRIMARY")
    header = group.resolver.unrouted_header()

    async def resolve():
        async with group.resolver.resolve(A, proxy_header=header, read_through={"source/A": 7}):
            raise AssertionError("not to be reached")

    number = 0
    while number < 2:
        assert await cancel_at(resolve(), number)
        number += 1
    await group.unassign()
    await eventually(lambda: group.application.stores[0].is_destroyed)


async def test_transitions_of_local_shards(group):
    for shard in ("shard-A", "shard-B", "shard-C"):
        await group.create(shard_spec(shard))
    await group.assign("shard-A")
    await group.assign("shard-B", slot=1)
    await group.assign("shard-B", member=REMOTE)
    await group.assign("shard-C", member=REMOTE)
    for shard in ("shard-A", "shard-B", "shard-C"):
        replica = await group.shards.replica(shard)
        assert (replica is None) == (shard == "shard-C")
    assert sorted(group.shards.replicas) == ["shard-A", "shard-B"]
    await group.status("STANDBY", "shard-B", 1)
    assert group.shards.status_codes()["shard-B"] == "STANDBY"
    standby = group.shards.replicas["shard-B"]
    await group.unassign("shard-B", member=REMOTE)
    await group.promote("shard-B")
    await group.status("PRIMARY", "shard-B")
    assert group.shards.replicas["shard-B"] is standby
    # A spec that goes away takes its replica with it, though the assignment remains.
    await group.write(Delete(KEYS.item("shard-A")))
    assert sorted(group.shards.replicas) == ["shard-B"]
    # An assignment that is deleted and made anew between two observations is another one.
    key = KEYS.assignment("shard-B", *LOCAL, 0)
    entry = group.key_space.entries.get(key)
    first = await group.store.transact([], [Delete(key)])
    second = await group.store.transact([], [Put(key, entry.raw.value)])
    assert first.succeeded
    await group.key_space.wait_for_revision(second.header.revision)
    assert await group.shards.replica("shard-B") is not standby
    assert standby.cancelled.is_set()


def test_rules_of_transitions():
    def held(slot, revision):
        return assignment_at(revision, slot)

    for before, after, expected in (
        (None, None, Transition.NONE),
        (None, held(1, 5), Transition.START),
        (held(1, 5), None, Transition.CANCEL),
        (held(1, 5), held(1, 5), Transition.UPDATE),
        (held(2, 5), held(1, 6), Transition.UPDATE),
        (held(1, 5), held(0, 6), Transition.PROMOTE),
        (held(0, 5), held(0, 6), Transition.REPLACE),
        (held(0, 5), held(1, 6), Transition.REPLACE),
    ):
        assert transition(before, after) is expected, (before, after)
