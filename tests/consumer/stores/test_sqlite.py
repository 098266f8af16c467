"""SQLiteStore, and what is recorded of its database."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from bisect import bisect_right
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gazette_aio.client.appends.futures import AsyncOperation
from gazette_aio.consumer.stores import SQLiteStore
from gazette_aio.consumer.stores.sqlite import databases
from gazette_aio.protocol.consumer import Checkpoint
from gazette_aio.protocol.errors import DependencyError, StoreError, UsageError
from gazette_aio.protocol.recoverylog import FSMHints
from tests import extent
from tests.consumer.stores.databases import checkpoint_at
from tests.consumer.stores.memory_recorder import LOG, MemoryRecorder, played_bytes, recover
from tests.consumer.stores.sqlite_stores import (
    GET,
    PUT,
    SHARD,
    opened,
    recorded_ahead,
    value_of,
)

RECOVERIES = extent.of(25, 500)
THOUSANDS = extent.of(150, 1000)
"""Of updates."""


State = dict[int, bytes]


class Workload:
    """Random transactions, and the state after each."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.states: list[State] = [{}]
        self.ends: list[int] = []
        """Ends of commits in the log."""
        self.pragmas = {
            "page_size": self.random.choice([512, 1024, 4096]),
            "cache_size": 8,  # Pages of open transactions are spilled to the write-ahead log.
            "auto_vacuum": self.random.choice(["NONE", "FULL"]),
        }

    async def run(self, store: SQLiteStore, recorder: MemoryRecorder, commits: int) -> None:
        state = dict(self.states[-1])
        for _ in range(commits):
            self._change(store.db, state)
            if self.random.random() < 0.1:
                assert await store.restore_checkpoint(SHARD) == self._checkpoint()
                state = dict(self.states[-1])
                self._change(store.db, state)
            self.states.append(dict(state))
            await store.start_commit(SHARD, self._checkpoint(), ())
            self.ends.append(len(recorder.content))

    def _checkpoint(self) -> Checkpoint:
        number = len(self.states) - 1
        return checkpoint_at(number) if number else Checkpoint()

    def _change(self, db: Any, state: State) -> None:
        for _ in range(self.random.randrange(1, 40)):
            key = self.random.randrange(400)
            if self.random.random() < 0.3:
                db.execute("DELETE FROM state WHERE key = ?", (key,))
                state.pop(key, None)
            else:
                state[key] = self.random.randbytes(self.random.randrange(10, 2000))
                db.execute(PUT, (key, state[key]))
        if self.random.random() < 0.03:
            db.execute("DELETE FROM state WHERE key >= 100")
            for key in [key for key in state if key >= 100]:
                del state[key]

    async def check(self, store: SQLiteStore, cut: int) -> None:
        """Check that a store has the state of the latest commit before a cut, or one that had begun."""
        checkpoint = await store.restore_checkpoint(SHARD)
        (number,) = [source.read_through for source in checkpoint.sources.values()] or [0]
        complete = bisect_right(self.ends, cut)
        assert number in (complete, complete + 1)
        assert store.db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert dict(store.db.execute("SELECT key, value FROM state")) == self.states[number]


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
        assert not commit.done()
        appended.resolve()
        await commit
        await following
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


async def test_the_connection_is_nobodys_while_a_commit_is_written(tmp_path: Path) -> None:
    """Waiting for it would block the event loop, which the recorder may wait for."""
    async with opened(MemoryRecorder(tmp_path / "db")) as store:
        await store.restore_checkpoint(SHARD)
        store.db.execute(PUT, (1, b"one"))
        commit = store.start_commit(SHARD, checkpoint_at(1), ())
        with pytest.raises(UsageError, match=r"await transaction\(\)"):
            _ = store.db
        assert (await store.transaction()) is store.db
        await commit


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


