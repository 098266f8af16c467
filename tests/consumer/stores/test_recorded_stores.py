"""Stores in recovery logs of a broker, of which others take over the state."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import JournalClient, connect
from gazette_aio.client.appends.futures import AsyncOperation
from gazette_aio.consumer import Application
from gazette_aio.consumer.api import fetch_hints
from gazette_aio.consumer.recoverylog import Author, Player, Recorder
from gazette_aio.consumer.stores import JSONFileStore, RocksDBStore, SQLiteStore
from gazette_aio.consumer.stores.rocksdb.store import FLUSHED_LOG_BYTES
from gazette_aio.message import json_adapter
from gazette_aio.protocol import consumer as pc
from gazette_aio.protocol.errors import StoreError
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
from tests.consumer.stores.memory_recorder import MemoryRecorder

T = TypeVar("T")

SCHEMA = "CREATE TABLE IF NOT EXISTS state (key TEXT PRIMARY KEY, value TEXT)"


class Kind(NamedTuple):
    """A kind of store, as one that keeps texts by key."""

    make: Callable[[Any], Any]
    put: Callable[[Any, str, str], Awaitable[object]]
    get: Callable[[Any, str], Awaitable[str | None]]


async def put_row(store: SQLiteStore, key: str, value: str) -> None:
    await store.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (key, value))


async def get_row(store: SQLiteStore, key: str) -> str | None:
    rows = await store.execute("SELECT value FROM state WHERE key = ?", (key,))
    return str(rows[0][0]) if rows else None


def at_once(call: Callable[..., T]) -> Callable[..., Awaitable[T]]:
    async def called(*args: Any) -> T:
        return call(*args)

    return called


KINDS = {
    "json": Kind(
        lambda recorder: JSONFileStore(recorder, dict[str, str]()),
        at_once(lambda store, key, value: store.state.__setitem__(key, value)),
        at_once(lambda store, key: store.state.get(key)),
    ),
    "sqlite": Kind(lambda recorder: SQLiteStore(recorder, schema=SCHEMA), put_row, get_row),
    "rocksdb": Kind(
        RocksDBStore,
        at_once(lambda store, key, value: store.put(key.encode(), value.encode())),
        at_once(lambda store, key: (store.get(key.encode()) or b"").decode() or None),
    ),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[JournalClient]:
    async with (
        EmbeddedBroker(tmp_path / "broker", fsync="off") as broker,
        connect(broker.endpoint, drain_timeout=5) as client,
    ):
        yield client


async def test_a_store_that_is_destroyed_twice(
    kind: Kind, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a cancellation: there's nothing left to do, and nothing to report."""
    store = kind.make(MemoryRecorder(tmp_path / "one"))
    await store.restore_checkpoint(StubShard("a-shard"))
    await store.destroy()
    assert not (tmp_path / "one").exists()
    await store.destroy()
    assert caplog.text == ""


class Owner:
    """A store, and its recorder, which ends as members end it when an assignment is lost."""

    def __init__(self, store: Any, recorder: Recorder) -> None:
        self.store = store
        self.recorder = recorder
        self.start_commit = store.start_commit
        self.restore_checkpoint = store.restore_checkpoint

    async def destroy(self) -> None:
        self.recorder.cancel()
        await self.store.destroy()
        await self.recorder.aclose()


async def take_over(
    client: JournalClient, log: str, directory: Path, kind: Kind, hints: FSMHints | None = None
) -> Owner:
    """Play a log, fence off its owner, and return a store on what was recovered."""
    author = Author.random()
    player = Player()
    player.inject_handoff(author)
    played = await player.play(hints or FSMHints(log=log), directory, client)
    recorder = await Recorder.open(client, log, played.fsm, author, str(directory))
    return Owner(kind.make(recorder), recorder)


async def test_check_store(client: JournalClient, tmp_path: Path, kind: Kind) -> None:
    logs: dict[str, int] = {}

    async def make(shard: Any) -> Owner:
        log = f"recovery/{shard.id}"
        if log not in logs:
            await create_log(client, log)
        logs[log] = number = logs.get(log, 0) + 1
        return await take_over(client, log, tmp_path / shard.id / str(number), kind)

    await check_store(
        make,
        write=lambda owner, value: kind.put(owner.store, "key", value),
        read=lambda owner: kind.get(owner.store, "key"),
    )


