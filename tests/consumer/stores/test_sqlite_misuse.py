"""What hooks, schemas and settings may not do to the database of an SQLiteStore."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from gazette_aio.aio.threads import in_thread
from gazette_aio.consumer.stores import SQLiteStore
from gazette_aio.consumer.stores.sqlite import capture
from gazette_aio.protocol.consumer import Checkpoint
from gazette_aio.protocol.errors import ConfigurationError, StoreError
from tests.consumer.stores.databases import checkpoint_at
from tests.consumer.stores.memory_recorder import MemoryRecorder, recover
from tests.consumer.stores.sqlite_stores import PUT, SCHEMA, SHARD, opened, value_of


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
    async with opened(directory=tmp_path / "open", schema="BEGIN; SELECT 1;") as store:
        with pytest.raises(StoreError, match="leaves a transaction open"):
            await store.open()
    async with opened(directory=tmp_path / "wrong", schema="CREATE nothing") as store:
        with pytest.raises(StoreError, match="syntax error"):
            await store.open()


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
                          "PRAGMA wal_checkpoint(TRUNCATE)", "VACUUM"):  # fmt: skip
            with pytest.raises(sqlite3.OperationalError):
                store.db.execute(statement)
        assert store.db.execute("PRAGMA journal_mode=DELETE").fetchone() == ("wal",)
        store.db.execute("SAVEPOINT one")
        store.db.execute(PUT, (1, b"one"))
        store.db.execute("ROLLBACK TO one")
        assert value_of(store, 1) == b"none"
        await store.start_commit(SHARD, checkpoint_at(1), ())


@pytest.mark.parametrize("rows", [1, 300])
async def test_a_hook_that_moves_the_write_ahead_log(tmp_path: Path, rows: int) -> None:
    """Nothing is missing in the log without a word."""
    async with opened(MemoryRecorder(tmp_path / "db")) as store:
        await store.restore_checkpoint(SHARD)
        store.db.executemany(PUT, [(key, bytes(500)) for key in range(100)])
        await store.start_commit(SHARD, checkpoint_at(1), ())
        assert store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0)
        store.db.executemany(PUT, [(key, bytes(500)) for key in range(rows)])
        with pytest.raises(StoreError, match="somebody else has moved"):
            await store.start_commit(SHARD, checkpoint_at(2), ())


@pytest.mark.parametrize(
    "statements",
    [
        "PRAGMA wal_checkpoint(TRUNCATE)",
        "PRAGMA journal_mode=DELETE; PRAGMA journal_mode=WAL",
        "PRAGMA wal_autocheckpoint=1; UPDATE state SET value = value",
        "UPDATE state SET value = value; PRAGMA wal_checkpoint(TRUNCATE)",
        "VACUUM",
    ],
)
async def test_a_schema_that_moves_the_write_ahead_log(tmp_path: Path, statements: str) -> None:
    """What was recovered is never missing in the log without a word."""
    recorder = MemoryRecorder(tmp_path / "one")
    async with opened(recorder) as store:
        await store.restore_checkpoint(SHARD)
        store.db.executemany(PUT, [(key, bytes(500)) for key in range(100)])
        await store.start_commit(SHARD, checkpoint_at(1), ())
        content = recorder.content
    for owner in (2, 3):
        directory = tmp_path / str(owner)
        fsm, _ = recover(directory, content)
        recorder = MemoryRecorder(directory, fsm, content, author=owner)
        schema = f"{SCHEMA}; {statements};" if owner == 2 else SCHEMA
        async with opened(recorder, schema=schema) as store:
            try:
                assert await store.restore_checkpoint(SHARD) == checkpoint_at(1)
                assert store.db.execute("SELECT count(*) FROM state").fetchone() == (100,)
                assert store.db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            except StoreError as error:
                assert owner == 2
                assert statements != "VACUUM"
                assert "somebody else has moved" in str(error)  # noqa: PT017 - Some are harmless.
            content = recorder.content


async def test_a_cursor_that_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The write-ahead log can't grow forever: the store warns once, and then fails the commit."""
    monkeypatch.setattr(capture, "WAL_BYTES", 64 << 10)
    monkeypatch.setattr(capture, "MAX_PINNED_BYTES", 512 << 10)
    recorder = MemoryRecorder(tmp_path / "one")
    wal = tmp_path / "one/primary.db-wal"
    number = 0

    async def commit() -> None:
        nonlocal number
        number += 1
        store.db.execute(PUT, (number % 10, bytes(20 << 10)))
        await store.start_commit(SHARD, checkpoint_at(number), ())

    async def commit_on() -> None:
        while True:
            await commit()

    async with opened(recorder) as store:
        await store.restore_checkpoint(SHARD)
        store.db.executemany(PUT, [(key, b"value") for key in range(10)])
        reading = store.db.execute("SELECT key FROM state")
        assert reading.fetchone() == (0,)
        while not caplog.messages:
            await commit()
        assert wal.stat().st_size < 256 << 10
        reading.close()
        await commit()
        assert wal.stat().st_size == 0
        reading = store.db.execute("SELECT key FROM state")
        assert reading.fetchone() == (0,)
        with pytest.raises(StoreError, match=r"a hook is still reading: .* close its cursor"):
            await commit_on()
        assert wal.stat().st_size < 1 << 20
        assert len(caplog.messages) == 1
        assert "a hook is still reading" in caplog.text
        content = recorder.content
    fsm, _ = recover(tmp_path / "two", content)
    async with opened(MemoryRecorder(tmp_path / "two", fsm, content, author=2)) as store:
        assert await store.restore_checkpoint(SHARD) == checkpoint_at(number - 1)


