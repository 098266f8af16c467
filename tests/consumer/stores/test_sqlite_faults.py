"""SQLiteStore on a disk that fails: no commit succeeds that isn't recorded as a whole."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from gazette_aio.client.appends.futures import AsyncOperation
from gazette_aio.consumer.stores import SQLiteStore
from gazette_aio.protocol.consumer import Checkpoint
from gazette_aio.protocol.errors import DependencyError, StoreError
from tests.consumer.stores.databases import checkpoint_at
from tests.consumer.stores.faulty_disk import FaultyDisk
from tests.consumer.stores.memory_recorder import MemoryRecorder, recover
from tests.consumer.stores.sqlite_stores import (
    PUT,
    SCHEMA,
    SHARD,
    opened,
    recorded_ahead,
    value_of,
)

TWO = f"""
{SCHEMA};
ATTACH 'second.db' AS second;
CREATE TABLE IF NOT EXISTS second.second (key INTEGER PRIMARY KEY, value BLOB);
"""
# Pages are written before the commit, and files get shorter by it.
SMALL = {"cache_size": 2, "auto_vacuum": "FULL"}
State = dict[tuple[str, int], bytes]


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    disk = FaultyDisk()
    yield disk
    disk.close()


class Hook:
    """Changes two tables, and goes on after statements that fail."""

    def __init__(self, store: SQLiteStore) -> None:
        self.store = store
        self.state: State = {}
        self.committed: list[State] = [{}]

    def put(self, table: str, key: int, value: bytes) -> None:
        with contextlib.suppress(apsw.Error, StoreError):
            self.store.db.execute(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", (key, value))
            self.state[table, key] = value

    def remove(self, table: str, above: int) -> None:
        with contextlib.suppress(apsw.Error, StoreError):
            self.store.db.execute(f"DELETE FROM {table} WHERE key > ?", (above,))
            for of, key in list(self.state):
                if of == table and key > above:
                    del self.state[of, key]

    def try_in_vain(self) -> None:
        before = dict(self.state)
        with contextlib.suppress(apsw.Error, StoreError):
            self.store.db.execute("SAVEPOINT trial")
            for key in range(10, 16):
                self.put("state", key, b"trial" * 300)
            self.store.db.execute("ROLLBACK TO trial")
        self.state = before

    async def roll_back(self) -> None:
        with contextlib.suppress(apsw.Error, StoreError):
            await self.store.restore_checkpoint(SHARD)
        self.state = dict(self.committed[-1])

    async def commit(self) -> None:
        number = len(self.committed)
        with contextlib.suppress(StoreError):
            await self.store.start_commit(SHARD, checkpoint_at(number), ())
            self.committed.append(dict(self.state))


async def committed_with(
    disk: FaultyDisk, directory: Path, operation: str, number: int
) -> tuple[list[State], bytes]:
    """Return what was committed while a call failed, and the log."""
    recorder = MemoryRecorder(directory)
    async with opened(recorder, TWO, pragmas=SMALL) as store:
        await store.restore_checkpoint(SHARD)
        hook = Hook(store)
        for key in range(20):
            hook.put("state", key, b"first" * 200)
        hook.put("second", 1, b"first")
        await hook.commit()
        disk.fail(operation, number)
        for key in range(15, 25):
            hook.put("state", key, b"next" * 400)
            hook.put("second", key, b"next" * 400)
        hook.try_in_vain()
        hook.remove("state", 18)
        await hook.commit()
        for key in range(100, 130):
            hook.put("state", key, b"rolled back" * 300)
        await hook.roll_back()
        hook.put("second", 2, b"last")
        hook.remove("second", 2)
        await hook.commit()
        disk.heal()
    return hook.committed, recorder.content


async def recovered(directory: Path, content: bytes) -> tuple[int, State]:
    fsm, _ = recover(directory, content)
    state: State = {}
    async with opened(MemoryRecorder(directory, fsm, content, author=2), TWO) as store:
        checkpoint = await store.restore_checkpoint(SHARD)
        for table, name in (("state", "main"), ("second", "second")):
            rows = store.db.execute(f"SELECT key, value FROM {table}").fetchall()
            state.update({(table, key): value for key, value in rows})
            assert store.db.execute(f"PRAGMA {name}.integrity_check").fetchall() == [("ok",)]
    (number,) = [source.read_through for source in checkpoint.sources.values()] or [0]
    return number, state


@pytest.mark.parametrize(
    ("operation", "numbers"),
    [
        ("xTruncate", (1, 2)),
        ("xFileSize", (1, 2)),
        ("xWrite", (1, 30, 55, 80, 90, 95)),
        ("xRead", (1, 20, 31)),
    ],
)
async def test_a_commit_succeeds_only_with_all_that_statements_did(
    disk: FaultyDisk, tmp_path: Path, operation: str, numbers: tuple[int, ...]
) -> None:
    """SQLite takes some failed calls for done, and rolls back some by itself."""
    failed = 0
    for number in numbers:
        committed, content = await committed_with(disk, tmp_path / f"{number}", operation, number)
        failed += len(committed) < 4
        found = await recovered(tmp_path / f"{number}-recovered", content)
        assert found == (len(committed) - 1, committed[-1])
    assert failed == len(numbers)


@pytest.mark.parametrize("operation", ["xSync", "xDelete", "xOpen"])
async def test_nothing_else_is_called_that_could_fail(
    disk: FaultyDisk, tmp_path: Path, operation: str
) -> None:
    """Databases of a recorder are never synced, and have no journals."""
    committed, _ = await committed_with(disk, tmp_path, operation, 0)
    assert len(committed) == 4
    assert disk.calls == []


@pytest.mark.parametrize("operation", ["xOpen", "xDelete", "xTruncate", "xWrite", "xRead"])
async def test_an_opening_that_fails_records_nothing_wrong(
    disk: FaultyDisk, tmp_path: Path, operation: str
) -> None:
    """SQLite goes on if it can't remove the write-ahead log of a former release."""
    fsm, _ = recover(tmp_path / "before", b"")
    before = MemoryRecorder(tmp_path / "before", fsm)
    recorded_ahead(before, b"one")
    content = before.content
    fsm, _ = recover(tmp_path / "failed", content)
    recorder = MemoryRecorder(tmp_path / "failed", fsm, content, author=2)
    async with opened(recorder) as store:
        disk.fail(operation, lasts=2)
        with pytest.raises(StoreError, match="injected"):
            await store.restore_checkpoint(SHARD)
        assert disk.failed
        disk.heal()
        with pytest.raises(StoreError, match="can't be used any longer"):
            await store.restore_checkpoint(SHARD)
        content = recorder.content
    fsm, _ = recover(tmp_path / "again", content)
    async with opened(MemoryRecorder(tmp_path / "again", fsm, content, author=3)) as store:
        assert await store.restore_checkpoint(SHARD) == checkpoint_at(1)
        assert value_of(store, 1) == b"one"


