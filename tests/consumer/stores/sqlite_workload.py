"""Random transactions of an SQLite store, and checks of what was recovered of them."""

from __future__ import annotations

import random
from bisect import bisect_right
from typing import Any

from gazette_aio.protocol.consumer import Checkpoint
from tests.consumer.stores.databases import checkpoint_at
from tests.consumer.stores.memory_recorder import MemoryRecorder
from tests.consumer.stores.sqlite_stores import PUT, SHARD, SQLiteStore

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