@pytest.mark.parametrize("name", ["'{}/other.db'", "char(47) || 'other.db'"])
async def test_a_schema_that_attaches_a_database(tmp_path: Path, name: str) -> None:
    """It's refused before the other database is made, also if the schema detaches it again."""
    attach = f"ATTACH {name.format(tmp_path)} AS other"
    schema = f"{SCHEMA}; {attach}; CREATE TABLE other.t (key); DETACH other;"
    async with opened(MemoryRecorder(tmp_path / "db"), schema=schema) as store:
        with pytest.raises(StoreError, match=r"attaches another database, .*SQLiteVFSStore"):
            await store.open()
    assert not (tmp_path / "other.db").exists()


async def test_a_recorded_database_is_not_opened_again_after_a_failure(tmp_path: Path) -> None:
    """The files have changed since, which the log doesn't know."""
    recorder = MemoryRecorder(tmp_path / "one")
    async with opened(recorder) as store:
        await store.restore_checkpoint(SHARD)
        store.db.execute(PUT, (1, b"one"))
        await store.start_commit(SHARD, checkpoint_at(1), ())
        content = recorder.content
    fsm, _ = recover(tmp_path / "two", content)
    recorder = MemoryRecorder(tmp_path / "two", fsm, content, author=2)
    async with opened(recorder, schema=f"{SCHEMA}; CREATE nothing") as store:
        with pytest.raises(StoreError, match="syntax error"):
            await store.open()
        with pytest.raises(StoreError, match=r"can't be used any longer: .*syntax error"):
            await store.open()
        content = recorder.content
    fsm, _ = recover(tmp_path / "three", content)
    async with opened(MemoryRecorder(tmp_path / "three", fsm, content, author=3)) as store:
        assert await store.restore_checkpoint(SHARD) == checkpoint_at(1)
        assert value_of(store, 1) == b"one"


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


async def test_threads_that_begin_at_once(tmp_path: Path) -> None:
    async with opened(directory=tmp_path / "db") as store:
        await store.restore_checkpoint(SHARD)
        for number in range(1, 30):
            await asyncio.gather(
                store.execute(PUT, (1, b"value")),
                *(in_thread(value_of, store, 1) for _ in range(4)),
            )
            await store.start_commit(SHARD, checkpoint_at(number), ())


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
