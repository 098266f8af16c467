"""JSONFileStore, without and with a recorder."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fcntl
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gazette_aio.aio.threads import in_thread
from gazette_aio.client.appends.futures import AsyncOperation, finished_operation
from gazette_aio.consumer.stores import JSONFileStore
from gazette_aio.protocol.consumer import Checkpoint
from gazette_aio.protocol.errors import ConfigurationError, FencedError, StoreError
from gazette_aio.testing import StubShard
from tests.blocking import blocking_calls_refused
from tests.cancellation import cancel_at_every_await
from tests.consumer.recoverylog.player.logs import is_there
from tests.consumer.stores.databases import checkpoint_at
from tests.consumer.stores.memory_recorder import MemoryRecorder
from tests.waiting import eventually, turns


def refuse(path: Path) -> None:
    raise PermissionError(f"{path} can't be removed")


class Counts(msgspec.Struct):
    words: dict[str, int] = {}


@dataclasses.dataclass
class Totals:
    sum: int = 0


class Model:
    """A state of a type that msgspec doesn't know."""

    def __init__(self, value: int = 0) -> None:
        self.value = value


async def restored(directory: Path, state: Any, **codec: Any) -> tuple[Any, Checkpoint]:
    store = JSONFileStore(None, state, directory=directory, **codec)
    checkpoint = await store.restore_checkpoint(StubShard("a-shard"))
    return store.state, checkpoint


@pytest.mark.parametrize(
    ("fresh", "later"),
    [({}, {"a": 1}), ([], [1]), (Counts(), Counts({"a": 1})), (Totals(), Totals(5))],
)
async def test_states_of_types(tmp_path: Path, fresh: Any, later: Any) -> None:
    shard, directory = StubShard("a-shard"), tmp_path / "new" / "directory"
    store = JSONFileStore(None, fresh, directory=directory)
    assert await store.restore_checkpoint(shard) == Checkpoint()
    assert store.state is fresh
    store.state = later
    await store.start_commit(shard, checkpoint_at(3), ())
    assert await restored(directory, fresh) == (later, checkpoint_at(3))
    assert (directory / "state.json").stat().st_mode & 0o777 == 0o600
    await store.destroy()
    assert await restored(directory, fresh) == (later, checkpoint_at(3))


async def test_states_with_a_codec(tmp_path: Path) -> None:
    unknown = JSONFileStore(None, Model(), directory=tmp_path)
    with pytest.raises(StoreError, match=r"^encode\(state\): .*Model"):
        await unknown.start_commit(StubShard("a-shard"), checkpoint_at(3), ())
    codec: Any = {
        "dumps": lambda state: f'{{\n"value": {state.value}}}',
        "loads": lambda raw: Model(msgspec.json.decode(raw)["value"]),
    }
    store = JSONFileStore(None, Model(4), directory=tmp_path, **codec)
    await store.restore_checkpoint(StubShard("a-shard"))
    await store.start_commit(StubShard("a-shard"), checkpoint_at(3), ())
    state, _ = await restored(tmp_path, Model(), **codec)
    assert state.value == 4
    with pytest.raises(StoreError, match=r"^decode\(state\): "):
        await restored(tmp_path, [])


async def test_errors_name_their_step(tmp_path: Path) -> None:
    shard = StubShard("a-shard")
    store: JSONFileStore[Any] = JSONFileStore(None, {}, directory=tmp_path)
    await store.restore_checkpoint(shard)
    store.state = {"a": object()}
    commit = store.start_commit(shard, checkpoint_at(1), ())
    assert commit.done()
    with pytest.raises(StoreError, match=r"^encode\(state\): "):
        await commit
    store.state = {}
    (tmp_path / "next.json").mkdir()
    with pytest.raises(StoreError, match=r"^creating state file: .*next.json"):
        await store.start_commit(shard, checkpoint_at(1), ())
    (tmp_path / "next.json").rmdir()
    (tmp_path / "state.json").mkdir()
    with pytest.raises(StoreError, match=r"^renaming next => current: .*state.json"):
        await store.start_commit(shard, checkpoint_at(1), ())
    with pytest.raises(StoreError, match=r"^opening state file: .*state.json"):
        await store.restore_checkpoint(shard)
    (tmp_path / "file").touch()
    store = JSONFileStore(None, {}, directory=tmp_path / "file")
    with pytest.raises(StoreError, match=r"^opening state file: .*file"):
        await store.restore_checkpoint(shard)


async def test_a_directory_is_of_one_store(tmp_path: Path) -> None:
    shard = StubShard("a-shard")
    first, second = (JSONFileStore(None, {}, directory=tmp_path) for _ in range(2))
    await first.restore_checkpoint(shard)
    await second.restore_checkpoint(shard)
    with pytest.raises(FencedError, match="checkpoint fence was updated"):
        await first.start_commit(shard, checkpoint_at(1), ())
    await second.start_commit(shard, checkpoint_at(2), ())
    # A file that a crash has left half written is replaced.
    (tmp_path / "next.json").write_bytes(b'{"a')
    await second.start_commit(shard, checkpoint_at(3), ())
    assert (await restored(tmp_path, {}))[1] == checkpoint_at(3)


