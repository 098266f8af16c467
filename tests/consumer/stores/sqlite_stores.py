"""SQLiteStores of one table, of tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from gazette_aio.consumer.stores import SQLiteStore, SQLiteVFSStore
from gazette_aio.testing import StubShard
from tests.consumer.stores.memory_recorder import MemoryRecorder

SHARD = StubShard("a-shard")
SCHEMA = "CREATE TABLE IF NOT EXISTS state (key INTEGER PRIMARY KEY, value BLOB)"
PUT = "INSERT OR REPLACE INTO state (key, value) VALUES (?, ?)"
GET = "SELECT value FROM state WHERE key = ?"


AnyStore = SQLiteStore | SQLiteVFSStore
AnyKind = type[SQLiteStore] | type[SQLiteVFSStore]
KINDS = (SQLiteStore, SQLiteVFSStore)


@asynccontextmanager
async def opened(
    recorder: MemoryRecorder | None = None,
    schema: str = SCHEMA,
    *,
    kind: AnyKind = SQLiteStore,
    **options: Any,
) -> AsyncIterator[Any]:
    store = kind(recorder, schema=schema, **options)
    try:
        yield store
    finally:
        await store.destroy()


def value_of(store: AnyStore, key: int) -> bytes | None:
    row = store.db.execute(GET, (key,)).fetchone()
    return None if row is None else row[0]
