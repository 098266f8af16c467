"""SQLiteStore: several databases, and what is recorded of them."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from gazette_aio.consumer.stores.sqlite import databases
from gazette_aio.consumer.stores.sqlite.databases import merged
from gazette_aio.protocol.errors import StoreError
from tests import extent
from tests.consumer.recoverylog.player.logs import is_there
from tests.consumer.stores.databases import checkpoint_at
from tests.consumer.stores.memory_recorder import MemoryRecorder, recover
from tests.consumer.stores.sqlite_stores import GET, PUT, SCHEMA, SHARD, opened

THREE = f"""
{SCHEMA};
ATTACH 'second.db' AS second;
ATTACH 'third.db' AS "a third";
CREATE TABLE IF NOT EXISTS second.second (key INTEGER PRIMARY KEY, value BLOB);
CREATE TABLE IF NOT EXISTS "a third".third (key INTEGER PRIMARY KEY, value BLOB);
"""
TABLES = ("state", "second", "third")


async def test_transactions_are_of_all_databases(tmp_path: Path) -> None:
    """Pages of open transactions are written before the commit, as the cache is small."""
    recorder = MemoryRecorder(tmp_path / "one")
    chance = random.Random(extent.seed())
    async with opened(recorder, THREE, pragmas={"cache_size": 4}) as store:
        await store.restore_checkpoint(SHARD)
        for number in range(1, 13):
            for table in TABLES:
                keys = [chance.randrange(60) for _ in range(30)]
                rows = [(key, b"%d" % number + bytes(chance.randrange(2000))) for key in [0, *keys]]
                store.db.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", rows)
            if not number % 4:
                await store.restore_checkpoint(SHARD)
                store.db.execute("DELETE FROM second WHERE key > 20")
            await store.start_commit(SHARD, checkpoint_at(number), ())
        content, appends = recorder.content, recorder.appends
    for cut in appends[1:]:
        fsm, _ = recover(tmp_path / "two", content[:cut])
        again = MemoryRecorder(tmp_path / "two", fsm, content[:cut], author=2)
        async with opened(again, THREE) as store:
            checkpoint = await store.restore_checkpoint(SHARD)
            (number,) = [each.read_through for each in checkpoint.sources.values()] or [0]
            firsts = set[tuple[bytes, ...]]()
            for table in TABLES:
                rows = store.db.execute(f"SELECT value FROM {table} WHERE key = 0").fetchall()
                firsts.add(tuple(value.rstrip(b"\0") for (value,) in rows))
            assert store.db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            latest = number - (number > 0 and not number % 4)
            assert firsts == {(b"%d" % latest,) if latest else ()}


@pytest.mark.slow
@pytest.mark.crash
async def test_kills_amid_commits_of_several_databases(tmp_path: Path) -> None:
    """Without a recorder, at calls that SQLite makes of the disk, also amid recoveries.

    The directory is moved each time.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.consumer.stores.killed", str(tmp_path), str(extent.seed())),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    outcomes = json.loads(out)
    assert outcomes["done"]
    assert outcomes["undone"]


async def test_a_copy_of_the_database_that_the_schema_makes_is_recorded(tmp_path: Path) -> None:
    recorder = MemoryRecorder(tmp_path / "one")
    schema = f"{SCHEMA}; INSERT OR IGNORE INTO state VALUES (1, 'one'); VACUUM INTO 'copy.db';"
    async with opened(recorder, schema) as store:
        await store.restore_checkpoint(SHARD)
        assert set(recorder.links()) == {"/primary.db", "/copy.db"}
    recover(tmp_path / "two", recorder.content)
    with sqlite3.connect(tmp_path / "two/copy.db") as plain:
        assert plain.execute(GET, (1,)).fetchall() == [("one",)]
    plain.close()


async def test_databases_of_other_kinds(tmp_path: Path) -> None:
    """One in memory, one of this connection, and one that wrote ahead before."""
    recorder = MemoryRecorder(tmp_path / "one")
    (tmp_path / "one").mkdir()
    with sqlite3.connect(tmp_path / "one/ahead.db") as plain:
        plain.execute("PRAGMA journal_mode=WAL")
        plain.execute("CREATE TABLE ahead (key)")
    plain.close()
    schema = (
        f"{SCHEMA}; ATTACH ':memory:' AS memory; ATTACH '' AS own; ATTACH 'ahead.db' AS ahead;"
        "CREATE TABLE memory.m (key); CREATE TABLE own.o (key); CREATE TEMP TABLE t (key)"
    )
    async with opened(recorder, schema) as store:
        await store.restore_checkpoint(SHARD)
        for table in ("m", "o", "t", "ahead"):
            store.db.execute(f"INSERT INTO {table} VALUES (1)")
        await store.start_commit(SHARD, checkpoint_at(1), ())
        assert set(recorder.links()) == {"/primary.db", "/ahead.db"}
    recover(tmp_path / "two", recorder.content)
    with sqlite3.connect(tmp_path / "two/ahead.db") as plain:
        assert plain.execute("PRAGMA journal_mode").fetchall() == [("delete",)]
        assert plain.execute("SELECT key FROM ahead").fetchall() == [(1,)]
    plain.close()


