"""Ends of members in unusual orders."""

from __future__ import annotations

import asyncio
import warnings
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from prometheus_client import CollectorRegistry

from gazette_aio.consumer.api import apply_shards
from gazette_aio.consumer.keyspace.operations import Delete
from gazette_aio.consumer.service.metrics import ConsumerMetrics
from gazette_aio.consumer.service.options import ConsumerOptions
from gazette_aio.consumer.service.service import Service
from gazette_aio.consumer.shards import local_shards
from gazette_aio.protocol import consumer as pc
from gazette_aio.protocol.errors import GazetteError
from gazette_aio.testing import consumer_harness, no_leaks
from tests.cancellation import close_at_every_await
from tests.consumer.service.applications import SOURCE, Summing, create_source, shard_spec
from tests.waiting import eventually, turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gazette_aio.testing import ConsumerHarness


@pytest.fixture
async def harness() -> AsyncIterator[ConsumerHarness]:
    async with consumer_harness(Summing()) as harness:
        await create_source(harness.client)
        yield harness


def service_of(
    harness: ConsumerHarness, application: Summing | None = None, **options: float
) -> Service:
    loopback = {"bind": "127.0.0.1", "host": "127.0.0.1"}
    consumer = ConsumerOptions(prefix="/ends.test", **loopback, **options)  # type: ignore[arg-type]
    return Service(application or Summing(), harness.store, harness.client, consumer)