async def test_a_commit_begins_while_tables_are_recorded_for_hints(
    client: JournalClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recording them takes a while, in a thread, and is one append."""
    log, shard, kind = "recovery/a-shard", StubShard("a-shard"), KINDS["rocksdb"]
    await create_log(client, log)
    owner = await take_over(client, log, tmp_path / "one", kind)
    await owner.restore_checkpoint(shard)
    await kind.put(owner.store, "one", "1" * FLUSHED_LOG_BYTES)
    await owner.start_commit(shard, checkpoint_at(1), ())
    create, begun, may_end = owner.recorder.record_create, threading.Event(), threading.Event()

    def create_slowly(path: str) -> int:
        if path.endswith(".sst"):
            begun.set()
            may_end.wait()
        return create(path)

    monkeypatch.setattr(owner.recorder, "record_create", create_slowly)
    hints = asyncio.create_task(owner.recorder.build_hints())
    await asyncio.to_thread(begun.wait)
    await kind.put(owner.store, "two", "2")
    published = AsyncOperation()
    try:
        commit = owner.start_commit(shard, checkpoint_at(2), [published])
    finally:
        may_end.set()
    published.resolve()
    await commit
    successor = await take_over(client, log, tmp_path / "two", kind, await hints)
    assert await successor.restore_checkpoint(shard) == checkpoint_at(2)
    assert await kind.get(successor.store, "two") == "2"
    for each in (owner, successor):
        await each.destroy()


async def test_no_part_of_a_transaction_is_recorded(
    client: JournalClient, tmp_path: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though more than is kept in memory was, before the next part couldn't be read."""
    log, shard = "recovery/a-shard", StubShard("a-shard")
    await create_log(client, log)
    former = await take_over(client, log, tmp_path / "one", kind)
    await former.restore_checkpoint(shard)
    await kind.put(former.store, "one", "1" * 2_000_000)
    await kind.put(former.store, "two", "1")
    await former.start_commit(shard, checkpoint_at(1), ())
    write, lengths = former.recorder.record_write_at, list[int]()

    def write_some(fnode: int, data: bytes, offset: int) -> None:
        lengths.append(len(data))
        if sum(lengths) > 1_500_000:
            raise OSError("it can't be read")
        write(fnode, data, offset)

    monkeypatch.setattr(former.recorder, "record_write_at", write_some)
    await kind.put(former.store, "one", "2" * 2_000_000)
    await kind.put(former.store, "two", "2")
    with pytest.raises((StoreError, OSError), match="it can't be read"):
        await former.start_commit(shard, checkpoint_at(2), ())
    await former.recorder.aclose()
    await former.store.destroy()
    owner = await take_over(client, log, tmp_path / "two", kind)
    assert await owner.restore_checkpoint(shard) == checkpoint_at(1)
    assert await kind.get(owner.store, "one") == "1" * 2_000_000
    assert await kind.get(owner.store, "two") == "1"
    await owner.destroy()


class Counting(Application[dict[str, str], Any]):
    """Counts words."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind

    def adapter(self, spec):
        return json_adapter()

    async def new_store(self, shard, recorder):
        return self.kind.make(recorder)

    async def consume_message(self, shard, store, envelope, publisher):
        word = envelope.message["word"]
        count = int(await self.kind.get(store, word) or 0)
        await self.kind.put(store, word, str(count + 1))


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


async def test_a_shard_moves_by_a_kill_and_by_a_hand_over(
    client: JournalClient, kind: Kind
) -> None:
    labels = {"content-type": "application/x-ndjson"}
    await create_journals(client, journal_spec("words/in", labels=labels))
    await create_log(client, "recovery/counts")
    async with consumer_harness(Counting(kind), client=client) as harness:
        await harness.start_member()
        await harness.start_member()
        await harness.create_shards(counting_spec())
        for round_ in range(1, 4):
            lines = b"".join(b'{"word": "w%d"}\n' % (number % 7) for number in range(50))
            await client.append("words/in", lines)
            await harness.wait_for_shards()
            route = await harness.wait_for_primary("counts")
            primary = next(
                member
                for member in harness.members
                if member.endpoint == route.endpoints[route.primary]
            )
            async with primary.resolver.resolve("counts") as resolution:
                for number in range(7):
                    count = sum(1 for each in range(50) if each % 7 == number) * round_
                    assert await kind.get(resolution.store, f"w{number}") == str(count)
            if round_ == 1:
                await harness.crash_member(primary)
            elif round_ == 2:
                # Those that stay have to be able to take all replicas.
                await harness.start_member()
                await harness.start_member()
                assert await harness.stop_member(primary)
        hints = await fetch_hints(harness.shards, "counts")
        assert hints.backup_hints[0].hints.live_nodes
