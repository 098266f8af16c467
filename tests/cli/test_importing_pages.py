"""Import of databases of Gazette's own SQLite store."""

from __future__ import annotations

import shutil
import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from gazette_aio.cli.app import run
from gazette_aio.cli.shards.page_databases import import_page_database
from gazette_aio.protocol.errors import ConfigurationError, StoreError
from tests.consumer.stores.databases import checkpoint_at
from tests.consumer.stores.memory_recorder import MemoryRecorder, recover
from tests.consumer.stores.sqlite_stores import PUT, SCHEMA, SHARD, opened, value_of

CHECKPOINTS = """
CREATE TABLE gazette_checkpoint (
  rowid INTEGER PRIMARY KEY DEFAULT 0 CHECK (rowid = 0), checkpoint BLOB
);
INSERT INTO gazette_checkpoint (rowid, checkpoint) VALUES (0, '');
"""


def connect(path: Path | str) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None)


def to_pages(source: Path, databases: list[str]) -> None:
    """Replace the database files of a directory by a RocksDB of their pages."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    rocks = Rdict(str(source / "pageDB"), options)
    for name in databases:
        family = rocks.create_column_family(f"/{name}", Options(raw_mode=True))
        data = (source / name).read_bytes()
        page_bytes = int.from_bytes(data[16:18], "big")
        for offset in range(0, len(data), page_bytes):
            family[offset.to_bytes(8, "big")] = data[offset : offset + page_bytes]
        (source / name).write_bytes(b"")
    rocks.close()


def files_of(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def change(source: Path, pages: dict[int, bytes], families: tuple[str, ...] = ()) -> None:
    """Write pages of the primary database, and add databases."""
    names = {"/primary.db": Options(raw_mode=True)}
    rocks = Rdict(str(source / "pageDB"), Options(raw_mode=True), column_families=names)
    family = rocks.get_column_family("/primary.db")
    for offset, page in pages.items():
        family[offset.to_bytes(8, "big")] = page
    for name in families:
        rocks.create_column_family(name, Options(raw_mode=True))
    rocks.close()


@pytest.fixture
def in_wal(tmp_path: Path) -> Path:
    """A store whose latest commits are in its write-ahead log."""
    live, source = tmp_path / "live", tmp_path / "source"
    live.mkdir()
    with closing(connect(live / "primary.db")) as db:
        db.execute("PRAGMA journal_mode=WAL").fetchall()
        db.executescript(f"{CHECKPOINTS} {SCHEMA};")
        db.executemany(PUT, [(key, b"early" * 300) for key in range(30)])
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        db.execute("BEGIN")
        db.execute(PUT, (7, b"late"))
        content = checkpoint_at(5).SerializeToString()
        db.execute("UPDATE gazette_checkpoint SET checkpoint = ?", (content,))
        db.execute("COMMIT")
        shutil.copytree(live, source)
    to_pages(source, ["primary.db"])
    return source


async def test_commits_of_the_write_ahead_log(
    tmp_path: Path, in_wal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files_of(in_wal)
    directory = tmp_path / "one"
    assert run(["shards", "import-pages", str(in_wal), str(directory)]) == 0
    assert capsys.readouterr().out == f"imported {directory / 'primary.db'}\n"
    assert files_of(directory) == ["primary.db"]
    assert files_of(in_wal) == before
    recorder = MemoryRecorder(directory)
    async with opened(recorder) as store:
        assert await store.restore_checkpoint(SHARD) == checkpoint_at(5)
        assert value_of(store, 7) == b"late"
        store.db.execute(PUT, (8, b"ours"))
        await store.start_commit(SHARD, checkpoint_at(6), ())
        content = recorder.content
    # The log has all of it, and not only what was added.
    fsm, _ = recover(tmp_path / "two", content)
    async with opened(MemoryRecorder(tmp_path / "two", fsm, content, author=2)) as store:
        assert await store.restore_checkpoint(SHARD) == checkpoint_at(6)
        assert [value_of(store, key) for key in (7, 8)] == [b"late", b"ours"]
        assert store.db.execute("SELECT count(*) FROM state").fetchone() == (30,)


def hot_journal(before: bytes, super_journal: bytes) -> bytes:
    """Return a rollback journal of all pages of a database."""
    magic = bytes.fromhex("d9d505f920a163d7")
    count = len(before) // 4096
    journal = (magic + struct.pack(">IIIII", count, 0, count, 512, 4096)).ljust(512, b"\0")
    for number in range(count):
        page = before[number * 4096 :][:4096]
        journal += struct.pack(">I", number + 1) + page
        journal += struct.pack(">I", sum(page[4096 - 200 : 0 : -200]))
    lock_page = (1 << 30) // 4096 + 1
    journal += struct.pack(">I", lock_page) + super_journal
    return journal + struct.pack(">II", len(super_journal), sum(super_journal)) + magic


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_transaction_of_two_databases(tmp_path: Path, is_committed: bool) -> None:
    """A super-journal that is there rolls both back; without it, both are committed."""
    source = tmp_path / "source"
    source.mkdir()
    names = ["other.db", "primary.db"]
    for name in names:
        with closing(connect(source / name)) as db:
            db.executescript("CREATE TABLE state (value); INSERT INTO state VALUES ('old')")
            before = (source / name).read_bytes()
            db.execute("UPDATE state SET value = 'new'")
        (source / f"{name}-journal").write_bytes(hot_journal(before, b"primary.db-mj1"))
    if not is_committed:
        journals = "".join(f"{name}-journal\0" for name in names)
        (source / "primary.db-mj1").write_text(journals)
    to_pages(source, names)
    target = tmp_path / "target"
    paths = import_page_database(source, target)
    assert paths == tuple(target / name for name in names)
    values: list[tuple[str]] = []
    for path in paths:
        with closing(connect(path)) as db:
            values += db.execute("SELECT value FROM state").fetchall()
    assert values == [("new" if is_committed else "old",)] * 2


def test_what_cannot_be_imported(tmp_path: Path, in_wal: Path) -> None:
    with pytest.raises(ConfigurationError, match="has no pageDB"):
        import_page_database(tmp_path, tmp_path / "target")
    with pytest.raises(ConfigurationError, match="isn't empty"):
        import_page_database(in_wal, in_wal)
    change(in_wal, {offset: bytes(4096) for offset in range(4096, 9 * 4096, 4096)})
    with pytest.raises(StoreError, match="importing pageDB"):
        import_page_database(in_wal, tmp_path / "target")
    assert files_of(tmp_path / "target") == []
    change(in_wal, {}, ("/../primary.db",))
    with pytest.raises(StoreError, match="isn't the name of a database"):
        import_page_database(in_wal, tmp_path / "target")
    assert files_of(tmp_path / "target") == []
