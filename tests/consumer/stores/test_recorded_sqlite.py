"""SQLiteStore in recovery logs of a broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import JournalClient, connect
from gazette_aio.client.appends.futures import AsyncOperation
from gazette_aio.consumer.recoverylog import Author, Player, Recorder
from gazette_aio.consumer.stores import SQLiteStore
from gazette_aio.protocol.consumer import Checkpoint
from gazette_aio.protocol.errors import DependencyError, FencedError, StoreError
from gazette_aio.protocol.recoverylog import FSMHints
from gazette_aio.testing import StubShard, check_store
from tests.consumer.recoverylog.player.logs import create_log
from tests.consumer.stores.databases import checkpoint_at

SCHEMA = "CREATE TABLE IF NOT EXISTS state (id INTEGER PRIMARY KEY, value TEXT)"
SET = "INSERT OR REPLACE INTO state (id, value) VALUES (1, ?)"
GET = "SELECT value FROM state WHERE id = 1"


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[JournalClient]:
    async with (
        EmbeddedBroker(tmp_path / "broker", fsync="off") as broker,
        connect(broker.endpoint, drain_timeout=5) as client,
    ):
        yield client


class OwningStore(SQLiteStore):
    """Store that ends its recorder, as members do when an assignment is lost."""

    def __init__(self, recorder: Recorder, **options: Any) -> None:
        super().__init__(recorder, schema=options.pop("schema", SCHEMA), **options)
        self.recorder = recorder

    async def destroy(self) -> None:
        self.recorder.cancel()
        await super().destroy()
        await self.recorder.aclose()


async def take_over(
    client: JournalClient,
    log: str,
    directory: Path,
    hints: FSMHints | None = None,
    **options: Any,
) -> OwningStore:
    """Play a log, fence off its owner, and return a store on what was recovered."""
    author = Author.random()
    player = Player()
    player.inject_handoff(author)
    played = await player.play(hints or FSMHints(log=log), directory, client)
    recorder = await Recorder.open(client, log, played.fsm, author, str(directory))
    return OwningStore(recorder, **options)


def write(store: SQLiteStore, value: str) -> None:
    store.db.execute(SET, (value,))


def read(store: SQLiteStore) -> str | None:
    row = store.db.execute(GET).fetchone()
    return None if row is None else str(row[0])


async def test_check_store(client: JournalClient, tmp_path: Path) -> None:
    logs: dict[str, int] = {}

    async def make(shard: Any) -> OwningStore:
        log = f"recovery/{shard.id}"
        if log not in logs:
            await create_log(client, log)
        logs[log] = number = logs.get(log, 0) + 1
        return await take_over(client, log, tmp_path / shard.id / str(number))

    await check_store(make, write=write, read=read)


async def test_a_state_moves_by_its_log(client: JournalClient, tmp_path: Path) -> None:
    log, shard = "recovery/a-shard", StubShard("a-shard")
    await create_log(client, log)
    former = await take_over(client, log, tmp_path / "one")
    assert await former.restore_checkpoint(shard) == Checkpoint()
    for count in (1, 2, 3):
        write(former, str(count))
        appended = AsyncOperation()
        commit = former.start_commit(shard, checkpoint_at(count), [appended])
        write(former, "99")
        appended.resolve()
        await commit
    hints = await former.recorder.build_hints()
    owner = await take_over(client, log, tmp_path / "two", hints)
    assert await owner.restore_checkpoint(shard) == checkpoint_at(3)
    assert read(owner) == "3"

    with pytest.raises(FencedError):
        await former.start_commit(shard, checkpoint_at(4), ())
    with pytest.raises(StoreError, match="can't be used any longer"):
        write(former, "4")
    await owner.execute(SET, ("5",))
    await owner.start_commit(shard, checkpoint_at(5), ())
    failing = AsyncOperation()
    commit = owner.start_commit(shard, checkpoint_at(6), [failing])
    failing.resolve(OSError("no space"))
    with pytest.raises(DependencyError):
        await commit
    third = await take_over(client, log, tmp_path / "three")
    assert await third.restore_checkpoint(shard) == checkpoint_at(5)
    assert read(third) == "5"
    for store in (former, owner, third):
        await store.destroy()
        assert not store.directory.exists()
