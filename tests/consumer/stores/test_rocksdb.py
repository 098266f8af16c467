"""RocksDBStore, and what is recorded of its files."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from bisect import bisect_right
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from rocksdict import Options, Rdict, WriteBatch

from gazette_aio.client.appends.futures import AsyncOperation
from gazette_aio.consumer.recoverylog import FSM
from gazette_aio.consumer.recoverylog.playing.ranges import ranges_of
from gazette_aio.consumer.stores import RocksDBStore
from gazette_aio.consumer.stores.rocksdb import encoding
from gazette_aio.consumer.stores.rocksdb.capture import DirectoryCapture
from gazette_aio.consumer.stores.rocksdb.store import default_options
from gazette_aio.protocol.consumer import Checkpoint
from gazette_aio.protocol.errors import ConfigurationError, DependencyError, StoreError
from gazette_aio.testing import StubShard
from tests import extent
from tests.consumer.stores.databases import checkpoint_at
from tests.consumer.stores.memory_recorder import LOG, MemoryRecorder, recover

SHARD = StubShard("a-shard")
STATE = b"\x01"
"""Key from which on the state is. Those of checkpoints are before."""


def busy_options() -> Options:
    """Return options of a database that flushes and compacts all the time."""
    options = default_options()
    options.set_write_buffer_size(64 << 10)
    options.set_target_file_size_base(64 << 10)
    options.set_max_bytes_for_level_base(256 << 10)
    options.set_level_zero_file_num_compaction_trigger(2)
    return options


@asynccontextmanager
async def opened(recorder: MemoryRecorder | None, **options: object) -> AsyncIterator[RocksDBStore]:
    store = RocksDBStore(recorder, **options)
    try:
        yield store
    finally:
        await store.destroy()


async def test_a_directory_of_this_machine(tmp_path: Path) -> None:
    async with opened(None, directory=tmp_path / "db") as store:
        assert await store.restore_checkpoint(SHARD) == Checkpoint()
        store.put(b"foo", b"bar")
        appended = AsyncOperation()
        commit = store.start_commit(SHARD, checkpoint_at(1), [appended])
        # Changes are seen while they're being committed, and those that follow.
        assert store.get(b"foo") == b"bar"
        assert store.db.get(b"foo") is None
        store.delete(b"foo")
        store.put(b"next", b"1")
        appended.resolve()
        await commit
        assert store.db.get(b"foo") == b"bar"
        assert store.get(b"foo") is None
        assert list(store.items(STATE)) == [(b"next", b"1")]
        # They're dropped by restoring.
        assert await store.restore_checkpoint(SHARD) == checkpoint_at(1)
        assert list(store.items(STATE)) == [(b"foo", b"bar")]
    async with opened(None, directory=tmp_path / "db") as store:
        assert await store.restore_checkpoint(SHARD) == checkpoint_at(1)
        assert store.get(b"foo") == b"bar"


async def test_items_in_order(tmp_path: Path) -> None:
    async with opened(None, directory=tmp_path / "db") as store:
        await store.restore_checkpoint(SHARD)
        for key in (b"a", b"c", b"e", b"g"):
            store.put(key, b"stored")
        await store.start_commit(SHARD, checkpoint_at(1), ())
        store.put(b"b", b"new")
        store.put(b"c", b"changed")
        store.delete(b"e")
        items = store.items(b"b", b"g")
        store.put(b"d", b"later")
        assert list(items) == [(b"b", b"new"), (b"c", b"changed")]
        assert [key for key, _ in store.items(STATE)] == [b"a", b"b", b"c", b"d", b"g"]


async def test_further_changes_by_the_batch(tmp_path: Path) -> None:
    async with opened(None, directory=tmp_path / "db") as store:
        await store.restore_checkpoint(SHARD)
        for key in (b"a", b"b", b"c"):
            store.put(key, b"stored")
        await store.start_commit(SHARD, checkpoint_at(1), ())
        store.batch.delete_range(b"a", b"c")
        await store.start_commit(SHARD, checkpoint_at(2), ())
        assert [key for key, _ in store.items(STATE)] == [b"c"]
        store.batch.delete_range(b"a", b"z")
        await store.restore_checkpoint(SHARD)
        await store.start_commit(SHARD, checkpoint_at(3), ())
        assert [key for key, _ in store.items(STATE)] == [b"c"]


async def test_offsets_without_a_checkpoint(tmp_path: Path) -> None:
    """Early releases stored no checkpoint."""
    with Rdict(str(tmp_path / "db"), default_options()) as db:
        db.put(encoding.offset_key("a/journal"), encoding.encode_offset(1234))
        db.put(encoding.offset_key("b/journal"), encoding.encode_offset(0))
    async with opened(None, directory=tmp_path / "db") as store:
        restored = await store.restore_checkpoint(SHARD)
        assert {name: source.read_through for name, source in restored.sources.items()} == {
            "a/journal": 1234,
            "b/journal": 0,
        }
        await store.start_commit(SHARD, checkpoint_at(5678), ())
        (source,) = checkpoint_at(5678).sources
        assert store.get(encoding.offset_key(source)) == encoding.encode_offset(5678)
        assert await store.restore_checkpoint(SHARD) == checkpoint_at(5678)


async def test_misuse(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="either a recorder or a directory"):
        RocksDBStore(None)
    with pytest.raises(ConfigurationError, match="either a recorder or a directory"):
        RocksDBStore(MemoryRecorder(tmp_path), directory=tmp_path)
    async with opened(None, directory=tmp_path / "db") as store:
        with pytest.raises(StoreError, match="isn't open"):
            store.get(b"key")
        with pytest.raises(StoreError, match="isn't open"):
            await store.start_commit(SHARD, Checkpoint(), ())
        await store.open()
        # Only one process may have it open.
        async with opened(None, directory=tmp_path / "db") as other:
            with pytest.raises(StoreError, match=r"opening the database: .*LOCK"):
                await other.open()
    async with opened(None, directory=tmp_path / "objects", options=Options()) as store:
        with pytest.raises(ConfigurationError, match="raw_mode=True"):
            await store.open()


async def test_keys_and_values_are_bytes(tmp_path: Path) -> None:
    async with opened(None, directory=tmp_path) as store:
        await store.restore_checkpoint(SHARD)
        store.put(b"k", b"v")
        for key, value in ((b"k", None), (b"k", "v"), ("k", b"v"), (b"k", bytearray(b"v"))):
            with pytest.raises(TypeError, match=r"^(key|value): expected bytes, not"):
                store.put(key, value)  # type: ignore[arg-type]
        await store.start_commit(SHARD, checkpoint_at(1), ())
        assert store.get(b"k") == b"v"


async def test_after_a_failed_commit_another_store_is_needed(tmp_path: Path) -> None:
    async with opened(None, directory=tmp_path / "db") as store:
        await store.restore_checkpoint(SHARD)
        failing = AsyncOperation()
        commit = store.start_commit(SHARD, checkpoint_at(1), [failing])
        failing.resolve(OSError("no space"))
        with pytest.raises(DependencyError):
            await commit
        with pytest.raises(StoreError, match="a commit has failed"):
            await store.restore_checkpoint(SHARD)
        # It would leave out the changes of the one before.
        with pytest.raises(StoreError, match="a commit has failed"):
            await store.start_commit(SHARD, checkpoint_at(2), ())


async def test_after_a_failed_opening_another_store_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The opening has changed files, and nothing of that is recorded."""
    recorder = MemoryRecorder(tmp_path / "db")
    write, lengths = recorder.record_write_at, [1, 1, 0]

    def write_some(fnode: int, data: bytes, offset: int) -> None:
        if not lengths.pop(0):
            raise OSError("no space")
        write(fnode, data, offset)

    async with opened(recorder) as store:
        with monkeypatch.context() as patch:
            patch.setattr(recorder, "record_write_at", write_some)
            with pytest.raises(StoreError, match="opening the database: no space"):
                await store.restore_checkpoint(SHARD)
        with pytest.raises(StoreError, match="opening has failed"):
            await store.restore_checkpoint(SHARD)
    assert recorder.content == b""


