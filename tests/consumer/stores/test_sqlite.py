"""SQLiteStore, and what is recorded of its database."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import struct
from pathlib import Path

import pytest

from gazette_aio.aio.threads import in_thread
from gazette_aio.client.appends.futures import AsyncOperation
from gazette_aio.consumer.stores import SQLiteStore
from gazette_aio.consumer.stores.sqlite import capture, databases
from gazette_aio.consumer.stores.sqlite.wal import find_frames, parse_header
from gazette_aio.protocol.consumer import Checkpoint
from gazette_aio.protocol.errors import DependencyError, StoreError
from tests import extent
from tests.consumer.stores.databases import checkpoint_at
from tests.consumer.stores.memory_recorder import MemoryRecorder, played_bytes, recover
from tests.consumer.stores.sqlite_stores import GET, KINDS, PUT, SHARD, AnyKind, opened, value_of
from tests.consumer.stores.sqlite_workload import Workload

RECOVERIES = extent.of(25, 500)
COMMITS = extent.of(200, 2400)
"""Of some 430 updates each."""
THOUSANDS = extent.of(150, 1000)
"""Of updates."""


# Of this machine


async def test_a_directory_of_this_machine(tmp_path: Path) -> None:
    async with opened(directory=tmp_path / "db") as store:
        assert await store.restore_checkpoint(SHARD) == Checkpoint()
        store.db.execute(PUT, (1, b"one"))
        appended = AsyncOperation()
        commit = store.start_commit(SHARD, checkpoint_at(1), [appended])
        with pytest.raises(RuntimeError, match=r"await transaction\(\)"):
            value_of(store, 1)
        following = asyncio.create_task(store.execute(PUT, (2, b"two")))
        in_a_thread = asyncio.create_task(in_thread(value_of, store, 1))
        assert not commit.done()
        appended.resolve()
        await commit
        await following
        assert await in_a_thread == b"one"
        db = await store.transaction()
        assert db.execute(GET, (2,)).fetchone() == (b"two",)
        # It's rolled back by restoring.
        assert await store.restore_checkpoint(SHARD) == checkpoint_at(1)
        assert value_of(store, 2) is None
    async with opened(directory=tmp_path / "db") as store:
        assert await store.restore_checkpoint(SHARD) == checkpoint_at(1)
        assert await store.execute("SELECT key, value FROM state") == [(1, b"one")]
        await store.execute_many(PUT, [(number, b"many") for number in range(10)])
        assert await store.run(lambda db: db.execute("SELECT count(*) FROM state").fetchone()) == (
            10,
        )


async def test_nothing_works_after_the_end(tmp_path: Path) -> None:
    store = SQLiteStore(None, directory=tmp_path / "db")
    await store.restore_checkpoint(SHARD)
    await store.destroy()
    await store.destroy()
    for call in (store.open, store.transaction, lambda: store.execute("SELECT 1")):
        with pytest.raises(StoreError, match="the store was destroyed"):
            await call()
    with pytest.raises(StoreError, match="the store was destroyed"):
        await store.start_commit(SHARD, checkpoint_at(1), ())


async def test_only_one_process_has_it_open(tmp_path: Path) -> None:
    async with opened(directory=tmp_path / "db") as store:
        await store.open()
        async with opened(directory=tmp_path / "db") as other:
            with pytest.raises(StoreError, match="opening the database: database is locked"):
                await other.restore_checkpoint(SHARD)


async def test_a_failed_dependency_rolls_back(tmp_path: Path) -> None:
    async with opened(directory=tmp_path / "db") as store:
        await store.restore_checkpoint(SHARD)
        store.db.execute(PUT, (1, b"one"))
        failing = AsyncOperation()
        commit = store.start_commit(SHARD, checkpoint_at(1), [failing])
        failing.resolve(OSError("no space"))
        with pytest.raises(DependencyError):
            await commit
        with pytest.raises(StoreError, match="dependency failed: no space"):
            await store.restore_checkpoint(SHARD)
        with pytest.raises(StoreError, match="dependency failed: no space"):
            await store.execute("SELECT 1")
    async with opened(directory=tmp_path / "db") as store:
        assert await store.restore_checkpoint(SHARD) == Checkpoint()
        assert value_of(store, 1) is None


# Write-ahead logs


def test_frames_of_a_log() -> None:
    header = parse_header(struct.pack(">IIII8sII", 0x377F0682, 3007000, 512, 0, b"salt" * 2, 1, 2))
    assert (header.page_bytes, header.salts, header.frame_bytes) == (512, b"saltsalt", 536)

    def frame(page: int, size: int = 0, salts: bytes = b"saltsalt") -> bytes:
        return struct.pack(">II8sII", page, size, salts, 0, 0) + bytes(512)

    nothing = frozenset[int]()
    assert find_frames(b"", header) == (0, 0, nothing, nothing, False)
    data = frame(1) + frame(2, 2) + frame(3)
    assert find_frames(data, header) == (3 * 536, 2 * 536, {1, 2}, {3}, False)
    assert find_frames(data[:-1], header) == (2 * 536, 2 * 536, {1, 2}, nothing, False)
    former = frame(4, 4, b"another.")
    assert find_frames(data + former, header) == (3 * 536, 2 * 536, {1, 2}, {3}, True)
    assert find_frames(bytes(536), header) == (0, 0, nothing, nothing, True)


@pytest.mark.parametrize("page_bytes", [0, 256, 513, 1000, 65537, 131072])
def test_headers_that_are_none(page_bytes: int) -> None:
    packed = struct.pack(">IIII8sII", 0x377F0682, 3007000, page_bytes, 0, bytes(8), 1, 2)
    with pytest.raises(StoreError, match="an invalid header"):
        parse_header(packed)
    with pytest.raises(StoreError, match="has no header"):
        parse_header(packed[:31])
    with pytest.raises(StoreError, match="an invalid header"):
        parse_header(bytes(32))


# Recording


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have little written before pages are moved, and the database is recorded anew."""
    monkeypatch.setattr(capture, "WAL_BYTES", 64 << 10)
    monkeypatch.setattr(databases, "SLACK_BYTES", 64 << 10)
    monkeypatch.setattr(databases, "COPIED_BYTES", 8 << 10)
    monkeypatch.setattr(databases, "PART_BYTES", 24 << 10)
    monkeypatch.setattr(capture, "PART_BYTES", 24 << 10)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", extent.seeds(2, 2))