class Working(Summing):
    """Has a task that ends only after its cancellation, when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = asyncio.Event()
        self.has_ended = False

    async def work(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            await self.may_end.wait()
            self.has_ended = True

    def init_application(self, service: Service) -> None:
        service.spawn(self.work())


async def test_a_member_is_closed_before_its_first_step(harness: ConsumerHarness) -> None:
    service = service_of(harness)
    async with no_leaks():
        starting = asyncio.create_task(service.start())
        await asyncio.sleep(0)
        await service.aclose()
        with pytest.raises(RuntimeError, match="was closed"):
            await asyncio.wait_for(starting, 60)


async def test_a_cancelled_close_is_a_close(harness: ConsumerHarness) -> None:
    service = service_of(harness)
    await service.start()
    closing = asyncio.create_task(service.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        service.__del__()


async def test_an_exit_after_the_end_starts_nothing(harness: ConsumerHarness) -> None:
    service = service_of(harness)
    await service.start()
    await service.aclose()
    async with no_leaks():
        service.exit_gracefully()
    assert not service.session.is_exiting


async def test_a_member_that_cant_run_its_shards_fails(
    harness: ConsumerHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> Any:
        raise ValueError("no replicas today")

    member = await harness.start_member()
    monkeypatch.setattr(local_shards, "Replica", broken)
    change = pc.ApplyRequest.Change(upsert=shard_spec("shard-one", SOURCE))
    await apply_shards(harness.shards, [change])
    with pytest.raises(ValueError, match="no replicas today"):
        await member.wait()
    assert member.stopping.is_set()
    assert "local shard shard-one can't be run" in caplog.text


async def test_a_task_of_a_member_that_never_starts_is_closed(harness: ConsumerHarness) -> None:
    service = service_of(harness)
    service.spawn(asyncio.sleep(0))
    await service.aclose()
    with pytest.raises(RuntimeError, match="starts no tasks"):
        service.spawn(asyncio.sleep(0))


async def test_the_first_failure_of_a_task_ends_the_member_and_later_ones_are_logged(
    harness: ConsumerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    fail = asyncio.Event()

    async def failing(text: str) -> None:
        try:
            await fail.wait()
        finally:
            raise ValueError(text)

    async def cancelled() -> None:
        raise asyncio.CancelledError

    async with service_of(harness) as service:
        for work in (asyncio.sleep(0), cancelled()):
            service.spawn(work)
        await turns()
        assert service.is_ready, "tasks that end or are cancelled end no member"
        for text in ("first", "second"):
            service.spawn(failing(text))
        await turns()
        fail.set()
        with pytest.raises(ValueError, match="first"):
            await service.wait()
    assert "second" in caplog.text
    assert "failing of the application failed after the member's end began" in caplog.text


async def test_a_task_that_goes_on_holds_no_member_up(
    harness: ConsumerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    application = Working()
    async with no_leaks():
        async with service_of(harness, application, stop_timeout=0.01):
            await turns()
        assert "work of the application is still running 0.01 s after its" in caplog.text
        application.may_end.set()


async def test_a_task_of_a_member_cant_close_it(harness: ConsumerHarness) -> None:
    class Closing(Summing):
        def init_application(self, service: Service) -> None:
            service.spawn(service.aclose())

    async with no_leaks():
        service = service_of(harness, Closing())
        await service.start()
        with pytest.raises(RuntimeError, match="a task of the member can't close it"):
            await service.wait()
        await service.aclose()


async def test_the_end_of_a_member_cancelled_at_each_await(harness: ConsumerHarness) -> None:
    made: list[Working] = []

    async def opened() -> Service:
        made.append(Working())
        made[-1].may_end.set()
        service = service_of(harness, made[-1])
        await service.start()
        return service

    def check() -> None:
        assert made[-1].has_ended

    assert await close_at_every_await(opened, check) >= 1


async def test_the_task_of_a_member_cancelled_again_and_again_ends_it_whole(
    harness: ConsumerHarness,
) -> None:
    """As libraries do that cancel all tasks of an event loop."""
    application = Working()
    async with service_of(harness):
        pass  # What takes time at first is over.
    async with no_leaks():
        service = service_of(harness, application)
        await service.start()
        address = urlsplit(service.endpoint)
        name = f"gazette member {service.process_id.suffix}"
        (runner,) = (each for each in asyncio.all_tasks() if each.get_name() == name)
        for _ in range(3):
            runner.cancel()
            # Longer than it takes a member to end.
            done, _ = await asyncio.wait((runner,), timeout=0.3)
            assert not done, "it left although a task of the member goes on"
        application.may_end.set()
        await asyncio.wait((runner,))
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(address.hostname, address.port)
        with pytest.raises(RuntimeError, match="was closed"):
            await service.wait()
        await service.aclose()


async def test_the_start_of_a_member_cancelled_at_each_await(harness: ConsumerHarness) -> None:
    class Initializing(Summing):
        async def init_application(self, service: Service) -> None:
            service.spawn(asyncio.sleep(3600))
            await asyncio.sleep(0)

    for turns_before in range(60):
        async with no_leaks():
            service = service_of(harness, Initializing())
            starting = asyncio.create_task(service.start())
            await turns(turns_before)
            starting.cancel()
            await asyncio.wait((starting,))
            assert starting.cancelled() or service.is_ready
            await service.aclose()
            assert not service.is_ready


async def test_shards_end_before_a_task_that_takes_its_time(harness: ConsumerHarness) -> None:
    application = Working()
    member = await harness.start_member(application)
    await harness.create_shards(shard_spec("shard-one", SOURCE))
    async with member.resolve("shard-one") as resolution:
        replica = resolution.shard
    assert replica is not None
    local = member.session.group.local_member
    assert local is not None
    await harness.store.transact([], [Delete(local.raw.key)])
    try:
        await eventually(replica.cancelled.is_set)
        assert member.stopping.is_set()
    finally:
        application.may_end.set()
    with pytest.raises(GazetteError, match="member key not found"):
        await member.wait()


def test_refused_metrics_leave_nothing_in_the_registry() -> None:
    registry = CollectorRegistry()
    metrics = ConsumerMetrics(registry)
    before = metrics.text()
    with pytest.raises(ValueError, match="Duplicated"):
        ConsumerMetrics(registry)
    assert metrics.text() == before


async def test_an_exit_before_the_member_has_joined_is_refused(harness: ConsumerHarness) -> None:
    class Hasty(Summing):
        def init_application(self, service: Service) -> None:
            service.exit_gracefully()

    with pytest.raises(RuntimeError, match="hasn't joined"):
        await harness.start_member(Hasty())
