"""Harness of consumers: what it waits for, and its ends in unusual orders."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING

import pytest

from gazette_aio.consumer.api import list_shards
from gazette_aio.consumer.handlers import shard_unassign
from gazette_aio.consumer.keyspace.operations import Delete
from gazette_aio.consumer.service.service import Service
from gazette_aio.protocol import consumer as pc
from gazette_aio.protocol.errors import GazetteError
from gazette_aio.testing import consumer_harness
from tests.cancellation import cancel_at
from tests.consumer.service.applications import SOURCE, Summing, create_source, shard_spec
from tests.waiting import turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gazette_aio.consumer.service.service import Service
    from gazette_aio.protocol import Claims
    from gazette_aio.testing import ConsumerHarness

SHARD = "shard-one"


@pytest.fixture
async def harness() -> AsyncIterator[ConsumerHarness]:
    async with consumer_harness(Summing()) as harness:
        await create_source(harness.client)
        yield harness


async def lose_key(harness: ConsumerHarness, member: Service) -> None:
    local = member.session.group.local_member
    assert local is not None
    await harness.store.transact([], [Delete(local.raw.key)])


async def test_a_wait_outlives_the_member_that_it_asked(harness: ConsumerHarness) -> None:
    first = await harness.start_member(limit=0)
    second = await harness.start_member(limit=0)
    waiting = asyncio.create_task(harness.wait_for_primary(SHARD))
    await turns()
    await harness.crash_member(first)
    await turns()
    assert not waiting.done()
    await harness.crash_member(second)
    with pytest.raises(RuntimeError, match="no member is running"):
        await waiting


async def test_a_primary_that_has_crashed_is_none(harness: ConsumerHarness) -> None:
    first = await harness.start_member()
    await harness.create_shards(shard_spec(SHARD, SOURCE))
    options = dataclasses.replace(first.options, id="slow", watch_delay=0.2)
    async with Service(Summing(), harness.store, harness.client, options) as slow:
        harness.members.append(slow)
        await harness.crash_member(first)
        route = await harness.wait_for_primary(SHARD)
        assert [member.suffix for member in route.members] == ["slow"]
        await harness.crash_member(slow)


async def test_a_member_that_failed_is_stopped_nevertheless(harness: ConsumerHarness) -> None:
    member = await harness.start_member()
    await lose_key(harness, member)
    await member.stopping.wait()
    with pytest.raises(GazetteError, match="member key not found"):
        await harness.stop_member(member)
    assert not harness.members


async def test_a_stop_that_is_cancelled_still_hands_over(harness: ConsumerHarness) -> None:
    first = await harness.start_member()
    await harness.create_shards(shard_spec(SHARD, SOURCE))
    assert await cancel_at(harness.stop_member(first), 0)
    await turns()
    await harness.start_member()
    assert await harness.stop_member(first)


async def test_primaries_that_change_meanwhile_are_unassigned(harness: ConsumerHarness) -> None:
    member = await harness.start_member()
    await harness.create_shards(shard_spec(SHARD, SOURCE))
    answers = [shard_unassign]

    async def unassign(
        claims: Claims, service: Service, request: pc.UnassignRequest
    ) -> pc.UnassignResponse:
        member.shard_api.unassign = answers.pop()
        return pc.UnassignResponse(status=pc.Status.ETCD_TRANSACTION_FAILED)

    member.shard_api.unassign = unassign
    async with member.resolve(SHARD) as resolution:
        replica = resolution.shard
    assert replica is not None
    await harness.unassign(SHARD)
    assert not answers
    await replica.cancelled.wait()


async def test_a_crash_cancelled_at_each_await(harness: ConsumerHarness) -> None:
    await harness.start_member()
    number, was_cancelled = 0, True
    while was_cancelled:
        stays = await harness.start_member()
        first = harness.members[0]
        client = harness.shards
        await list_shards(client)
        was_cancelled = await cancel_at(harness.crash_member(first), number)
        await harness.crash_member(first)
        assert harness.members == [stays]
        assert not client.dispatcher.is_dialled
        number += 1
    assert number > 1