@pytest.mark.parametrize("kind", KINDS)
async def test_each_part_of_a_log_is_a_database(tmp_path: Path, seed: int, kind: AnyKind) -> None:
    recorder = MemoryRecorder(tmp_path / "one")
    workload = Workload(seed)
    async with opened(recorder, kind=kind, pragmas=workload.pragmas) as store:
        await store.restore_checkpoint(SHARD)
        await workload.run(store, recorder, 120)
        content = recorder.content
        # By a VFS, a commit is one append. Elsewhere, each part of it is a database.
        calls = recorder.calls if kind is SQLiteStore else recorder.appends
    # The opening of a new database is one append.
    opening = recorder.appends[1]
    cuts = [0, opening, len(content)]
    cuts += workload.random.choices([cut for cut in calls if cut > opening], k=RECOVERIES - 3)
    for cut in cuts:
        fsm, _ = recover(tmp_path / "two", content[:cut])
        again = MemoryRecorder(tmp_path / "two", fsm, content[:cut], author=2)
        async with opened(again, kind=kind, pragmas=workload.pragmas) as store:
            await workload.check(store, cut)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_database_that_moves_again_and_again(tmp_path: Path, kind: AnyKind) -> None:
    """Each owner continues the log, and what it records is enough for the next."""
    workload = Workload(extent.seed())
    content = b""
    hints = None
    for owner in range(1, 9):
        directory = tmp_path / str(owner)
        fsm, _ = recover(directory, content, hints)
        recorder = MemoryRecorder(directory, fsm, content, author=owner)
        async with opened(recorder, kind=kind, pragmas=workload.pragmas) as store:
            await workload.check(store, len(content))
            await workload.run(store, recorder, 25)
            content, hints = recorder.content, recorder.hints()
        assert not directory.exists()
        assert {"/primary.db"} <= set(recorder.links()) <= {
            "/primary.db", "/primary.db-wal", "/primary.db.gazette-copy",
        }  # fmt: skip


