"""Stores whose checkpoint is written last, by compare-and-set."""

from __future__ import annotations

import pytest

from gazette_aio.consumer.application import Shard
from gazette_aio.consumer.stores import StoredRecord
from gazette_aio.protocol.consumer import Checkpoint
from gazette_aio.protocol.errors import FencedError, StoreError
from gazette_aio.testing import StubShard
from tests.consumer.stores.databases import checkpoint_at
from tests.consumer.stores.test_conformance import Cloud, CloudStore


@pytest.fixture
def shard() -> StubShard:
    return StubShard("a-shard")


async def opened(cloud: Cloud, shard: Shard) -> tuple[CloudStore, Checkpoint]:
    store = CloudStore(cloud, shard)
    return store, await store.restore_checkpoint(shard)


async def test_a_former_owner_writes_no_changes(shard: StubShard) -> None:
    cloud = Cloud()
    former, _ = await opened(cloud, shard)
    await opened(cloud, shard)
    former.state["value"] = "stale"
    with pytest.raises(FencedError, match=r"checkpoint fence was updated \(ie, by a new primary\)"):
        await former.start_commit(shard, checkpoint_at(1), ())
    assert cloud.states == {}


class Overtaken(CloudStore):
    """Another process restores the shard after this one has written its changes."""

    async def write_changes(self, changes: dict[str, str]) -> None:
        await super().write_changes(changes)
        await opened(self.cloud, self.shard)


async def test_a_checkpoint_is_fenced_that_changes_are_ahead_of(shard: StubShard) -> None:
    cloud = Cloud()
    former = Overtaken(cloud, shard)
    await former.restore_checkpoint(shard)
    former.state["value"] = "ahead"
    with pytest.raises(FencedError):
        await former.start_commit(shard, checkpoint_at(1), ())
    owner, checkpoint = await opened(cloud, shard)
    assert checkpoint == Checkpoint()
    assert owner.state == {"value": "ahead"}


class Racing(CloudStore):
    """The former owner commits while this one restores."""

    former: CloudStore

    async def load_record(self, key: str) -> StoredRecord[int] | None:
        record = await super().load_record(key)
        if self.cloud.states == {}:
            self.former.state["value"] = "first"
            await self.former.start_commit(self.shard, checkpoint_at(1), ())
        return record


async def test_restoring_tries_again_after_a_commit_of_the_former_owner(shard: StubShard) -> None:
    cloud = Cloud()
    former, _ = await opened(cloud, shard)
    owner = Racing(cloud, shard)
    owner.former = former
    assert await owner.restore_checkpoint(shard) == checkpoint_at(1)
    with pytest.raises(FencedError):
        await former.start_commit(shard, checkpoint_at(2), ())


async def test_contents_of_records_never_recur(shard: StubShard) -> None:
    cloud = Cloud()
    contents: list[bytes] = []
    for _ in range(3):
        store, _ = await opened(cloud, shard)
        contents.append(cloud.records[shard.fqn].content)
        await store.start_commit(shard, checkpoint_at(1), ())
        contents.append(cloud.records[shard.fqn].content)
    assert len(set(contents)) == 6


async def test_damaged_records_are_refused(shard: StubShard) -> None:
    cloud = Cloud()
    store, _ = await opened(cloud, shard)
    await store.start_commit(shard, checkpoint_at(1), ())
    sound = cloud.records[shard.fqn].content
    flipped = sound[:-1] + bytes((sound[-1] ^ 1,))
    for damaged in (b"\xff" * 40, flipped, *(sound[:size] for size in range(len(sound)))):
        cloud.records[shard.fqn] = StoredRecord(damaged, 3)
        with pytest.raises(StoreError, match=f"^checkpoint of {shard.fqn}: the record is damaged"):
            await opened(cloud, shard)
