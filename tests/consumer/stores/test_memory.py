"""Store in memory."""

from __future__ import annotations

import asyncio

import pytest

from gazette_aio.client.appends.futures import AsyncOperation
from gazette_aio.consumer.stores import MemoryDatabase, MemoryStore
from gazette_aio.protocol.consumer import Checkpoint
from gazette_aio.protocol.errors import DependencyError, FencedError
from gazette_aio.testing import StubShard
from tests.consumer.stores.databases import checkpoint_at


async def test_stores_of_a_database_share_states() -> None:
    database, shard = MemoryDatabase(), StubShard("a-shard")
    store = MemoryStore({"count": 0}, database)
    assert await store.restore_checkpoint(shard) == Checkpoint()
    store.state["count"] = 7
    await store.start_commit(shard, checkpoint_at(5), ())
    store.state["count"] = 8
    other = MemoryStore({"count": 0}, database)
    assert await other.restore_checkpoint(shard) == checkpoint_at(5)
    assert other.state == {"count": 7}
    with pytest.raises(FencedError, match=r"checkpoint fence was updated \(ie, by a new primary\)"):
        await store.start_commit(shard, checkpoint_at(6), ())


async def test_a_commit_fails_with_its_first_failing_dependency() -> None:
    store, shard = MemoryStore(0), StubShard("a-shard")
    await store.restore_checkpoint(shard)
    pending, failing = AsyncOperation(), AsyncOperation()
    commit = store.start_commit(shard, checkpoint_at(1), [pending, failing])
    await asyncio.sleep(0)
    failing.resolve(OSError("no space"))
    with pytest.raises(DependencyError, match="dependency failed: no space"):
        await commit
    assert not pending.done()
    cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    cancelled.cancel()
    with pytest.raises(DependencyError, match="it was cancelled"):
        await store.start_commit(shard, checkpoint_at(1), [cancelled])  # type: ignore[list-item]
    assert await store.restore_checkpoint(shard) == Checkpoint()


async def test_stores_without_a_database_are_alone() -> None:
    shard = StubShard("a-shard")
    store = MemoryStore([1])
    await store.restore_checkpoint(shard)
    await store.start_commit(shard, checkpoint_at(1), ())
    assert await MemoryStore([1]).restore_checkpoint(shard) == Checkpoint()
    assert "fence=1" in repr(store)
