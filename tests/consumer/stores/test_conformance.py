"""`check_store()` passes for our stores, and catches stores that are broken on purpose."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from gazette_aio.client.appends.futures import AsyncOperation, finished_operation
from gazette_aio.consumer.application import Shard, Store
from gazette_aio.consumer.stores import (
    JSONFileStore,
    MemoryDatabase,
    MemoryStore,
    SQLStore,
)
from gazette_aio.consumer.stores.commits import Commits
from gazette_aio.protocol.consumer import Checkpoint
from gazette_aio.protocol.errors import DependencyError, FencedError
from gazette_aio.testing import ErrorStore, StubShard, check_store
from tests.consumer.stores import databases
from tests.consumer.stores.databases import checkpoint_at

State = dict[str, str]


def write(store: Any, value: str) -> None:
    store.state["value"] = value


def read(store: Any) -> str | None:
    value: str | None = store.state.get("value")
    return value


async def test_memory_store() -> None:
    database = MemoryDatabase()
    await check_store(lambda _: MemoryStore({}, database), write=write, read=read)


async def test_a_commit_fails_with_its_first_failing_dependency() -> None:
    store, shard = MemoryStore(0), StubShard("a-shard")
    await store.restore_checkpoint(shard)
    pending, failing = AsyncOperation(), AsyncOperation()
    commit = store.start_commit(shard, checkpoint_at(1), [pending, failing])
    failing.resolve(OSError("no space"))
    with pytest.raises(DependencyError, match="dependency failed: no space"):
        await commit
    assert not pending.done()
    cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    cancelled.cancel()
    with pytest.raises(DependencyError, match="it was cancelled"):
        await store.start_commit(shard, checkpoint_at(1), [cancelled])  # type: ignore[list-item]
    assert await store.restore_checkpoint(shard) == Checkpoint()


async def test_stores_without_a_database_are_alone() -> None:
    shard = StubShard("a-shard")
    store = MemoryStore([1])
    await store.restore_checkpoint(shard)
    await store.start_commit(shard, checkpoint_at(1), ())
    assert await MemoryStore([1]).restore_checkpoint(shard) == Checkpoint()
    assert "fence=1" in repr(store)


async def test_json_file_store(tmp_path: Path) -> None:
    def make(shard: Shard) -> JSONFileStore[State]:
        return JSONFileStore(None, {}, directory=tmp_path / shard.id)

    await check_store(make, write=write, read=read)


@pytest.mark.parametrize("pipeline", [False, True])
async def test_sql_store(db: AsyncEngine, pipeline: bool) -> None:
    shards: dict[Any, str] = {}

    def make(shard: Shard) -> SQLStore:
        store = SQLStore(db, pipeline=pipeline)
        shards[store] = shard.id
        return store

    await check_store(
        make,
        write=lambda store, value: databases.write(store, shards[store], value),
        read=lambda store: databases.read(store, shards[store]),
    )


class TaskStore:
    """A store of a dict whose commits are tasks."""

    def __init__(self, disk: dict[str, tuple[int, Checkpoint, State]]) -> None:
        self.disk = disk
        self.state: State = {}
        self.fence = 0
        self.commit: asyncio.Task[None] | None = None

    def start_commit(
        self, shard: Shard, checkpoint: Checkpoint, wait_for: Collection[asyncio.Future[Any]], /
    ) -> asyncio.Task[None]:
        committed = self.fence, checkpoint, dict(self.state)
        self.commit = asyncio.create_task(self._commit(shard.fqn, committed, list(wait_for)))
        return self.commit

    async def _commit(self, key: str, committed: Any, wait_for: list[asyncio.Future[Any]]) -> None:
        for dependency in wait_for:
            await dependency
        if self.disk[key][0] != self.fence:
            raise FencedError("another store has restored the shard")
        self.disk[key] = committed

    async def restore_checkpoint(self, shard: Shard, /) -> Checkpoint:
        fence, checkpoint, state = self.disk.get(shard.fqn, (0, Checkpoint(), {}))
        self.fence, self.state = fence + 1, dict(state)
        self.disk[shard.fqn] = self.fence, checkpoint, state
        return checkpoint

    async def destroy(self) -> None:
        if self.commit is not None:
            self.commit.cancel()


async def test_a_commit_may_be_a_task() -> None:
    disk: dict[str, Any] = {}
    store: Store = TaskStore(disk)
    assert isinstance(store, TaskStore)
    await check_store(lambda _: TaskStore(disk), write=write, read=read)


class OpenDatabase(MemoryDatabase):
    """Shows its fences and checkpoints to stores that are broken on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.fences: dict[str, int] = {}
        self.checkpoints: dict[str, Checkpoint] = {}
        self.is_unfenced = False

    def take(self, shard: str) -> tuple[int, Checkpoint, tuple[Any, ...]]:
        taken = super().take(shard)
        self.fences[shard] = taken[0]
        return taken

    def put(self, shard: str, fence: int, checkpoint: Checkpoint, state: Any) -> None:
        super().put(shard, self.fences[shard] if self.is_unfenced else fence, checkpoint, state)
        self.checkpoints[shard] = checkpoint