async def test_a_hook_attaches_no_database_that_writes_ahead(tmp_path: Path) -> None:
    recorder = MemoryRecorder(tmp_path / "one")
    async with opened(recorder) as store:
        await store.restore_checkpoint(SHARD)
        with sqlite3.connect(tmp_path / "one/ahead.db") as plain:
            plain.execute("PRAGMA journal_mode=WAL")
        plain.close()
        with pytest.raises(apsw.CantOpenError, match="only be attached by the schema"):
            store.db.execute("ATTACH 'ahead.db' AS ahead")
        store.db.execute(PUT, (1, b"one"))
        await store.start_commit(SHARD, checkpoint_at(1), ())


async def test_paths_of_directories_and_of_databases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative ones, also of a directory that the process leaves, and absolute ones below it."""
    (tmp_path / "elsewhere").mkdir()
    for directory in ("one", "elsewhere/../two"):
        monkeypatch.chdir(tmp_path)
        schema = f"{SCHEMA}; ATTACH '{tmp_path / directory[-3:]}/other.db' AS other"
        async with opened(directory=directory, schema=schema) as store:
            await store.restore_checkpoint(SHARD)
            monkeypatch.chdir(tmp_path / "elsewhere")
            store.db.execute(PUT, (1, b"one"))
            store.db.execute("CREATE TABLE other.t (key)")
            await store.start_commit(SHARD, checkpoint_at(1), ())
        for name in ("primary.db", "other.db"):
            assert is_there(tmp_path / directory[-3:] / name)


async def test_databases_are_not_taken_for_copies_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither when another one is recorded anew, nor by a member that takes over."""
    monkeypatch.setattr(databases, "SLACK_BYTES", 16 << 10)
    schema = f"""
    {SCHEMA};
    ATTACH 'primary.db.tmp' AS second;
    CREATE TABLE IF NOT EXISTS second.second (key INTEGER PRIMARY KEY, value BLOB);
    """
    content, commits = b"", 30
    for owner in range(1, 4):
        fsm, _ = recover(tmp_path / str(owner), content)
        recorder = MemoryRecorder(tmp_path / str(owner), fsm, content, author=owner)
        async with opened(recorder, schema) as store:
            await store.restore_checkpoint(SHARD)
            for table in ("state", "second"):
                ((count,),) = await store.execute(f"SELECT count(*) FROM {table}")
                assert count == (owner - 1) * commits
            first = recorder.links()["/primary.db"]
            for number in range(1, commits + 1):
                row = (owner * commits + number, bytes(1000))
                store.db.execute("INSERT INTO state VALUES (?, ?)", row)
                store.db.execute("INSERT INTO second VALUES (?, ?)", row)
                await store.start_commit(SHARD, checkpoint_at(number), ())
            assert recorder.links()["/primary.db"] != first
            content = recorder.content


async def test_names_of_copies_are_reserved(tmp_path: Path) -> None:
    schema = f"{SCHEMA}; ATTACH 'primary.db{databases.COPY_SUFFIX}' AS copy"
    async with opened(MemoryRecorder(tmp_path / "one"), schema) as store:
        with pytest.raises(StoreError, match="has a reserved suffix"):
            await store.open()


@pytest.mark.parametrize("name", ["../out.db", "{}/out.db", "a/../../out.db", "./../out.db"])
async def test_databases_outside_of_the_directory_are_refused(tmp_path: Path, name: str) -> None:
    schema = f"{SCHEMA}; ATTACH '{name.format(tmp_path)}' AS out; CREATE TABLE out.t (key)"
    async with opened(MemoryRecorder(tmp_path / "one"), schema) as store:
        with pytest.raises(StoreError, match="isn't below the directory of the store"):
            await store.open()
    assert not (tmp_path / "out.db").exists()


async def test_schemas_that_fail(tmp_path: Path) -> None:
    for number, (schema, text) in enumerate([
        ("BEGIN; CREATE TABLE t (key)", "leaves a transaction open"),
        ("CREATE nothing", "opening the database: .*syntax error"),
    ]):  # fmt: skip
        async with opened(MemoryRecorder(tmp_path / str(number)), schema) as store:
            with pytest.raises(StoreError, match=text):
                await store.open()
            with pytest.raises(StoreError, match="can't be used any longer"):
                await store.open()


async def test_nothing_is_recorded_of_a_transaction_without_changes(tmp_path: Path) -> None:
    recorder = MemoryRecorder(tmp_path / "db")
    async with opened(recorder) as store:
        await store.restore_checkpoint(SHARD)
        store.db.execute(PUT, (1, bytes(1 << 20)))
        await store.start_commit(SHARD, checkpoint_at(1), ())
        before = len(recorder.content)
        await store.start_commit(SHARD, checkpoint_at(2), ())
        assert len(recorder.content) - before < 16 << 10


def test_ranges_that_touch_are_one() -> None:
    assert list(merged([], 10)) == []
    assert list(merged([(4, 6), (0, 2), (2, 3), (5, 8)], 10)) == [(0, 3), (4, 8)]
    assert list(merged([(0, 4), (4, 9)], 6)) == [(0, 6)]
    assert list(merged([(0, 4), (6, 9), (12, 13)], 6)) == [(0, 4)]
    assert list(merged([(2, 3), (2, 9), (9, 9)], 100)) == [(2, 9)]


def test_without_apsw_an_error_says_what_to_install() -> None:
    program = """
import sys
sys.modules["apsw"] = None
try:
    from gazette_aio.consumer import SQLiteStore
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"SQLiteStore needs apsw: pip install 'gazette-aio[consumer]'\n"