@contextlib.contextmanager
def locked(directory: Path) -> Generator[None]:
    """Lock a directory, as a store of another process does that is stopped meanwhile."""
    with (directory / "fence").open("ab") as fence:
        fcntl.flock(fence, fcntl.LOCK_EX)
        yield


async def test_a_lock_of_another_process_occupies_no_threads(tmp_path: Path) -> None:
    shard = StubShard("a-shard")
    stores = [JSONFileStore(None, {}, directory=tmp_path) for _ in range(64)]
    with locked(tmp_path):
        restoring = [asyncio.create_task(store.restore_checkpoint(shard)) for store in stores]
        await turns()
        assert await in_thread(lambda: "a free thread") == "a free thread"
        assert not any(task.done() for task in restoring)
    for task in restoring:
        assert await task == Checkpoint()


async def test_a_commit_that_waits_for_a_lock_ends_with_its_store(tmp_path: Path) -> None:
    shard = StubShard("a-shard")
    store = JSONFileStore(None, {}, directory=tmp_path)
    await store.restore_checkpoint(shard)
    with locked(tmp_path):
        commit = store.start_commit(shard, checkpoint_at(1), ())
        await turns()
        assert not commit.done()
        await store.destroy()
        with pytest.raises(StoreError, match="destroyed before its commit"):
            await commit
    assert (await restored(tmp_path, {}))[1] == Checkpoint()


async def test_no_file_blocks_the_event_loop(tmp_path: Path) -> None:
    shard = StubShard("a-shard")
    with blocking_calls_refused():
        store = JSONFileStore(None, {}, directory=tmp_path)
        await store.restore_checkpoint(shard)
        await store.start_commit(shard, checkpoint_at(1), ())
        await store.restore_checkpoint(shard)
        await store.destroy()


async def test_restoring_is_cancelled_at_every_await(tmp_path: Path) -> None:
    shard = StubShard("a-shard")
    store = JSONFileStore(None, {"a": 1}, directory=tmp_path)
    await store.restore_checkpoint(shard)
    await store.start_commit(shard, checkpoint_at(1), ())

    async def check() -> None:
        assert await restored(tmp_path, {}) == ({"a": 1}, checkpoint_at(1))

    assert await cancel_at_every_await(lambda: store.restore_checkpoint(shard), check) > 2


def test_a_recorder_or_a_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="either a recorder or a directory"):
        JSONFileStore(None, {})
    with pytest.raises(ConfigurationError, match="either a recorder or a directory"):
        JSONFileStore(MemoryRecorder(tmp_path), {}, directory="/tmp/elsewhere")


class Recorder(MemoryRecorder):
    """Recorder that notes its barriers."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        super().__init__(directory)
        self.barriers: list[tuple[list[Any], int]] = []
        """What each barrier waits for, and the length of the log at that time."""
        self.closing = finished_operation()

    def barrier(self, wait_for: Any = ()) -> Any:
        self.barriers.append((list(wait_for), len(self.content)))
        return finished_operation() if wait_for else self.closing


async def test_files_are_recorded_between_barriers(tmp_path: Path) -> None:
    shard, recorder = StubShard("a-shard"), Recorder(tmp_path / "recorded")
    recorder.closing = AsyncOperation()
    store = JSONFileStore(recorder, {"a": 1})
    assert await store.restore_checkpoint(shard) == Checkpoint()
    appended = AsyncOperation()
    commit = store.start_commit(shard, checkpoint_at(1), [appended])
    assert recorder.barriers == [([appended], 0)]
    await eventually(lambda: len(recorder.barriers) == 2)
    length = len(recorder.content)
    assert recorder.barriers[1:] == [([], length)]
    assert recorder.appends == [0, length]
    assert not commit.done()
    recorder.closing.resolve()
    await commit
    assert [path.name for path in store.directory.iterdir()] == ["state.json"]
    other = JSONFileStore(recorder, {})
    assert await other.restore_checkpoint(shard) == checkpoint_at(1)
    await store.destroy()
    assert not is_there(store.directory)


async def test_errors_of_the_recorder_fail_the_commit(tmp_path: Path) -> None:
    shard, recorder = StubShard("a-shard"), Recorder(tmp_path)
    store = JSONFileStore(recorder, {})
    recorder.closing = finished_operation(FencedError("taken"))
    with pytest.raises(FencedError, match="taken"):
        await store.start_commit(shard, checkpoint_at(1), ())


async def test_destroying_ends_a_commit_whose_barrier_never_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, recorder = StubShard("a-shard"), Recorder(tmp_path / "recorded")
    recorder.closing = AsyncOperation()
    store = JSONFileStore(recorder, {})
    commit = store.start_commit(shard, checkpoint_at(1), [finished_operation()])
    await eventually(lambda: len(recorder.barriers) == 2)
    with monkeypatch.context() as patch:
        # A directory that can't be removed is logged, and no error.
        patch.setattr(shutil, "rmtree", refuse)
        await asyncio.wait_for(store.destroy(), 60)
    with pytest.raises(StoreError, match="the store was destroyed"):
        await commit
    assert "failed to remove the directory of a store" in caplog.text
    await store.destroy()
    assert not is_there(store.directory)