State = dict[bytes, bytes]


class Workload:
    """Random transactions, and the state after each."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.states: list[State] = [{}]
        self.ends: list[int] = []
        """Ends of commits in the log."""

    async def run(self, store: RocksDBStore, recorder: MemoryRecorder, commits: int) -> None:
        state = dict(self.states[-1])
        for _ in range(commits):
            for _ in range(self.random.randrange(1, 60)):
                key = b"key %05d" % self.random.randrange(3000)
                if self.random.random() < 0.2:
                    store.delete(key)
                    state.pop(key, None)
                else:
                    state[key] = self.random.randbytes(self.random.randrange(10, 200))
                    store.put(key, state[key])
            await store.start_commit(SHARD, checkpoint_at(len(self.states)), ())
            self.states.append(dict(state))
            self.ends.append(len(recorder.content))

    def check(self, checkpoint: Checkpoint, store: RocksDBStore, cut: int) -> None:
        """Check that a store has the state of the latest commit before a cut, or one that had begun."""
        (number,) = [source.read_through for source in checkpoint.sources.values()] or [0]
        complete = bisect_right(self.ends, cut)
        assert number in (complete, complete + 1)
        assert dict(store.items(STATE)) == self.states[number]


RECOVERIES = extent.of(25, 500)


@pytest.mark.slow
@pytest.mark.parametrize("seed", extent.seeds(2, 2))
async def test_each_part_of_a_log_is_a_database(tmp_path: Path, seed: int) -> None:
    recorder = MemoryRecorder(tmp_path / "one")
    workload = Workload(seed)
    async with opened(recorder, options=busy_options()) as store:
        await store.restore_checkpoint(SHARD)
        await workload.run(store, recorder, 150)
        content, calls = recorder.content, recorder.calls
        assert len([path for path in recorder.links() if path.endswith(".sst")]) > 1
    # The opening of a new database is one append.
    opening = recorder.appends[1]
    cuts = [0, opening, len(content)]
    cuts += workload.random.choices([cut for cut in calls if cut > opening], k=RECOVERIES - 3)
    for cut in cuts:
        fsm, _ = recover(tmp_path / "two", content[:cut])
        again = MemoryRecorder(tmp_path / "two", fsm, content[:cut], author=2)
        async with opened(again, options=busy_options()) as store:
            workload.check(await store.restore_checkpoint(SHARD), store, cut)


async def test_hints_amid_commits(tmp_path: Path) -> None:
    """The logs of writes are flushed while others are written."""
    recorder = MemoryRecorder(tmp_path / "one")
    async with opened(recorder) as store:
        await store.restore_checkpoint(SHARD)
        content = random.Random(1).randbytes(1 << 20)
        for number in range(1, 21):
            store.put(b"key %d" % number, content)
            commit = store.start_commit(SHARD, checkpoint_at(number), ())
            await asyncio.gather(recorder.before_hints(), commit)
        content, hints = recorder.content, recorder.hints()
        tables = [path for path in recorder.links() if path.endswith(".sst")]
    assert tables  # How many is up to RocksDB, which merges them in the background.
    fsm, _ = recover(tmp_path / "two", content, hints)
    again = MemoryRecorder(tmp_path / "two", fsm, content, author=2)
    async with opened(again) as store:
        assert await store.restore_checkpoint(SHARD) == checkpoint_at(20)
        assert len(list(store.items(STATE))) == 20


@pytest.mark.slow
async def test_a_database_that_moves_again_and_again(tmp_path: Path) -> None:
    """Each owner continues the log, and records no file anew that it has recovered."""
    workload = Workload(extent.seed())
    content = b""
    hints = None
    for owner in range(1, 6):
        directory = tmp_path / str(owner)
        fsm, playback = recover(directory, content, hints)
        recorder = MemoryRecorder(directory, fsm, content, author=owner)
        tables = {path: fnode for path, fnode in fsm.links.items() if path.endswith(".sst")}
        async with opened(recorder, options=busy_options()) as store:
            workload.check(await store.restore_checkpoint(SHARD), store, len(content))
            kept = {path: fnode for path, fnode in recorder.links().items() if path in tables}
            assert kept.items() <= tables.items()
            await workload.run(store, recorder, 40)
            content, hints = recorder.content, recorder.hints()
            assert store.directory == directory
        assert not directory.exists()
        assert playback.fsm is fsm
    assert set(recorder.properties()) == {"/IDENTITY"}


async def test_little_is_recorded_of_an_opening(tmp_path: Path) -> None:
    recorder = MemoryRecorder(tmp_path / "one")
    async with opened(recorder) as store:
        await store.restore_checkpoint(SHARD)
        store.put(b"key", random.Random(1).randbytes(5 << 20))
        await store.start_commit(SHARD, checkpoint_at(1), ())
        await recorder.before_hints()
        content = recorder.content
    fsm, _ = recover(tmp_path / "two", content)
    again = MemoryRecorder(tmp_path / "two", fsm, content, author=2)
    async with opened(again) as store:
        await store.restore_checkpoint(SHARD)
        assert len(again.content) - len(content) < 64 << 10
        assert len(store.get(b"key")) == 5 << 20


COMMITS = extent.of(300, 1000)


async def test_played_bytes_are_bounded(tmp_path: Path) -> None:
    """However many updates of few keys there were, and how old the hints are."""
    recorder = MemoryRecorder(tmp_path / "one")
    async with opened(recorder) as store:
        await store.restore_checkpoint(SHARD)
        for number in range(1, COMMITS + 1):
            for key in range(100):
                store.put(b"key %d" % key, b"%d" % number * 600)
            await store.start_commit(SHARD, checkpoint_at(number), ())
        assert recorder.before_hints is not None
        await recorder.before_hints()
        content, hints = recorder.content, recorder.hints()
        live = sum(path.stat().st_size for path in (tmp_path / "one").iterdir())
    fsm, _ = recover(tmp_path / "two", content, hints)
    assert len(content) > 40 << 20
    segments = FSM(hints).hinted_segments
    ranges = ranges_of(segments, LOG, LOG, segments[0].first_offset)
    played = sum((part.end or len(content)) - part.begin for part in ranges)
    assert played <= 3 * live + (16 << 20)
    again = MemoryRecorder(tmp_path / "two", fsm, content, author=2)
    async with opened(again) as store:
        assert await store.restore_checkpoint(SHARD) == checkpoint_at(COMMITS)
        assert len(dict(store.items(STATE))) == 100


async def test_logs_become_tables_before_hints(tmp_path: Path) -> None:
    recorder = MemoryRecorder(tmp_path / "one")
    async with opened(recorder) as store:
        await store.restore_checkpoint(SHARD)
        store.put(b"small", b"1")
        await store.start_commit(SHARD, checkpoint_at(1), ())
        await recorder.before_hints()
        assert not [path for path in recorder.links() if path.endswith(".sst")]
        store.put(b"large", bytes(5 << 20))
        await store.start_commit(SHARD, checkpoint_at(2), ())
        await recorder.before_hints()
        assert [path for path in recorder.links() if path.endswith(".sst")]
    assert recorder.before_hints is None


@contextmanager
def captured(
    directory: Path, recorder: MemoryRecorder, options: Options | None = None
) -> Iterator[tuple[Rdict, DirectoryCapture]]:
    directory.mkdir(parents=True, exist_ok=True)
    capture = DirectoryCapture(directory, recorder)
    with Rdict(str(directory), options or default_options()) as db:
        capture.capture()
        yield db, capture
    capture.close()


def test_a_table_that_is_linked_into_the_directory(tmp_path: Path) -> None:
    recorder = MemoryRecorder(tmp_path)
    with captured(tmp_path / "db", recorder) as (db, capture):
        capture.commit(lambda: db.put(b"key", bytes(1 << 20)))
        capture.capture(db.flush)
        (table,) = [path for path in recorder.links() if path.endswith(".sst")]
        before = len(recorder.content)
        linked = tmp_path / "db" / "999999.sst"
        os.link(f"{tmp_path}{table}", linked)
        capture.capture()
        assert recorder.links()["/db/999999.sst"] == recorder.links()[table]
        assert len(recorder.content) - before < 1024
        linked.unlink()
        capture.capture()
        assert "/db/999999.sst" not in recorder.links()


def test_a_write_ahead_log_is_needed(tmp_path: Path) -> None:
    with captured(tmp_path / "db", MemoryRecorder(tmp_path)) as (_, capture):
        with pytest.raises(StoreError, match="is it disabled"):
            capture.commit(lambda: None)


def test_the_length_of_logs_amid_captures(tmp_path: Path) -> None:
    """Hints are built at any time, also while another thread notes files that are new or gone."""
    directory = tmp_path / "one"
    directory.mkdir()
    (directory / "CURRENT").write_text("MANIFEST-000001\n")
    for name in ("MANIFEST-000001", *(f"{number:06}.log" for number in range(2, 200))):
        (directory / name).write_text("1")
    capture = DirectoryCapture(directory, MemoryRecorder(directory))
    capture.capture()
    lengths = set[int]()
    with ThreadPoolExecutor(1) as thread, switching_often():
        for number in range(extent.of(50, 500)):
            log = directory / f"{1000 + number}.log"
            log.write_text("1")
            capturing = thread.submit(capture.capture)
            while not capturing.done():
                lengths.add(capture.live_log_bytes)
            capturing.result()
            log.unlink()
    assert lengths <= {198, 199}
    capture.close()


@contextmanager
def switching_often() -> Iterator[None]:
    """Have threads take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def test_a_manifest_that_is_replaced_all_the_time(tmp_path: Path) -> None:
    """Each flush and each compaction makes another one."""
    options = busy_options()
    options.set_max_manifest_file_size(1)
    recorder = MemoryRecorder(tmp_path / "one")
    chosen = random.Random(extent.seed())
    ends: list[int] = []
    with captured(tmp_path / "one", recorder, options) as (db, capture):
        first = len(recorder.content)
        for number in range(extent.of(150, 1500)):

            def write(number: int = number) -> None:
                batch = WriteBatch(raw_mode=True)
                for key in range(20):
                    batch.put(b"key %d" % (key * 50 + number % 50), chosen.randbytes(200))
                batch.put(b"number", b"%d" % number)
                db.write(batch)

            capture.commit(write)
            ends.append(len(recorder.content))
    manifests = int(next(path for path in recorder.links() if "MANIFEST" in path)[-6:])
    assert manifests > 20
    calls = [call for call in recorder.calls if call > first]
    for cut in [*chosen.choices(calls, k=extent.of(10, 100)), ends[-1]]:
        fsm, _ = recover(tmp_path / "two", recorder.content[:cut])
        again = MemoryRecorder(tmp_path / "two", fsm, recorder.content[:cut], author=2)
        with captured(tmp_path / "two", again, options) as (db, _):
            complete = bisect_right(ends, cut) - 1
            assert int(db.get(b"number") or -1) in (complete, complete + 1)