async def test_pages_of_a_transaction_that_was_rolled_back_are_passed_over(tmp_path: Path) -> None:
    recorder = MemoryRecorder(tmp_path / "one")
    wal = tmp_path / "one/primary.db-wal"
    async with opened(recorder, pragmas={"cache_size": 8}) as store:
        await store.restore_checkpoint(SHARD)
        store.db.execute(PUT, (0, bytes(100 << 10)))
        await store.start_commit(SHARD, checkpoint_at(1), ())
        before = wal.stat().st_size
        for key in range(1, 40):
            store.db.execute(PUT, (key, bytes(20 << 10)))
        spilled = wal.stat().st_size
        assert spilled > before + (400 << 10)
        await store.restore_checkpoint(SHARD)
        for number in range(2, 30):
            store.db.execute(PUT, (number, b"%d" % number))
            await store.start_commit(SHARD, checkpoint_at(number), ())
        assert wal.stat().st_size == spilled
        content = recorder.content
    fsm, _ = recover(tmp_path / "two", content)
    again = MemoryRecorder(tmp_path / "two", fsm, content, author=2)
    async with opened(again) as store:
        assert await store.restore_checkpoint(SHARD) == checkpoint_at(29)
        assert [value_of(store, key) for key in (2, 29, 39)] == [b"2", b"29", None]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_owner_that_changes_little_passes_on_all_it_recovered(
    tmp_path: Path, kind: AnyKind
) -> None:
    content = b""
    for owner in range(1, 5):
        directory = tmp_path / str(owner)
        fsm, _ = recover(directory, content)
        recorder = MemoryRecorder(directory, fsm, content, author=owner)
        async with opened(recorder, kind=kind) as store:
            await store.restore_checkpoint(SHARD)
            if owner == 1:
                store.db.executemany(PUT, [(key, bytes(1000)) for key in range(1000)])
            else:
                assert store.db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
                assert store.db.execute("SELECT count(*) FROM state").fetchone() == (1000,)
                store.db.execute(PUT, (owner, b"changed"))
            await store.start_commit(SHARD, checkpoint_at(owner), ())
            content = recorder.content


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_copy_that_was_not_finished_is_removed(tmp_path: Path, kind: AnyKind) -> None:
    recorder = MemoryRecorder(tmp_path / "one")
    workload = Workload(3)
    async with opened(recorder, kind=kind, pragmas=workload.pragmas) as store:
        await store.restore_checkpoint(SHARD)
        while "/primary.db.gazette-copy" not in recorder.links():
            await workload.run(store, recorder, 1)
        content, hints = recorder.content, recorder.hints()
    fsm, _ = recover(tmp_path / "two", content, hints)
    assert (tmp_path / "two/primary.db.gazette-copy").exists()
    again = MemoryRecorder(tmp_path / "two", fsm, content, author=2)
    async with opened(again, kind=kind, pragmas=workload.pragmas) as store:
        await workload.check(store, len(content))
        assert set(again.links()) == {"/primary.db"}
        assert not (tmp_path / "two/primary.db.gazette-copy").exists()