class Insider(MemoryStore[State]):
    """Knows its shard and its fence."""

    def __init__(self, state: State, database: OpenDatabase) -> None:
        super().__init__(state, database)
        self.rows = database
        self.fqn = ""
        self.fence = 0

    async def restore_checkpoint(self, shard: Shard, /) -> Checkpoint:
        checkpoint = await super().restore_checkpoint(shard)
        self.fqn, self.fence = shard.fqn, self.rows.fences[shard.fqn]
        return checkpoint

    @property
    def is_fenced(self) -> bool:
        return self.rows.fences[self.fqn] != self.fence


class Unfenced(Insider):
    """Doesn't notice that another store has restored the shard."""

    def __init__(self, state: State, database: OpenDatabase) -> None:
        super().__init__(state, database)
        database.is_unfenced = True


class Breaking(Insider):
    """Has a function in place of the start of its commits."""

    def __init__(self, state: State, database: OpenDatabase, start: Callable[..., Any]) -> None:
        super().__init__(state, database)
        self.start = start

    def begin(self, shard: Any, checkpoint: Any, wait_for: Any) -> Any:
        return super().start_commit(shard, checkpoint, wait_for)

    def start_commit(self, shard: Any, checkpoint: Any, wait_for: Any, /) -> Any:
        return self.start(self, shard, checkpoint, wait_for)

    def put(self, checkpoint: Checkpoint) -> None:
        self.rows.put(self.fqn, self.fence, checkpoint, copy.deepcopy(self.state))


def waits_for_nothing(store: Breaking, shard: Any, checkpoint: Any, _: Any) -> Any:
    return store.begin(shard, checkpoint, ())


def waits_for_the_first(store: Breaking, shard: Any, checkpoint: Any, wait_for: Any) -> Any:
    return store.begin(shard, checkpoint, list(wait_for)[:1])


def waits_for_no_success(store: Breaking, shard: Any, checkpoint: Any, wait_for: Any) -> Any:
    all_done = [AsyncOperation() for _ in wait_for]
    for each, done in zip(wait_for, all_done, strict=True):
        each.operation.when_done(done.resolve)
    return store.begin(shard, checkpoint, all_done)


def takes_effect_early(store: Breaking, shard: Any, checkpoint: Any, wait_for: Any) -> Any:
    commit = store.begin(shard, checkpoint, wait_for)
    if not store.is_fenced:
        store.put(checkpoint)
    return commit


def encodes_late(store: Breaking, shard: Any, checkpoint: Any, wait_for: Any) -> Any:
    async def apply() -> None:
        store.put(checkpoint)

    return Commits().start(wait_for, apply)


def forgets_the_checkpoint(store: Breaking, shard: Any, _: Any, wait_for: Any) -> Any:
    return store.begin(shard, Checkpoint(), wait_for)


def changes_the_checkpoint(store: Breaking, shard: Any, checkpoint: Any, wait_for: Any) -> Any:
    commit = store.begin(shard, checkpoint, wait_for)
    checkpoint.ack_intents.clear()
    return commit


def raises(store: Breaking, shard: Any, checkpoint: Any, wait_for: Any) -> Any:
    for each in wait_for:
        if each.done() and each.exception() is not None:
            raise each.exception()
    return store.begin(shard, checkpoint, wait_for)


