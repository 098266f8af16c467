"""Transactions on an embedded broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gazette_aio.message import Publisher, ReadCommittedIter, json_adapter
from tests.consumer.transactions.world import (
    NDJSON,
    OUT,
    SOURCES,
    Disk,
    Member,
    heads,
    serve,
    shard_spec,
)


@pytest.fixture
async def client(tmp_path: Path):
    async with serve(tmp_path) as client:
        yield client


async def publish(client: Any, journal: str, *values: int) -> None:
    publisher = Publisher(client.appends, json_adapter())
    async with publisher.transaction():
        for value in values:
            await publisher.publish_uncommitted(lambda _: (journal, NDJSON), {"v": value})


async def echoed(client: Any) -> list[int]:
    source = ReadCommittedIter(OUT, json_adapter(), client=client, skip_acks=True)
    async with source as messages:
        return [env.message["v"] async for env in messages]


async def test_messages_are_consumed_and_echoed(client: Any):
    disk = Disk()
    async with Member(client, disk, spec=shard_spec(*SOURCES, min_ms=1, max_ms=10)) as member:
        await publish(client, SOURCES[0], 1, 2, 3)
        await publish(client, SOURCES[1], 4)
        await member.through(await heads(client, *SOURCES))
        assert disk.state == {SOURCES[0]: [1, 2, 3], SOURCES[1]: [4]}
        assert sorted(await echoed(client)) == [1, 2, 3, 4]
    async with Member(client, disk, spec=shard_spec(*SOURCES)) as member:
        await publish(client, SOURCES[0], 5)
        await member.through(await heads(client, *SOURCES))
        assert disk.state == {SOURCES[0]: [1, 2, 3, 5], SOURCES[1]: [4]}
        assert sorted(await echoed(client)) == [1, 2, 3, 4, 5]
        assert member.progress.progress.publish_at[OUT] == (await heads(client, OUT))[OUT]
