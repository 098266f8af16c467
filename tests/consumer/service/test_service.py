"""Members of a consumer: their life, and what they serve."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import grpc
import grpc.aio
import pytest
from prometheus_client import CollectorRegistry

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import connect
from gazette_aio.consumer.api import apply_shards, connect_shards, stat_shard
from gazette_aio.consumer.keyspace.embedded import EmbeddedStore
from gazette_aio.consumer.keyspace.operations import Delete
from gazette_aio.consumer.service.metrics import ConsumerMetrics
from gazette_aio.consumer.service.options import ConsumerOptions
from gazette_aio.consumer.service.service import Service
from gazette_aio.protocol import consumer as pc
from gazette_aio.testing import consumer_harness, no_leaks
from tests.consumer.service.applications import (
    SOURCE,
    Summing,
    Totals,
    create_source,
    publish,
    shard_spec,
)
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gazette_aio.consumer.api import ShardClient
    from gazette_aio.testing import ConsumerHarness


@pytest.fixture
async def harness() -> AsyncIterator[ConsumerHarness]:
    async with consumer_harness(Summing()) as harness:
        await create_source(harness.client)
        yield harness


def totals_of(harness: ConsumerHarness) -> Totals:
    assert isinstance(harness.application, Summing)
    return harness.application.totals


async def test_a_shard_moves_when_its_member_exits(harness: ConsumerHarness) -> None:
    first = await harness.start_member(zone="one")
    await harness.create_shards(shard_spec("shard-one", SOURCE))
    await publish(harness.client, range(10))
    await harness.wait_for_shards()
    second = await harness.start_member(zone="two")
    assert await harness.stop_member(first)
    assert first.stopping.is_set()
    await publish(harness.client, range(10, 20))
    await harness.wait_for_shards()
    assert totals_of(harness).sums == {"shard-one": sum(range(20))}
    route = await harness.wait_for_primary("shard-one")
    assert [member.suffix for member in route.members] == [second.process_id.suffix]


async def test_a_member_that_nobody_replaces_exits_at_the_second_request(
    harness: ConsumerHarness,
) -> None:
    member = await harness.start_member()
    await harness.create_shards(shard_spec("shard-one", SOURCE))
    member.exit_gracefully()
    waiting = asyncio.create_task(member.wait())
    await eventually(lambda: member.session.is_exiting)
    assert not waiting.done()
    member.exit_gracefully()
    assert not await waiting


async def test_a_stat_is_proxied_by_the_other_member(harness: ConsumerHarness) -> None:
    await harness.start_member()
    await harness.create_shards(shard_spec("shard-one", SOURCE))
    other = await harness.start_member()
    await publish(harness.client, range(3))
    async with connect_shards(other.endpoint, auth=pb.KeyedAuth("c2VjcmV0")) as client:
        response = await stat_shard(client, "shard-one")
    assert response.header.process_id.suffix == "member-1"
    async with other.resolve("shard-one") as resolution:
        assert resolution.store is None
        assert resolution.header.process_id.suffix == "member-1"


async def test_a_resolution_has_the_store(harness: ConsumerHarness) -> None:
    member = await harness.start_member()
    await harness.create_shards(shard_spec("shard-one", SOURCE))
    await publish(harness.client, range(5))
    await harness.wait_for_shards()
    async with member.resolve("shard-one") as resolution:
        assert resolution.store is not None
        assert resolution.store.sum == sum(range(5))  # type: ignore[attr-defined]
    assert [spec.id for spec in member.resolver.shards_with_source(SOURCE)] == ["shard-one"]


class Serving(Summing):
    """Serves an RPC of its own, and runs a task."""

    def __init__(self) -> None:
        super().__init__()
        self.began = asyncio.Event()
        self.failure: Exception | None = None
        self.fail = asyncio.Event()

    async def init_application(self, service: Service) -> None:
        async def echo(request: bytes, _context: Any) -> bytes:
            return request + service.process_id.suffix.encode()

        handler = grpc.unary_unary_rpc_method_handler(echo)
        service.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("Words", {"Echo": handler})]
        )
        service.spawn(self.work())

    async def work(self) -> None:
        self.began.set()
        await self.fail.wait()
        raise ValueError("the task failed")


async def test_rpcs_are_forwarded_to_the_member_that_serves_a_shard(
    harness: ConsumerHarness,
) -> None:
    await harness.start_member(Serving())
    await harness.create_shards(shard_spec("shard-one", SOURCE))
    other = await harness.start_member(Serving())
    async with other.resolve("shard-one") as resolution:
        call: Any = other.peer_channel(resolution).unary_unary("/Words/Echo")
        assert await call(b"I am ") == b"I am member-1"
    async with other.resolve("shard-none") as resolution:
        with pytest.raises(pb.ValidationError, match="no member serves"):
            other.peer_channel(resolution)


async def test_services_and_tasks_may_be_added_later(harness: ConsumerHarness) -> None:
    member = await harness.start_member()
    application = Serving()
    await application.init_application(member)
    await application.began.wait()
    async with grpc.aio.insecure_channel(member.endpoint.removeprefix("http://")) as channel:
        call: Any = channel.unary_unary("/Words/Echo")
        assert await call(b"I am ") == b"I am member-1"
    application.fail.set()
    with pytest.raises(ValueError, match="the task failed"):
        await member.wait()
    assert member.stopping.is_set()
    with pytest.raises(RuntimeError, match="is stopping, and serves nothing more"):
        member.add_generic_rpc_handlers(())
    with pytest.raises(RuntimeError, match="is stopping, and starts no tasks"):
        member.spawn(application.work())


async def test_a_failing_initialization_is_raised(harness: ConsumerHarness) -> None:
    class Failing(Summing):
        def init_application(self, service: Service) -> None:
            raise ValueError("not today")

    async with no_leaks():
        with pytest.raises(ValueError, match="not today"):
            await harness.start_member(Failing())


async def test_an_application_with_half_a_protocol_is_refused_at_once(
    harness: ConsumerHarness,
) -> None:
    class Half(Summing):
        def begin_txn(self, *_: Any) -> None:
            pass

    with pytest.raises(pb.ConfigurationError, match=r"has begin_txn\(\), but no finished_txn\(\)"):
        Service(Half(), harness.store, harness.client)


async def test_tokens_are_required(harness: ConsumerHarness) -> None:
    member = await harness.start_member()
    async with connect_shards(member.endpoint, auth=pb.NoopAuth()) as client:
        with pytest.raises(pb.GazetteError, match="missing or empty Authorization token"):
            await stat_shard(client, "shard-one")


def has_failed(member: Service) -> bool:
    [assignment] = member.session.group.assignments("shard-one")
    return assignment.status.code == pc.ReplicaStatus.FAILED


async def test_a_failed_shard_tells_why(harness: ConsumerHarness) -> None:
    class Failing(Summing):
        def consume_message(self, *_: Any) -> None:
            raise ValueError("cannot count this")

    await harness.start_member(Failing())
    await harness.create_shards(shard_spec("shard-one", SOURCE))
    member = harness.members[0]
    async with member.resolve("shard-one") as resolution:
        assert resolution.shard is not None
        await publish(harness.client, range(1))
        with pytest.raises(pb.GazetteError, match="cannot count this"):
            await resolution.shard.primary_loop
    await eventually(lambda: has_failed(member))
    with pytest.raises(RuntimeError, match=r"consume_message\(\): ValueError: cannot count this"):
        await harness.wait_for_primary("shard-one")


async def test_an_endpoint_that_is_taken_is_refused() -> None:
    async with EmbeddedBroker() as broker, connect(broker.endpoint) as client:
        port = int(broker.endpoint.rpartition(":")[2])
        options = ConsumerOptions(prefix="/test", bind="127.0.0.1", host="127.0.0.1", port=port)
        async with EmbeddedStore() as store:
            service = Service(Summing(), store, client, options)
            with pytest.raises(pb.ConfigurationError, match="unable to listen"):
                await service.start()


async def test_a_member_is_cancelled_while_it_starts(harness: ConsumerHarness) -> None:
    """Also while another process of the same name holds its key."""
    first = await harness.start_member(id="the-same")
    async with no_leaks():
        starting = asyncio.create_task(harness.start_member(id="the-same"))
        await asyncio.sleep(0)
        await eventually(lambda: len(asyncio.all_tasks()) > 3)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
    assert first.is_ready


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_task_group_runs_a_member(harness: ConsumerHarness, is_lost: bool) -> None:
    options = ConsumerOptions(prefix="/group.test", bind="127.0.0.1", host="127.0.0.1")
    member = Service(Summing(), harness.store, harness.client, options)

    async def run() -> None:
        async with anyio.create_task_group() as group:
            member.queue_tasks(group)
            await eventually(lambda: member.is_ready)
            if not is_lost:
                member.exit_gracefully()
                return
            local = member.session.group.local_member
            assert local is not None
            await harness.store.transact([], [Delete(local.raw.key)])
            await anyio.sleep_forever()

    async with no_leaks():
        if not is_lost:
            await run()
        else:
            with pytest.raises(ExceptionGroup) as raised:
                await run()
            [error] = raised.value.exceptions
            assert str(error) == "member key not found in Etcd"
    assert member.stopping.is_set()


@asynccontextmanager
async def serving(
    harness: ConsumerHarness, spec: pc.ShardSpec, *, metrics: Any = None, **options: Any
) -> AsyncIterator[tuple[Service, ShardClient]]:
    """Run a member of a group of its own, which has a shard, and give a client."""
    consumer = ConsumerOptions(prefix="/own.test", host="127.0.0.1", **options)
    async with (
        Service(Summing(), harness.store, harness.client, consumer, metrics=metrics) as member,
        connect_shards(member.endpoint) as client,
    ):
        await apply_shards(client, [pc.ApplyRequest.Change(upsert=spec)])
        yield member, client


async def test_standbys_are_limited(harness: ConsumerHarness) -> None:
    spec = shard_spec("shard-one", SOURCE)
    spec.hot_standbys = 3
    async with serving(harness, spec, bind="127.0.0.1", max_hot_standbys=1) as (member, _):
        assert member.session.group.items["shard-one"].replication == 2


async def test_members_listen_on_all_addresses_by_default(harness: ConsumerHarness) -> None:
    async with serving(harness, shard_spec("shard-one", SOURCE)) as (member, _):
        assert member.endpoint.startswith("http://127.0.0.1:")
        assert "shard-one" in member.session.group.items


async def test_statuses_and_sizes_are_metrics(harness: ConsumerHarness) -> None:
    metrics = ConsumerMetrics(CollectorRegistry())
    spec = shard_spec("shard-one", SOURCE)
    async with serving(harness, spec, bind="127.0.0.1", metrics=metrics) as (_, client):
        await publish(harness.client, range(7))
        labels = 'shard="/own.test/items/shard-one"'
        consumed = f"gazette_shard_read_messages_total{{{labels}}} 8.0"  # With an acknowledgement.
        await eventually(lambda: consumed in metrics.text()[0].decode())
        text = metrics.text()[0].decode()
        for line in (
            'gazette_shard_up{shard="shard-one",status="PRIMARY"} 1.0',
            "gazette_allocator_members 1.0",
            "gazette_allocator_assignment_added_total 1.0",
            "gazette_allocator_assignment_removed_total 0.0",
            f'gazette_shard_read_head{{journal="{SOURCE}",{labels}}}',
            'phase="60-acknowledging"',
        ):
            assert line in text
        assert re.search(r"gazette_allocator_max_flow_runtime_seconds_count [1-9]", text)
        deletion = pc.ApplyRequest.Change(delete="shard-one", expect_mod_revision=-1)
        await apply_shards(client, [deletion])
        await eventually(lambda: labels not in metrics.text()[0].decode())