# Recording


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have little written before the database is recorded anew."""
    monkeypatch.setattr(databases, "SLACK_BYTES", 64 << 10)
    monkeypatch.setattr(databases, "COPIED_BYTES", 8 << 10)
    monkeypatch.setattr(databases, "PART_BYTES", 24 << 10)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", extent.seeds(2, 2))
async def test_each_part_of_a_log_is_a_database(tmp_path: Path, seed: int) -> None:
    recorder = MemoryRecorder(tmp_path / "one")
    workload = Workload(seed)
    async with opened(recorder, pragmas=workload.pragmas) as store:
        await store.restore_checkpoint(SHARD)
        await workload.run(store, recorder, 120)
        content = recorder.content
    # The opening of a new database is one append.
    opening = recorder.appends[1]
    cuts = [0, opening, len(content)]
    cuts += workload.random.choices(
        [cut for cut in recorder.appends if cut > opening], k=RECOVERIES - 3
    )
    for cut in cuts:
        fsm, _ = recover(tmp_path / "two", content[:cut])
        again = MemoryRecorder(tmp_path / "two", fsm, content[:cut], author=2)
        async with opened(again, pragmas=workload.pragmas) as store:
            await workload.check(store, cut)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
async def test_a_database_that_moves_again_and_again(tmp_path: Path) -> None:
    """Each owner continues the log, and what it records is enough for the next."""
    workload = Workload(extent.seed())
    content = b""
    hints = None
    for owner in range(1, 9):
        directory = tmp_path / str(owner)
        fsm, _ = recover(directory, content, hints)
        recorder = MemoryRecorder(directory, fsm, content, author=owner)
        async with opened(recorder, pragmas=workload.pragmas) as store:
            await workload.check(store, len(content))
            await workload.run(store, recorder, 25)
            content, hints = recorder.content, recorder.hints()
        assert not directory.exists()
        assert {"/primary.db"} <= set(recorder.links()) <= {
            "/primary.db", "/primary.db.gazette-copy",
        }  # fmt: skip


async def test_an_owner_that_changes_little_passes_on_all_it_recovered(tmp_path: Path) -> None:
    content = b""
    for owner in range(1, 5):
        directory = tmp_path / str(owner)
        fsm, _ = recover(directory, content)
        recorder = MemoryRecorder(directory, fsm, content, author=owner)
        async with opened(recorder) as store:
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
async def test_a_copy_that_was_not_finished_is_removed(tmp_path: Path) -> None:
    recorder = MemoryRecorder(tmp_path / "one")
    workload = Workload(3)
    async with opened(recorder, pragmas=workload.pragmas) as store:
        await store.restore_checkpoint(SHARD)
        while "/primary.db.gazette-copy" not in recorder.links():
            await workload.run(store, recorder, 1)
        content, hints = recorder.content, recorder.hints()
    fsm, _ = recover(tmp_path / "two", content, hints)
    assert (tmp_path / "two/primary.db.gazette-copy").exists()
    again = MemoryRecorder(tmp_path / "two", fsm, content, author=2)
    async with opened(again, pragmas=workload.pragmas) as store:
        await workload.check(store, len(content))
        assert set(again.links()) == {"/primary.db"}
        assert not (tmp_path / "two/primary.db.gazette-copy").exists()


async def test_little_is_recorded_of_an_opening(tmp_path: Path) -> None:
    recorder = MemoryRecorder(tmp_path / "one")
    async with opened(recorder) as store:
        await store.restore_checkpoint(SHARD)
        store.db.execute(PUT, (1, bytes(5 << 20)))
        await store.start_commit(SHARD, checkpoint_at(1), ())
        await store.start_commit(SHARD, checkpoint_at(2), ())
        content = recorder.content
    fsm, _ = recover(tmp_path / "two", content)
    again = MemoryRecorder(tmp_path / "two", fsm, content, author=2)
    async with opened(again) as store:
        assert await store.restore_checkpoint(SHARD) == checkpoint_at(2)
        assert len(again.content) - len(content) < 64 << 10
        assert value_of(store, 1) == bytes(5 << 20)


@pytest.mark.slow
async def test_played_bytes_are_bounded_as_documented(tmp_path: Path) -> None:
    """With real lengths: at any time, they're three times the database, and 16 MiB, at most."""
    recorder = MemoryRecorder(tmp_path / "one")
    chance = random.Random(extent.seed())
    async with opened(recorder) as store:
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
    async with opened(again) as store:
        assert await store.restore_checkpoint(SHARD) == checkpoint_at(THOUSANDS)
        assert store.db.execute("SELECT count(*) FROM state").fetchone() == (1500,)


async def test_a_log_of_a_former_release_is_continued(tmp_path: Path) -> None:
    """Its database writes ahead, and its latest commits are in that log only."""
    content = b""
    for owner in range(1, 4):
        directory = tmp_path / str(owner)
        fsm, _ = recover(directory, content)
        recorder = MemoryRecorder(directory, fsm, content, author=owner)
        if owner == 1:
            recorded_ahead(recorder, b"one")
        else:
            async with opened(recorder) as store:
                assert await store.restore_checkpoint(SHARD) == checkpoint_at(owner - 1)
                assert set(recorder.links()) == {"/primary.db"}
                assert [value_of(store, key) for key in (1, owner)] == [b"one", None]
                store.db.execute(PUT, (owner, b"more"))
                await store.start_commit(SHARD, checkpoint_at(owner), ())
        content = recorder.content
    recover(tmp_path / "plain", content)
    with closing(sqlite3.connect(tmp_path / "plain/primary.db")) as plain:
        assert plain.execute("SELECT * FROM state").fetchall() == [
            (1, b"one"), (2, b"more"), (3, b"more"),
        ]  # fmt: skip


async def test_a_fork_comes_to_need_nothing_of_the_other_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "SLACK_BYTES", 64 << 10)
    rows = [(key, bytes(100)) for key in range(1000)]
    recorder = MemoryRecorder(tmp_path / "one", log="forked/log")
    async with opened(recorder) as store:
        await store.restore_checkpoint(SHARD)
        store.db.executemany(PUT, rows)
        await store.start_commit(SHARD, checkpoint_at(1), ())
        content = recorder.content
    fsm, _ = recover(tmp_path / "two", content, FSMHints(log="forked/log"))
    fork = MemoryRecorder(tmp_path / "two", fsm, author=2)
    async with opened(fork) as store:
        assert await store.restore_checkpoint(SHARD) == checkpoint_at(1)
        for number in range(2, 60):
            store.db.executemany(PUT, rows)
            await store.start_commit(SHARD, checkpoint_at(number), ())
        hints = fork.hints()
    assert {segment.log for node in hints.live_nodes for segment in node.segments} == {""}
    assert hints.log == LOG
    assert min(node.fnode for node in hints.live_nodes) > 1
    fsm, _ = recover(tmp_path / "three", fork.content, hints)
    again = MemoryRecorder(tmp_path / "three", fsm, fork.content, author=3)
    async with opened(again) as store:
        assert await store.restore_checkpoint(SHARD) == checkpoint_at(59)
