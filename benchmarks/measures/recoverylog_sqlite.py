"""SQLite in recovery logs."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw

from benchmarks.harness import Subject, measure
from benchmarks.measures.events import served_journals
from gazette_aio.consumer.recoverylog import FSM, Author, Recorder
from gazette_aio.consumer.stores.sqlite.vfs import RecordingVFS
from gazette_aio.protocol.recoverylog import FSMHints

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

LOG = "bench/recoverylog/sqlite"
ROWS = 100_000
"""Rows of a round."""
KEYS = 100_000
VALUE = b"v" * 100
SCHEMA = "CREATE TABLE state (key INTEGER PRIMARY KEY, value BLOB)"
PUT = "INSERT OR REPLACE INTO state (key, value) VALUES (?, ?)"

Rows = list[tuple[int, bytes]]


def inserted(size: int) -> Iterator[Rows]:
    """Yield transactions of further rows."""
    begin = 0
    while True:
        yield [(key, VALUE) for key in range(begin, begin + size)]
        begin += size


def updated(size: int) -> Iterator[Rows]:
    """Yield transactions of random rows."""
    keys = random.Random(1)
    while True:
        yield [(keys.randrange(KEYS), VALUE) for _ in range(size)]


def plain(directory: Path) -> sqlite3.Connection:
    """Open a database in write-ahead mode, which doesn't wait for the disk."""
    db = sqlite3.connect(directory / "plain.db", isolation_level=None)
    for pragma in ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=OFF"):
        db.execute(f"PRAGMA {pragma}").fetchall()
    db.execute(SCHEMA)
    return db


def recorded(vfs: RecordingVFS) -> apsw.Connection:
    """Open a database as SQLiteStore does."""
    db = apsw.Connection("primary.db", vfs=vfs.name)
    for pragma in ("locking_mode=EXCLUSIVE", "journal_mode=MEMORY", "synchronous=OFF"):
        db.execute(f"PRAGMA {pragma}").fetchall()
    db.execute(SCHEMA)
    return db


def commit(db: Any, rows: Rows) -> None:
    """Commit rows in a transaction."""
    db.execute("BEGIN")
    db.executemany(PUT, rows)
    db.execute("COMMIT")


async def recording(size: int, *, is_random: bool) -> AsyncGenerator[Subject]:
    async with served_journals(LOG) as client:
        with tempfile.TemporaryDirectory() as temporary:
            directory = Path(temporary) / "recorded"
            directory.mkdir()
            other = plain(Path(temporary))
            fsm = FSM(FSMHints(log=LOG))
            async with await Recorder.open(client, LOG, fsm, Author(1), str(directory)) as recorder:
                vfs = RecordingVFS(directory, recorder)
                db = recorded(vfs)
                # Both take turns within a round, so that what else the machine does is common.
                seconds = {"figure": 0.0, "yardstick": 0.0}
                rows = updated(size) if is_random else inserted(size)

                async def figure() -> float:
                    seconds.update(figure=0.0, yardstick=0.0)
                    for _ in range(0, ROWS, size):
                        some = next(rows)
                        begun = time.perf_counter()
                        with recorder.atomic():
                            commit(db, some)
                            vfs.record(recorder)
                        between = time.perf_counter()
                        commit(other, some)
                        seconds["figure"] += between - begun
                        seconds["yardstick"] += time.perf_counter() - between
                        await asyncio.sleep(0)
                    await recorder.barrier()
                    return ROWS / seconds["figure"]

                async def yardstick() -> float:
                    return ROWS / seconds["yardstick"]

                yield Subject(figure, yardstick)
                db.close()
                vfs.unregister()
            other.close()


for suffix, rows, is_random, goal in (
    ("", 100, False, 0.5),
    (".5000", 5000, False, 0.7),
    (".random", 100, True, 0.2),
):
    measure(
        f"recoverylog.sqlite{suffix}",
        goal=goal,
        unit="/s",
        about=f"{'updates of random rows' if is_random else 'inserts'}, {rows} in a transaction, "
        "committed and recorded, whose appends follow, against the same without a recorder",
    )(partial(recording, rows, is_random=is_random))
