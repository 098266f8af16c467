"""Takeovers: by hot standbys of members that die without a word, and of members that exit."""

from __future__ import annotations

import asyncio
import re
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import connect
from gazette_aio.client.reads.head import head_of
from gazette_aio.consumer.api import apply_shards, connect_shards, list_shards, stat_shard
from gazette_aio.consumer.keyspace.etcd._generated import etcd_pb2
from gazette_aio.consumer.keyspace.etcd.options import EtcdOptions
from gazette_aio.consumer.keyspace.etcd.store import EtcdStore
from gazette_aio.consumer.keyspace.operations import Get, Put
from gazette_aio.consumer.recoverylog import decode_hints
from gazette_aio.consumer.service.options import ConsumerOptions
from gazette_aio.consumer.service.service import Service
from gazette_aio.consumer.shards import replica
from gazette_aio.protocol import consumer as pc
from gazette_aio.protocol.recoverylog import FSMHints
from gazette_aio.testing import consumer_harness
from tests.consumer.recoverylog.player.logs import create_log
from tests.consumer.service.applications import SOURCE, create_source, publish, shard_spec
from tests.consumer.service.recorded import RecordedSum
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gazette_aio.client import JournalClient
    from gazette_aio.consumer.api import ShardClient
    from tests.etcd import Etcd

ROOT = Path(__file__).parents[3]
PREFIX, SHARD = "/takeover.test", "shard-one"


@asynccontextmanager
async def member_process(etcd: Etcd, broker: EmbeddedBroker) -> AsyncIterator[tuple[Any, str]]:
    """Run a member in a process of its own, and yield the process and the member's endpoint."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.consumer.service.recorded",
        "serve",
        f"--broker.address={broker.endpoint}",
        f"--etcd.address={etcd.endpoint}",
        f"--etcd.prefix={PREFIX}",
        "--consumer.zone=one",
        "--consumer.host=127.0.0.1",
        "--consumer.bind=127.0.0.1",
        "--log.level=info",
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stderr is not None
    draining: asyncio.Task[bytes] | None = None
    try:
        seen = b""
        while (found := re.search(rb"serves at (http://[\d.:]+)", seen)) is None:
            line = await process.stderr.readline()
            assert line, seen.decode()
            seen += line
        draining = asyncio.create_task(process.stderr.read())
        yield process, found[1].decode()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        if draining is not None:
            await draining


async def has_primary(shards: ShardClient) -> bool:
    (shard,) = (await list_shards(shards)).shards
    return any(status.code == pc.ReplicaStatus.PRIMARY for status in shard.status)


async def consumed(client: JournalClient, shards: ShardClient) -> None:
    """Wait until the primary of the shard has consumed what is in its source."""
    offsets = {SOURCE: await head_of(client, SOURCE)}
    await stat_shard(shards, pc.StatRequest(shard=SHARD, read_through=offsets))


async def has_status(member: Service, slot: int, code: pc.ReplicaStatus.Code) -> None:
    """Wait until a member sees a replica of its own in a slot with a status."""
    group = member.session.group
    assert group.local_member is not None
    me = group.local_member.id
    while not any(
        each.slot == slot and each.member == me and each.status.code == code
        for each in group.assignments(SHARD)
    ):
        await member.session.key_space.next_change()


@pytest.mark.slow
async def test_a_standby_takes_over_within_a_lease(etcd: Etcd) -> None:
    """It's the primary, with all of the state, before another lease of that length has ended."""
    options = ConsumerOptions(prefix=PREFIX, zone="two", host="127.0.0.1", bind="127.0.0.1")
    spec = shard_spec(SHARD, SOURCE)
    spec.recovery_log_prefix, spec.hint_prefix, spec.hot_standbys = "recovery", "/hints", 1
    async with (
        EmbeddedBroker() as broker,
        connect(broker.endpoint) as client,
        EtcdStore(EtcdOptions(endpoints=(etcd.endpoint,))) as store,
        member_process(etcd, broker) as (process, endpoint),
    ):
        await create_source(client)
        await create_log(client, f"recovery/{SHARD}")
        async with connect_shards(endpoint) as shards:
            await apply_shards(shards, [pc.ApplyRequest.Change(upsert=spec)])
            await eventually(lambda: has_primary(shards))
            await publish(client, range(10))
            await consumed(client, shards)
        async with Service(RecordedSum(), store, client, options) as standby:
            await has_status(standby, 1, pc.ReplicaStatus.STANDBY)
            async with connect_shards(standby.endpoint) as shards:
                await publish(client, range(10, 20))
                await consumed(client, shards)  # By the other member, which this one asks.
                (dead,) = [
                    entry
                    for entry in (await store.range(f"{PREFIX}/members/")).entries
                    if "/one#" in entry.key
                ]
                process.kill()
                await process.wait()
                # Etcd does so at the end of the lease. A witness begins to wait as long as that.
                grant = etcd_pb2.LeaseGrantRequest(TTL=options.lease_ttl, ID=7)
                await asyncio.to_thread(etcd.call, "Lease/LeaseGrant", grant)
                await store.transact([], [Put("/witness", b"", lease=7)])
                revoke = etcd_pb2.LeaseRevokeRequest(ID=dead.lease)
                await asyncio.to_thread(etcd.call, "Lease/LeaseRevoke", revoke)
                await has_status(standby, 0, pc.ReplicaStatus.PRIMARY)
                await publish(client, range(20, 30))
                await consumed(client, shards)
                async with standby.resolve(SHARD) as resolution:
                    assert resolution.store.state == {"sum": sum(range(30))}
                assert (await store.range("/witness")).entries


async def test_an_exit_stores_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever takes the shard over plays the newest file alone, and what follows it."""
    monkeypatch.setattr(replica, "FIRST_HINTS_SECONDS", 1e6)
    spec = shard_spec(SHARD, SOURCE)
    spec.recovery_log_prefix, spec.hint_prefix = "recovery", "/hints"
    async with consumer_harness(RecordedSum()) as harness:
        await create_source(harness.client)
        await create_log(harness.client, f"recovery/{SHARD}")
        member = await harness.start_member()
        await harness.create_shards(spec)
        for first in range(0, 30, 10):
            await publish(harness.client, range(first, first + 10))
            await harness.wait_for_shards()

        async def stored() -> FSMHints | None:
            result = await harness.store.transact([], [Get(f"/hints/{SHARD}.primary")])
            (entry,) = result.entries
            return None if entry is None else decode_hints(entry.value)

        assert await stored() is None
        member.exit_gracefully()
        await eventually(stored)
        hints = await stored()
        assert hints is not None
        (node,) = hints.live_nodes
        # Each commit replaces the file by one of its own.
        assert node.fnode > 7
        await harness.start_member()
        await harness.wait_for_shards()
        assert await member.wait()
        (successor,) = [each for each in harness.members if each is not member]
        async with successor.resolve(SHARD) as resolution:
            assert resolution.store.state == {"sum": sum(range(30))}
            used = resolution.shard.recovered_hints
        assert used is not None
        assert used.primary_hints.hints == hints
