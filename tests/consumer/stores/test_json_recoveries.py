"""Recoveries of a JSONFileStore from any part of its log."""

from __future__ import annotations

import random
from bisect import bisect_right
from pathlib import Path
from typing import Any

import pytest

from gazette_aio.consumer.stores import JSONFileStore
from gazette_aio.protocol.consumer import Checkpoint
from gazette_aio.protocol.recoverylog import FSMHints
from gazette_aio.testing import StubShard
from tests import extent
from tests.consumer.stores.databases import checkpoint_at
from tests.consumer.stores.memory_recorder import LOG, MemoryRecorder, recover

SHARD = StubShard("a-shard")
RECOVERIES = extent.of(25, 500)
COMMITS = 40

State = dict[str, Any]


class Workload:
    """Random transactions, and what is in the file after each."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.state: State = {}
        self.files = [b""]
        self.ends: list[int] = []
        """Ends of commits in the log."""
        self.hints: list[FSMHints] = []
        """Hints after each commit."""

    async def run(self, store: JSONFileStore[State], recorder: MemoryRecorder) -> None:
        for number in range(1, COMMITS + 1):
            for _ in range(self.random.randrange(1, 20)):
                self._change(store.state)
            await store.start_commit(SHARD, checkpoint_at(number), ())
            self.files.append((store.directory / "state.json").read_bytes())
            self.ends.append(len(recorder.content))
            self.hints.append(recorder.hints())

    def _change(self, state: State) -> None:
        key = f"schlüssel\n{self.random.randrange(50)}"
        choice = self.random.randrange(5)
        if choice == 0:
            state.pop(key, None)
        elif choice == 1:
            state[key] = self.random.randrange(-(1 << 63), 1 << 63)
        elif choice == 2:
            state[key] = {"nested": [None, True, self.random.random()]}
        else:
            state[key] = "é☃𝄞\0 " * self.random.randrange(2000)

    async def check(self, store: JSONFileStore[State], cut: int) -> None:
        """Check that a store has the state of the latest commit before a cut."""
        number = bisect_right(self.ends, cut)
        file = store.directory / "state.json"
        assert (file.read_bytes() if file.exists() else b"") == self.files[number]
        expected = checkpoint_at(number) if number else Checkpoint()
        assert await store.restore_checkpoint(SHARD) == expected
        if number == COMMITS:
            assert store.state == self.state


@pytest.mark.slow
@pytest.mark.parametrize("seed", extent.seeds(2, 2))
async def test_each_part_of_a_log_is_a_state(tmp_path: Path, seed: int) -> None:
    """Whatever hints the recovery begins from, and whoever committed last."""
    fsm, _ = recover(tmp_path / "one", b"")
    recorder = MemoryRecorder(tmp_path / "one", fsm)
    workload = Workload(seed)
    store = JSONFileStore(recorder, State())
    await store.restore_checkpoint(SHARD)
    await workload.run(store, recorder)
    workload.state = store.state
    content, calls = recorder.content, recorder.calls
    await store.destroy()
    cuts = [0, *workload.random.choices(calls, k=RECOVERIES - 2), len(content)]
    for cut in cuts:
        earlier = workload.hints[: bisect_right(workload.ends, cut)]
        hints = workload.random.choice([FSMHints(log=LOG), *earlier])
        fsm, _ = recover(tmp_path / "two", content[:cut], hints)
        again = MemoryRecorder(tmp_path / "two", fsm, content[:cut], author=2)
        store = JSONFileStore(again, State())
        await workload.check(store, cut)
        store.state = {"recovered": cut}
        await store.start_commit(SHARD, checkpoint_at(1000), ())
        recover(tmp_path / "three", again.content)
        await store.destroy()
        third = JSONFileStore(MemoryRecorder(tmp_path / "three"), State())
        assert await third.restore_checkpoint(SHARD) == checkpoint_at(1000)
        assert third.state == {"recovered": cut}