@pytest.mark.parametrize("kind", KINDS)
async def test_little_is_recorded_of_an_opening(tmp_path: Path, kind: AnyKind) -> None:
    recorder = MemoryRecorder(tmp_path / "one")
    async with opened(recorder, kind=kind) as store:
        await store.restore_checkpoint(SHARD)
        store.db.execute(PUT, (1, bytes(5 << 20)))
        await store.start_commit(SHARD, checkpoint_at(1), ())
        await store.start_commit(SHARD, checkpoint_at(2), ())
        content = recorder.content
    fsm, _ = recover(tmp_path / "two", content)
    again = MemoryRecorder(tmp_path / "two", fsm, content, author=2)
    async with opened(again, kind=kind) as store:
        assert await store.restore_checkpoint(SHARD) == checkpoint_at(2)
        assert len(again.content) - len(content) < 64 << 10
        assert value_of(store, 1) == bytes(5 << 20)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kind", KINDS)
async def test_played_bytes_are_bounded(tmp_path: Path, kind: AnyKind) -> None:
    """However many updates of few rows there were, and at any time."""
    recorder = MemoryRecorder(tmp_path / "one")
    most = 0.0
    async with opened(recorder, kind=kind) as store:
        await store.restore_checkpoint(SHARD)
        for number in range(1, COMMITS + 1):
            rows = [(key, b"%d " % number * 20) for key in range(number % 7, 3000, 7)]
            store.db.executemany(PUT, rows)
            await store.start_commit(SHARD, checkpoint_at(number), ())
            played = played_bytes(recorder.hints(), recorder.calls[-1])
            size = (tmp_path / "one/primary.db").stat().st_size
            most = max(most, (played - (128 << 10)) / max(size, 64 << 10))
        content, hints = recorder.content, recorder.hints()
    assert len(content) > 15 * size
    assert most <= 3
    fsm, _ = recover(tmp_path / "two", content, hints)
    again = MemoryRecorder(tmp_path / "two", fsm, content, author=2)
    async with opened(again, kind=kind) as store:
        assert await store.restore_checkpoint(SHARD) == checkpoint_at(COMMITS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_played_bytes_are_bounded_as_documented(tmp_path: Path, kind: AnyKind) -> None:
    """With real lengths: at any time, they're three times the database, and 16 MiB, at most."""
    recorder = MemoryRecorder(tmp_path / "one")
    chance = random.Random(extent.seed())
    async with opened(recorder, kind=kind) as store:
        await store.restore_checkpoint(SHARD)
        for number in range(1, THOUSANDS + 1):
            keys = [chance.randrange(1500) for _ in range(1000)]
            store.db.executemany(PUT, [(key, b"%d " % number * 20) for key in keys])
            await store.start_commit(SHARD, checkpoint_at(number), ())
            played = played_bytes(recorder.hints(), recorder.calls[-1])
            assert played <= 3 * (tmp_path / "one/primary.db").stat().st_size + (16 << 20)
        content, hints = recorder.content, recorder.hints()
    assert len(content) > 16 << 20
    fsm, _ = recover(tmp_path / "two", content, hints)
    again = MemoryRecorder(tmp_path / "two", fsm, content, author=2)
    async with opened(again, kind=kind) as store:
        assert await store.restore_checkpoint(SHARD) == checkpoint_at(THOUSANDS)
        assert store.db.execute("SELECT count(*) FROM state").fetchone() == (1500,)


async def test_pages_stay_in_the_write_ahead_log_while_a_statement_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "WAL_BYTES", 1)
    recorder = MemoryRecorder(tmp_path / "one")
    async with opened(recorder) as store:
        await store.restore_checkpoint(SHARD)
        store.db.executemany(PUT, [(key, b"value") for key in range(10)])
        reading = store.db.execute("SELECT key FROM state")
        assert reading.fetchone() == (0,)
        await store.start_commit(SHARD, checkpoint_at(1), ())
        assert "/primary.db-wal" in recorder.links()
        assert len(reading.fetchall()) == 9
        await store.start_commit(SHARD, checkpoint_at(2), ())
        assert "/primary.db-wal" not in recorder.links()
        content = recorder.content
    recover(tmp_path / "two", content)
    with sqlite3.connect(tmp_path / "two/primary.db") as plain:
        assert plain.execute("SELECT count(*) FROM state").fetchone() == (10,)
    plain.close()
