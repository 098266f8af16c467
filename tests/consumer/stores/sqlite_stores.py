"""SQLiteStores of one table, of tests."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

from gazette_aio.consumer.stores import SQLiteStore
from gazette_aio.testing import StubShard
from tests.consumer.stores.databases import checkpoint_at
from tests.consumer.stores.memory_recorder import MemoryRecorder

SHARD = StubShard("a-shard")
SCHEMA = "CREATE TABLE IF NOT EXISTS state (key INTEGER PRIMARY KEY, value BLOB)"
PUT = "INSERT OR REPLACE INTO state (key, value) VALUES (?, ?)"
CHECKPOINTS = """
CREATE TABLE gazette_checkpoint (
  rowid INTEGER PRIMARY KEY DEFAULT 0 CHECK (rowid = 0), checkpoint BLOB
);
INSERT INTO gazette_checkpoint (rowid, checkpoint) VALUES (0, '');
"""
"""The table of all SQLite stores, Gazette's own included."""
GET = "SELECT value FROM state WHERE key = ?"


@asynccontextmanager
async def opened(
    recorder: MemoryRecorder | None = None,
    schema: str = SCHEMA,
    **options: Any,
) -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(recorder, schema=schema, **options)
    try:
        yield store
    finally:
        await store.destroy()


def value_of(store: SQLiteStore, key: int) -> bytes | None:
    row = store.db.execute(GET, (key,)).fetchone()
    return None if row is None else row[0]  # type: ignore[return-value]


def recorded_ahead(recorder: MemoryRecorder, value: bytes) -> None:
    """Record a database whose commit is in its write-ahead log, as former releases do."""
    directory = Path(recorder.directory)
    with closing(sqlite3.connect(directory / "primary.db", isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode=WAL").fetchall()
        db.executescript(f"{CHECKPOINTS} {SCHEMA};")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        db.execute("BEGIN")
        db.execute(PUT, (1, value))
        content = checkpoint_at(1).SerializeToString()
        db.execute("UPDATE gazette_checkpoint SET checkpoint = ?", (content,))
        db.execute("COMMIT")
        with recorder.atomic():
            for name in ("primary.db", "primary.db-wal"):
                data = (directory / name).read_bytes()
                fnode = recorder.record_create(f"{recorder.directory}/{name}")
                recorder.record_write_at(fnode, data, 0)
