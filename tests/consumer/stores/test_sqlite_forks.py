"""SQLite stores whose database was recovered from another log than the one it's recorded in."""

from __future__ import annotations

from pathlib import Path

import pytest

from gazette_aio.consumer.stores.sqlite import databases
from gazette_aio.protocol.recoverylog import FSMHints
from tests.consumer.stores.databases import checkpoint_at
from tests.consumer.stores.memory_recorder import LOG, MemoryRecorder, recover
from tests.consumer.stores.sqlite_stores import PUT, SHARD, opened

FORKED = "forked/log"
COMMITS = 60


async def test_a_fork_comes_to_need_nothing_of_the_other_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "SLACK_BYTES", 64 << 10)
    rows = [(key, bytes(100)) for key in range(1000)]
    recorder = MemoryRecorder(tmp_path / "one", log=FORKED)
    async with opened(recorder) as store:
        await store.restore_checkpoint(SHARD)
        store.db.executemany(PUT, rows)
        await store.start_commit(SHARD, checkpoint_at(1), ())
        content = recorder.content
    fsm, _ = recover(tmp_path / "two", content, FSMHints(log=FORKED))
    fork = MemoryRecorder(tmp_path / "two", fsm, author=2)
    async with opened(fork) as store:
        assert await store.restore_checkpoint(SHARD) == checkpoint_at(1)
        for number in range(2, COMMITS):
            store.db.executemany(PUT, rows)
            await store.start_commit(SHARD, checkpoint_at(number), ())
        hints = fork.hints()
    assert {segment.log for node in hints.live_nodes for segment in node.segments} == {""}
    assert hints.log == LOG
    assert min(node.fnode for node in hints.live_nodes) > 1
    fsm, _ = recover(tmp_path / "three", fork.content, hints)
    again = MemoryRecorder(tmp_path / "three", fsm, fork.content, author=3)
    async with opened(again) as store:
        assert await store.restore_checkpoint(SHARD) == checkpoint_at(COMMITS - 1)