def test_a_database_below_the_directory(tmp_path: Path) -> None:
    """Its identity is an ordinary file there."""
    recorder = MemoryRecorder(tmp_path / "one")
    with captured(tmp_path / "one" / "below", recorder) as (db, capture):
        capture.commit(lambda: db.put(b"key", b"value"))
    assert "/below/IDENTITY" in recorder.links()
    assert not recorder.properties()
    recover(tmp_path / "two", recorder.content)
    with Rdict(str(tmp_path / "two" / "below"), default_options()) as db:
        assert db.get(b"key") == b"value"


async def test_a_database_of_gazettes_own_store_whose_making_was_broken_off(tmp_path: Path) -> None:
    """That store appends each operation by itself, and its log may end after any of them."""
    recorder = MemoryRecorder(tmp_path / "one")
    path = str(tmp_path / "one" / "000000.dbtmp")  # To be renamed to IDENTITY.
    recorder.record_write_at(recorder.record_create(path), b"an identity", 0)
    fsm, _ = recover(tmp_path / "two", recorder.content)
    again = MemoryRecorder(tmp_path / "two", fsm, recorder.content, author=2)
    async with opened(again) as store:
        assert await store.restore_checkpoint(SHARD) == Checkpoint()
        store.put(b"key", b"value")
        await store.start_commit(SHARD, checkpoint_at(1), ())
    assert "/000000.dbtmp" not in again.links()
    recover(tmp_path / "three", again.content)
    with Rdict(str(tmp_path / "three"), RocksDBStore.default_options()) as db:
        assert db.get(b"key") == b"value"
