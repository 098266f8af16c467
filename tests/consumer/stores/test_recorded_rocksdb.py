"""RocksDBStore in recovery logs of a broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import JournalClient, connect
from gazette_aio.client.appends.futures import AsyncOperation
from gazette_aio.consumer import Application
from gazette_aio.consumer.api import fetch_hints
from gazette_aio.consumer.recoverylog import Author, Player, Recorder
from gazette_aio.consumer.stores import RocksDBStore
from gazette_aio.message import json_adapter
from gazette_aio.protocol import consumer as pc
from gazette_aio.protocol.consumer import Checkpoint
from gazette_aio.protocol.errors import DependencyError, FencedError
from gazette_aio.protocol.recoverylog import FSMHints
from gazette_aio.testing import (
    StubShard,
    check_store,
    consumer_harness,
    create_journals,
    journal_spec,
)
from tests.consumer.recoverylog.player.logs import create_log
from tests.consumer.stores.databases import checkpoint_at

KEY = b"value"


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[JournalClient]:
    async with (
        EmbeddedBroker(tmp_path / "broker", fsync="off") as broker,
        connect(broker.endpoint, drain_timeout=5) as client,
    ):
        yield client


class OwningStore(RocksDBStore):
    """Store that ends its recorder, as members do when an assignment is lost."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self.recorder = recorder

    async def destroy(self) -> None:
        self.recorder.cancel()
        await super().destroy()
        await self.recorder.aclose()


async def take_over(
    client: JournalClient, log: str, directory: Path, hints: FSMHints | None = None
) -> OwningStore:
    """Play a log, fence off its owner, and return a store on what was recovered."""
    author = Author.random()
    player = Player()
    player.inject_handoff(author)
    played = await player.play(hints or FSMHints(log=log), directory, client)
    return OwningStore(await Recorder.open(client, log, played.fsm, author, str(directory)))


async def test_check_store(client: JournalClient, tmp_path: Path) -> None:
    logs: dict[str, int] = {}

    async def make(shard: Any) -> OwningStore:
        log = f"recovery/{shard.id}"
        if log not in logs:
            await create_log(client, log)
        logs[log] = number = logs.get(log, 0) + 1
        return await take_over(client, log, tmp_path / shard.id / str(number))

    await check_store(
        make,
        write=lambda store, value: store.put(KEY, value.encode()),
        read=lambda store: (store.get(KEY) or b"").decode() or None,
    )


async def test_a_state_moves_by_its_log(client: JournalClient, tmp_path: Path) -> None:
    log, shard = "recovery/a-shard", StubShard("a-shard")
    await create_log(client, log)
    former = await take_over(client, log, tmp_path / "one")
    assert await former.restore_checkpoint(shard) == Checkpoint()
    for count in (1, 2, 3):
        former.put(b"count", b"%d" % count)
        appended = AsyncOperation()
        commit = former.start_commit(shard, checkpoint_at(count), [appended])
        former.put(b"count", b"99")
        appended.resolve()
        await commit
    hints = await former.recorder.build_hints()
    owner = await take_over(client, log, tmp_path / "two", hints)
    assert await owner.restore_checkpoint(shard) == checkpoint_at(3)
    assert owner.get(b"count") == b"3"

    with pytest.raises(FencedError):
        await former.start_commit(shard, checkpoint_at(4), ())
    owner.put(b"count", b"5")
    await owner.start_commit(shard, checkpoint_at(5), ())
    failing = AsyncOperation()
    commit = owner.start_commit(shard, checkpoint_at(6), [failing])
    failing.resolve(OSError("no space"))
    with pytest.raises(DependencyError):
        await commit
    third = await take_over(client, log, tmp_path / "three")
    assert await third.restore_checkpoint(shard) == checkpoint_at(5)
    assert third.get(b"count") == b"5"
    for store in (former, owner, third):
        await store.destroy()
        assert not store.directory.exists()


class Counting(Application[RocksDBStore, dict[str, str]]):
    """Counts words."""

    def adapter(self, spec):
        return json_adapter()

    async def new_store(self, shard, recorder):
        return RocksDBStore(recorder)

    def consume_message(self, shard, store, envelope, publisher):
        word = envelope.message["word"].encode()
        store.put(b"word:" + word, b"%d" % (int(store.get(b"word:" + word) or 0) + 1))


def counting_spec() -> pc.ShardSpec:
    spec = pc.ShardSpec(
        id="counts",
        recovery_log_prefix="recovery",
        hint_prefix="/hints",
        hint_backups=1,
        hot_standbys=1,
    )
    spec.max_txn_duration.seconds = 1
    spec.sources.add(journal="words/in")
    return spec


async def test_a_shard_moves_by_a_kill_and_by_a_hand_over(client: JournalClient) -> None:
    labels = {"content-type": "application/x-ndjson"}
    await create_journals(client, journal_spec("words/in", labels=labels))
    await create_log(client, "recovery/counts")
    async with consumer_harness(Counting(), client=client) as harness:
        await harness.start_member()
        await harness.start_member()
        await harness.create_shards(counting_spec())
        expected: dict[bytes, bytes] = {}
        for round_ in range(1, 4):
            lines = b"".join(b'{"word": "w%d"}\n' % (number % 7) for number in range(50))
            await client.append("words/in", lines)
            await harness.wait_for_shards()
            for number in range(7):
                count = sum(1 for each in range(50) if each % 7 == number) * round_
                expected[b"word:w%d" % number] = b"%d" % count
            route = await harness.wait_for_primary("counts")
            primary = next(
                member
                for member in harness.members
                if member.endpoint == route.endpoints[route.primary]
            )
            async with primary.resolver.resolve("counts") as resolution:
                assert dict(resolution.store.items(b"word:")) == expected
            if round_ == 1:
                await harness.crash_member(primary)
            elif round_ == 2:
                # Those that stay have to be able to take all replicas.
                await harness.start_member()
                await harness.start_member()
                assert await harness.stop_member(primary)
        hints = await fetch_hints(harness.shards, "counts")
        assert hints.backup_hints[0].hints.live_nodes