async def test_a_database_that_fails_to_close(
    disk: FaultyDisk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It's closed, its VFS is gone, and its directory is removed."""
    before = apsw.vfs_names()
    async with opened(MemoryRecorder(tmp_path / "one"), TWO) as store:
        await store.restore_checkpoint(SHARD)
        disk.fail("xClose", lasts=9)
    assert disk.failed
    assert apsw.vfs_names() == before
    assert not (tmp_path / "one").exists()
    assert "failed to close the database of a store" in caplog.text


async def test_an_opening_fails_with_its_own_error(
    disk: FaultyDisk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = apsw.vfs_names()
    async with opened(MemoryRecorder(tmp_path / "one"), f"{SCHEMA}; CREATE nothing") as store:
        disk.fail("xClose", lasts=9)
        with pytest.raises(StoreError, match="syntax error"):
            await store.restore_checkpoint(SHARD)
        assert disk.failed
        assert apsw.vfs_names() == before
    assert "failed to close the database in" in caplog.text


async def test_a_commit_fails_with_its_first_error(
    disk: FaultyDisk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Here, a failed dependency, after which the transaction can't be rolled back."""
    async with opened(None, directory=tmp_path, pragmas=SMALL) as store:
        await store.restore_checkpoint(SHARD)
        store.db.executemany(PUT, [(key, bytes(3000)) for key in range(20)])
        appended = AsyncOperation()
        commit = store.start_commit(SHARD, checkpoint_at(1), [appended])
        disk.fail("xTruncate")
        appended.resolve(OSError("not appended"))
        with pytest.raises(DependencyError, match="not appended"):
            await commit
        assert disk.failed
    assert "failed to undo a commit that failed" in caplog.text
    async with opened(None, directory=tmp_path) as store:
        assert await store.restore_checkpoint(SHARD) == Checkpoint()


@pytest.mark.parametrize("name", ["no/such.db", "primary.db"])
async def test_a_database_that_cannot_be_attached_is_nothing_to_record(
    tmp_path: Path, name: str
) -> None:
    """And the database that is open stays locked."""
    recorder = MemoryRecorder(tmp_path / "one")
    async with opened(recorder) as store:
        assert await store.restore_checkpoint(SHARD) == Checkpoint()
        with pytest.raises((apsw.CantOpenError, apsw.BusyError)):
            store.db.execute(f"ATTACH '{name}' AS again")
        store.db.execute(PUT, (1, b"one"))
        await store.start_commit(SHARD, checkpoint_at(1), ())
        program = "import sqlite3, sys; sqlite3.connect(sys.argv[1], 0).execute(sys.argv[2])"
        process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-c",
                program,
                str(tmp_path / "one/primary.db"),
                "SELECT * FROM state",
            ),
            stderr=asyncio.subprocess.PIPE,
        )
        _, text = await process.communicate()
        assert b"database is locked" in text
