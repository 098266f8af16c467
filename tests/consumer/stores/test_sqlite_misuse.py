"""What hooks, schemas and settings may not do to the database of an SQLiteStore."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import apsw
import pytest

from gazette_aio.aio.threads import in_thread
from gazette_aio.consumer.stores import SQLiteStore
from gazette_aio.protocol.consumer import Checkpoint
from gazette_aio.protocol.errors import ConfigurationError, StoreError, UsageError
from tests.consumer.stores.databases import checkpoint_at
from tests.consumer.stores.memory_recorder import MemoryRecorder, recover
from tests.consumer.stores.sqlite_stores import PUT, SHARD, opened, value_of


async def test_misuse(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="either a recorder or a directory"):
        SQLiteStore(None)
    with pytest.raises(ConfigurationError, match="either a recorder or a directory"):
        SQLiteStore(MemoryRecorder(tmp_path), directory=tmp_path)
    for pragmas, text in (
        ({"journal_mode": "OFF"}, "sets the pragma journal_mode"),
        ({"cache_size": "1; DROP TABLE state"}, "invalid pragma"),
        ({"cache size": 1}, "invalid pragma"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            SQLiteStore(None, directory=tmp_path, pragmas=pragmas)
    async with opened(directory=tmp_path / "db") as store:
        with pytest.raises(StoreError, match="isn't open"):
            _ = store.db
        with pytest.raises(StoreError, match="isn't open"):
            await store.start_commit(SHARD, Checkpoint(), ())


async def test_the_database_of_another_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pageDB").mkdir()
    async with opened(MemoryRecorder(tmp_path)) as store:
        with pytest.raises(ConfigurationError, match="Gazette's own SQLite store"):
            await store.restore_checkpoint(SHARD)


@pytest.mark.parametrize("statements", ["COMMIT", "ROLLBACK", "COMMIT; BEGIN", "ROLLBACK; BEGIN"])
async def test_only_the_store_ends_transactions(tmp_path: Path, statements: str) -> None:
    recorder = MemoryRecorder(tmp_path / "db")
    async with opened(recorder) as store:
        await store.restore_checkpoint(SHARD)
        store.db.execute(PUT, (1, b"one"))
        await store.start_commit(SHARD, checkpoint_at(1), ())
        store.db.execute(PUT, (2, b"two"))
        before = recorder.content
        db = store.db
        for statement in statements.split("; "):
            db.execute(statement)
        if "BEGIN" not in statements:
            with pytest.raises(StoreError, match="ended by somebody else"):
                _ = store.db
        with pytest.raises(StoreError, match=r"ended by somebody else|no such savepoint"):
            await store.start_commit(SHARD, checkpoint_at(2), ())
        assert recorder.content == before
    fsm, _ = recover(tmp_path / "two", before)
    async with opened(MemoryRecorder(tmp_path / "two", fsm, before, author=2)) as store:
        assert await store.restore_checkpoint(SHARD) == checkpoint_at(1)
        assert value_of(store, 2) is None


async def test_what_a_hook_cannot_do(tmp_path: Path) -> None:
    async with opened(MemoryRecorder(tmp_path / "db")) as store:
        await store.restore_checkpoint(SHARD)
        store.db.execute(PUT, (1, b"none"))
        for statement in (f"ATTACH '{tmp_path}/other.db' AS other", "PRAGMA synchronous=FULL",
                          "VACUUM"):  # fmt: skip
            with pytest.raises((apsw.SQLError, apsw.CantOpenError)):
                store.db.execute(statement)
        for mode in ("DELETE", "WAL"):
            assert store.db.execute(f"PRAGMA journal_mode={mode}").fetchone() == ("memory",)
        store.db.execute("SAVEPOINT one")
        store.db.execute(PUT, (1, b"one"))
        store.db.execute("ROLLBACK TO one")
        assert value_of(store, 1) == b"none"
        await store.start_commit(SHARD, checkpoint_at(1), ())


@pytest.mark.parametrize("statements", ["COMMIT", "COMMIT; BEGIN"])
async def test_what_a_hook_has_committed_is_not_restored(tmp_path: Path, statements: str) -> None:
    """It would be recorded by the next commit, and done again."""
    async with opened(MemoryRecorder(tmp_path / "db")) as store:
        await store.restore_checkpoint(SHARD)
        store.db.execute(PUT, (1, b"one"))
        db = store.db
        for statement in statements.split("; "):
            db.execute(statement)
        for _ in range(2):
            with pytest.raises(StoreError, match="ended by somebody else"):
                await store.restore_checkpoint(SHARD)
        with pytest.raises(StoreError, match="ended by somebody else"):
            await store.start_commit(SHARD, checkpoint_at(1), ())


def read_often(store: SQLiteStore) -> None:
    for _ in range(10):
        with contextlib.suppress(UsageError):
            value_of(store, 1)


async def test_threads_read_whatever_becomes_of_the_transaction(tmp_path: Path) -> None:
    async with opened(directory=tmp_path / "db") as store:
        await store.restore_checkpoint(SHARD)
        for number in range(1, 50):
            # It begins,
            reads = [in_thread(value_of, store, 1) for _ in range(4)]
            await asyncio.gather(store.execute(PUT, (1, b"value")), *reads)
            # is rolled back,
            reads = [in_thread(value_of, store, 1) for _ in range(4)]
            await asyncio.gather(store.restore_checkpoint(SHARD), *reads)
            assert value_of(store, 1) is None or number > 1
            # and commits.
            readings = [asyncio.create_task(in_thread(read_often, store)) for _ in range(4)]
            await store.execute(PUT, (1, b"value"))
            await store.start_commit(SHARD, checkpoint_at(number), ())
            await asyncio.gather(*readings)


async def test_a_commit_that_fails_locally(tmp_path: Path) -> None:
    schema = """
    CREATE TABLE one (key INTEGER PRIMARY KEY);
    CREATE TABLE two (one INTEGER REFERENCES one (key) DEFERRABLE INITIALLY DEFERRED);
    """
    recorder = MemoryRecorder(tmp_path / "db")
    async with opened(recorder, schema=schema, pragmas={"foreign_keys": "ON"}) as store:
        await store.restore_checkpoint(SHARD)
        store.db.execute("INSERT INTO two (one) VALUES (7)")
        before = recorder.content
        with pytest.raises(StoreError, match="committing the database: FOREIGN KEY"):
            await store.start_commit(SHARD, checkpoint_at(1), ())
        assert recorder.content == before
        with pytest.raises(StoreError, match="can't be used any longer"):
            _ = store.db
