"""JSONFileStore in a recovery log, which is played back elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import connect
from gazette_aio.client.appends.futures import AsyncOperation
from gazette_aio.consumer.recoverylog import FSM, Author
from gazette_aio.consumer.recoverylog.playing.player import Player
from gazette_aio.consumer.recoverylog.recording.recorder import Recorder
from gazette_aio.consumer.stores import JSONFileStore
from gazette_aio.protocol.errors import DependencyError, FencedError
from gazette_aio.protocol.recoverylog import FSMHints
from gazette_aio.testing import StubShard, create_journals, journal_spec
from tests.consumer.stores.databases import checkpoint_at

LOG = "recovery/a-shard"


async def test_a_state_moves_by_its_log(tmp_path: Path) -> None:
    shard = StubShard("a-shard")
    async with (
        EmbeddedBroker(tmp_path / "broker", fsync="off") as broker,
        connect(broker.endpoint, drain_timeout=5) as client,
    ):
        await create_journals(client, journal_spec(LOG))
        (tmp_path / "one").mkdir()
        one = await Recorder.open(
            client, LOG, FSM(FSMHints(log=LOG)), Author(1), str(tmp_path / "one")
        )
        former = JSONFileStore(one, {"count": 0})
        await former.restore_checkpoint(shard)
        for count in (1, 2, 3):
            former.state["count"] = count
            appended = AsyncOperation()
            commit = former.start_commit(shard, checkpoint_at(count), [appended])
            former.state["count"] = 99
            appended.resolve()
            await commit

        # Another member plays the log, and takes it over.
        player = Player()
        player.inject_handoff(2)
        played = await player.play(await one.build_hints(), tmp_path / "two", client)
        two = await Recorder.open(client, LOG, played.fsm, Author(2), str(tmp_path / "two"))
        owner = JSONFileStore(two, {"count": 0})
        assert await owner.restore_checkpoint(shard) == checkpoint_at(3)
        assert owner.state == {"count": 3}

        with pytest.raises(FencedError):
            await former.start_commit(shard, checkpoint_at(4), ())
        owner.state["count"] = 5
        await owner.start_commit(shard, checkpoint_at(5), ())
        failing = AsyncOperation()
        commit = owner.start_commit(shard, checkpoint_at(6), [failing])
        failing.resolve(OSError("no space"))
        with pytest.raises(DependencyError):
            await commit
        for recorder, store in ((one, former), (two, owner)):
            recorder.cancel()
            await recorder.aclose()
            await store.destroy()
            assert not store.directory.exists()