def returns_nothing(store: Breaking, *args: Any) -> Any:
    store.begin(*args)


async def returns_a_coroutine(store: Breaking, *args: Any) -> Any:
    await store.begin(*args)


def fails_with_another_error(store: Breaking, *args: Any) -> Any:
    if store.is_fenced:
        return finished_operation(ValueError("not mine"))
    return store.begin(*args)


def hangs_after_a_failure(store: Breaking, shard: Any, checkpoint: Any, wait_for: Any) -> Any:
    failed = [each for each in wait_for if each.done() and each.exception() is not None]
    return AsyncOperation() if failed else store.begin(shard, checkpoint, wait_for)


class Stateless(MemoryStore[State]):
    """Keeps the checkpoint, but not the state."""

    async def restore_checkpoint(self, shard: Shard, /) -> Checkpoint:
        checkpoint = await super().restore_checkpoint(shard)
        self.state = {}
        return checkpoint


class Leaving(MemoryStore[State]):
    """Leaves commits behind."""

    async def destroy(self) -> None:
        pass


class Wiping(Insider):
    """Removes what it has committed."""

    async def destroy(self) -> None:
        await super().destroy()
        fence, *_ = self.rows.take(self.fqn)
        self.rows.put(self.fqn, fence, Checkpoint(), {})


class OfOneShard(MemoryStore[State]):
    """Mixes up shards."""

    def start_commit(self, shard: Any, checkpoint: Any, wait_for: Any, /) -> Any:
        return super().start_commit(Everyone, checkpoint, wait_for)

    async def restore_checkpoint(self, shard: Any, /) -> Checkpoint:
        return await super().restore_checkpoint(Everyone)


class Everyone:
    fqn = "everyone"


class Persistent(Insider):
    """Has changes in its storage before they commit."""

    async def destroy(self) -> None:
        await super().destroy()
        if (committed := self.rows.checkpoints.get(self.fqn)) and not self.is_fenced:
            self.rows.put(self.fqn, self.fence, committed, self.state)


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (Unfenced, "although another store has restored the shard"),
        (waits_for_nothing, "doesn't wait for all of its dependencies"),
        (waits_for_the_first, "doesn't wait for all of its dependencies"),
        (waits_for_no_success, "succeeds although a dependency failed"),
        (takes_effect_early, "takes effect although a dependency failed"),
        (encodes_late, "after start_commit\\(\\) returned"),
        (forgets_the_checkpoint, "doesn't restore the last commit"),
        (Stateless, "doesn't restore the last commit \\(its state\\)"),
        (Leaving, "leaves a commit behind"),
        (Wiping, "doesn't restore the last commit"),
        (changes_the_checkpoint, "modifies the checkpoint"),
        (OfOneShard, "a new shard's checkpoint isn't empty"),
        (raises, "start_commit\\(\\) raised"),
        (returns_nothing, r"start_commit\(\): it must return a future \(not NoneType\)"),
        (returns_a_coroutine, r"start_commit\(\): it must return a future \(not coroutine\)"),
        (fails_with_another_error, "instead of FencedError"),
        (hangs_after_a_failure, "took more than"),
        (Persistent, "changes without a commit are restored"),
    ],
)
async def test_broken_stores_are_caught(broken: Any, promise: str) -> None:
    database = OpenDatabase()

    def make(_: Shard) -> Store:
        of_class: bool = isinstance(broken, type)
        return broken({}, database) if of_class else Breaking({}, database, broken)

    timeout = 0.2 if broken is hangs_after_a_failure else 30
    with pytest.raises(AssertionError, match=promise):
        await check_store(make, write=write, read=read, timeout=timeout)


async def test_checkpoints_alone_are_checked() -> None:
    database = MemoryDatabase()

    async def make(_: Shard) -> MemoryStore[None]:
        return MemoryStore(None, database)

    await check_store(make)
    with pytest.raises(AssertionError, match="doesn't restore the last commit"):
        await check_store(lambda _: ErrorStore())
    with pytest.raises(AssertionError, match="a commit failed without a cause"):
        await check_store(lambda _: ErrorStore(start_commit_error=OSError("no")))
    with pytest.raises(OSError, match="cannot restore"):
        await check_store(lambda _: ErrorStore(restore_error=OSError("cannot restore")))
