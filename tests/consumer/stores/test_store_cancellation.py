"""Cancellation of calls of embedded stores, at each of their awaits."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gazette_aio.testing import StubShard, no_leaks
from tests.cancellation import cancel_at_every_await
from tests.consumer.stores.databases import checkpoint_at
from tests.consumer.stores.memory_recorder import MemoryRecorder, recover
from tests.consumer.stores.test_recorded_stores import KINDS, Kind

SHARD = StubShard("a-shard")


@pytest.fixture(params=["sqlite", "rocksdb"])
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture(autouse=True)
async def _nothing_leaks() -> AsyncIterator[None]:
    async with no_leaks():
        yield


async def test_restoring(kind: Kind, tmp_path: Path) -> None:
    """It may be called again, and has recorded the database as a whole, or nothing."""
    numbers = itertools.count()
    stores: list[Any] = []

    async def restore() -> None:
        recorder = MemoryRecorder(tmp_path / f"store-{next(numbers)}")
        stores.append((kind.make(recorder), recorder))
        await stores[-1][0].restore_checkpoint(SHARD)

    async def check() -> None:
        store, recorder = stores[-1]
        await store.restore_checkpoint(SHARD)
        await kind.put(store, "key", "value")
        await store.start_commit(SHARD, checkpoint_at(1), ())
        await store.destroy()
        assert not store.directory.exists()
        fsm, _ = recover(store.directory, recorder.content)
        again = kind.make(MemoryRecorder(store.directory, fsm, recorder.content, author=2))
        assert await again.restore_checkpoint(SHARD) == checkpoint_at(1)
        assert await kind.get(again, "key") == "value"
        await again.destroy()

    assert await cancel_at_every_await(restore, check) >= 1


async def test_destroying(kind: Kind, tmp_path: Path) -> None:
    """Called again, it ends what is left."""
    stores: list[Any] = []

    async def destroy() -> None:
        store = kind.make(MemoryRecorder(tmp_path / "store"))
        stores.append(store)
        await asyncio.create_task(store.restore_checkpoint(SHARD))
        await kind.put(store, "key", "value")
        store.start_commit(SHARD, checkpoint_at(1), ())
        await store.destroy()

    async def check() -> None:
        await stores[-1].destroy()
        assert not stores[-1].directory.exists()

    assert await cancel_at_every_await(destroy, check) >= 3


async def test_a_function_in_the_thread_of_the_store(tmp_path: Path) -> None:
    """Its caller stays until it has returned, as it uses the connection."""
    begun, may_end = threading.Event(), threading.Event()

    def insert(connection: Any) -> None:
        begun.set()
        may_end.wait()
        connection.execute("INSERT INTO state VALUES ('key', 'value')")

    kind = KINDS["sqlite"]
    store = kind.make(MemoryRecorder(tmp_path / "store"))
    await store.restore_checkpoint(SHARD)
    running = asyncio.create_task(store.run(insert))
    try:
        await asyncio.to_thread(begun.wait)
        for _ in range(3):
            running.cancel()
            await asyncio.sleep(0)
            assert not running.done()
    finally:
        may_end.set()
        await asyncio.wait((running,))
    assert running.cancelled()
    assert await kind.get(store, "key") == "value"
    await store.destroy()
