"""What journals make of their stores: listings, writes, and changes of their specs."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.broker.host.clock import ManualClock
from gazette_aio.broker.host.files import FileOps
from gazette_aio.broker.host.scheduler import MAX_RUNNING
from gazette_aio.broker.host.workers import Workers
from gazette_aio.broker.keyspace.keyspace import KeySpaceTransaction
from gazette_aio.broker.service.read import ContentChunk
from gazette_aio.broker.stores import FileFragmentStore, Listed
from tests.broker.caller import Caller, calling, journal_spec
from tests.broker.journal.faulty_files import FaultyFiles
from tests.broker.journal.test_crash_points import CLAIMS, running, send
from tests.broker.served import serve_apply, serve_fragments, serve_read
from tests.waiting import eventually

NAME = "test/journal"
FULL = pb.JournalSpec.Suspend(level=pb.JournalSpec.Suspend.Level.FULL)


def file_name(begin: int, content: bytes) -> str:
    digest = hashlib.sha1(content).hexdigest()
    return f"{begin:016x}-{begin + len(content):016x}-{digest}.raw"


def put(directory: Path, begin: int, content: bytes) -> Path:
    path = directory / NAME / file_name(begin, content)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def fragment_files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*.raw"))


def new_broker(path: Path, **options: Any) -> EmbeddedBroker:
    (path / "root" / "b").mkdir(parents=True, exist_ok=True)
    options = {
        "fsync": "off",
        "persist_delay": 0.0,
        "http_port": None,
        "file_root": path / "root",
        **options,
    }
    return EmbeddedBroker(path / "data", **options)


async def waiting_read(broker: EmbeddedBroker, caller: Caller, offset: int) -> Any:
    call = caller.read_call(pb.ReadRequest(journal=NAME, offset=offset, block=True))

    async def waits() -> bool:
        return any(replica.index.waiters for replica in broker.core.replicas)

    reading = asyncio.ensure_future(call.read())
    await eventually(waits)
    return reading


# Changes of specs


async def test_readers_who_wait_see_a_new_store(tmp_path: Path) -> None:
    async with new_broker(tmp_path) as broker, calling(broker.endpoint) as caller:
        await caller.create(journal_spec(stores=["file:///"]))
        reading = await waiting_read(broker, caller, 0)
        put(tmp_path / "root" / "b", 0, b"hello")
        await caller.create(journal_spec(stores=["file:///", "file:///b/"]))
        async with asyncio.timeout(30):
            response = await reading
        assert (response.fragment.backing_store, response.write_head) == ("file:///b/", 5)


async def test_another_store_is_tried_at_once(tmp_path: Path) -> None:
    clock = ManualClock()
    async with (
        new_broker(tmp_path, clock=clock, persist_delay=1.0, persist_retry=100.0) as broker,
        calling(broker.endpoint) as caller,
    ):
        await caller.create(journal_spec(stores=["file:///"]))
        await caller.commit(b"content")
        await caller.commit(b"more")  # The first fragment is complete, as the first of a journal.
        failure = broker.control.fail_store("file:///")
        clock.advance(1)
        await broker.control.settled()
        assert failure.hits
        await caller.create(journal_spec(stores=["file:///b/"]))
        clock.advance(1)
        await broker.control.settled()
        name = file_name(0, b"content")
        assert fragment_files(tmp_path / "root") == [f"b/{NAME}/{name}"]


class FullStore(FileFragmentStore):
    """A local store which is full, and notes when fragments come."""

    def __init__(self, root: Path, clock: ManualClock) -> None:
        super().__init__(FileOps(), root, "file:///", sync=False)
        self._clock = clock
        self.times: list[float] = []

    def put(self, path: str, pieces: Iterable[bytes], *, gzipped: bool = False) -> None:
        if not path.startswith(NAME):
            super().put(path, pieces, gzipped=gzipped)
            return
        self.times.append(self._clock())
        raise OSError(errno.ENOSPC, "No space left on device")


async def test_pauses_grow_while_a_store_fails(tmp_path: Path) -> None:
    clock = ManualClock(start=0)
    full, other = FullStore(tmp_path / "root", clock), FullStore(tmp_path / "root", clock)

    async def pass_seconds(seconds: int) -> None:
        for _ in range(seconds):
            clock.advance(1)
            await broker.control.settled()

    async with (
        new_broker(tmp_path, clock=clock, persist_delay=1.0, persist_retry=10.0) as broker,
        calling(broker.endpoint) as caller,
    ):
        await caller.create(journal_spec(stores=["file:///"], length=1024))
        await caller.commit(b"content")
        await caller.commit(b"more")  # The first fragment is complete, as the first of a journal.
        broker.core.stores.get("file:///").replace(full)
        broker.core.stores.get("file:///b/").replace(other)
        await pass_seconds(12)
        assert full.times == [1, 11]
        await caller.commit(bytes(2000))
        await caller.commit(b"more")  # A further fragment waits for the same pause.
        await pass_seconds(448)
        assert full.times == [1, 11, 31, 71, 151, 301, 451]
        for _ in range(1100):  # Two days.
            clock.advance(150)
            await broker.control.settled()
        assert len(full.times) == 1107
        # The pauses of another store begin anew, and the former pause means nothing to it.
        await caller.create(journal_spec(stores=["file:///b/"]))
        begin = clock()
        await pass_seconds(200)
        assert [time - begin for time in other.times] == [1, 11, 31, 71, 151]
        assert len(full.times) == 1107


async def test_a_shorter_refresh_interval_holds_at_once(tmp_path: Path) -> None:
    clock = ManualClock()
    async with new_broker(tmp_path, clock=clock) as broker, calling(broker.endpoint) as caller:
        await caller.create(journal_spec(stores=["file:///"]))
        reading = await waiting_read(broker, caller, 0)
        put(tmp_path / "root", 0, b"hello")
        await caller.create(journal_spec(stores=["file:///"], refresh_interval={"seconds": 60}))
        clock.advance(60)
        async with asyncio.timeout(30):
            assert (await reading).write_head == 5


async def test_fragments_of_stores_which_were_removed_are_dropped(tmp_path: Path) -> None:
    put(tmp_path / "root", 0, b"hello")
    async with new_broker(tmp_path) as broker, calling(broker.endpoint) as caller:
        await caller.create(journal_spec(stores=["file:///"]))
        assert [fragment.end for fragment in await caller.fragments()] == [5]
        await caller.create(journal_spec())
        assert await caller.fragments() == []
        await caller.create(journal_spec(stores=["file:///"]))
        assert [fragment.end for fragment in await caller.fragments()] == [5]


class HeldStore(FileFragmentStore):
    """A local store which holds an operation until it's let go."""

    def __init__(self, root: Path, held: str) -> None:
        super().__init__(FileOps(), root, "file:///", sync=False)
        self._held = held
        self.reached = threading.Event()
        self.release = threading.Event()

    def _hold(self, operation: str) -> None:
        if operation == self._held:
            self.reached.set()
            assert self.release.wait(30)

    def put(self, path: str, pieces: Iterable[bytes], *, gzipped: bool = False) -> None:
        self._hold("put")
        super().put(path, pieces, gzipped=gzipped)

    def list(self, prefix: str, *, skip: frozenset[str] = frozenset()) -> Iterator[Listed]:
        self._hold("list")
        return super().list(prefix, skip=skip)


async def test_a_fragment_stays_until_it_is_in_a_store_of_its_journal(tmp_path: Path) -> None:
    store = HeldStore(tmp_path / "root", "put")
    async with new_broker(tmp_path) as broker, calling(broker.endpoint) as caller:
        await caller.create(journal_spec(stores=["file:///"]))
        await caller.commit(b"content")
        broker.core.stores.get("file:///").replace(store)
        flushing = asyncio.ensure_future(broker.flush(NAME))
        assert await asyncio.to_thread(store.reached.wait, 30)
        await caller.create(journal_spec(stores=["file:///b/"]))
        store.release.set()
        await flushing
        await broker.refresh(NAME)
        assert await caller.read() == b"content"
        assert f"b/{NAME}/{file_name(0, b'content')}" in fragment_files(tmp_path / "root")


async def test_an_append_needs_no_store_which_is_taken_away(tmp_path: Path) -> None:
    store = HeldStore(tmp_path / "root", "list")
    async with new_broker(tmp_path) as broker, calling(broker.endpoint) as caller:
        broker.core.stores.get("file:///").replace(store)
        await caller.create(journal_spec(stores=["file:///"]))
        appending = asyncio.ensure_future(caller.append(b"content"))
        assert await asyncio.to_thread(store.reached.wait, 30)
        await caller.create(journal_spec())
        store.release.set()
        assert (await appending).status == pb.Status.OK


async def test_listings_go_on_after_one_was_given_up(tmp_path: Path) -> None:
    clock = ManualClock()
    store = HeldStore(tmp_path / "root", "list")
    async with new_broker(tmp_path, clock=clock) as broker, calling(broker.endpoint) as caller:
        await caller.create(journal_spec())
        await caller.fragments()
        broker.core.stores.get("file:///").replace(store)
        await caller.create(journal_spec(stores=["file:///"]))
        request = pb.FragmentsRequest(journal=NAME)
        giving_up = asyncio.ensure_future(
            serve_fragments(broker.core, pb.Claims(capability=pb.Capability.ALL), request)
        )
        assert await asyncio.to_thread(store.reached.wait, 30)
        put(tmp_path / "root", 0, b"hello")
        giving_up.cancel()
        store.release.set()
        with pytest.raises(asyncio.CancelledError):
            await giving_up
        # The one who comes next sees what's there, and those who wait are told of what follows.
        assert [fragment.end for fragment in await caller.fragments()] == [5]
        reading = await waiting_read(broker, caller, 5)
        put(tmp_path / "root", 5, b"hello")
        clock.advance(3600)
        async with asyncio.timeout(30):
            assert (await reading).write_head == 10


async def test_readers_who_were_slow_see_what_follows(tmp_path: Path) -> None:
    clock = ManualClock()
    put(tmp_path / "root", 0, b"hello")
    async with new_broker(tmp_path, clock=clock) as broker, calling(broker.endpoint) as caller:
        await caller.create(journal_spec(stores=["file:///"]))
        sent: asyncio.Queue[int] = asyncio.Queue()
        resume = asyncio.Event()

        async def send(message: pb.ReadResponse | ContentChunk) -> None:
            if isinstance(message, ContentChunk):
                sent.put_nowait(message.offset)
                await resume.wait()

        request = pb.ReadRequest(journal=NAME, block=True, end_offset=10)
        claims = pb.Claims(capability=pb.Capability.ALL)
        reading = asyncio.ensure_future(serve_read(broker.core, claims, request, send))
        assert await sent.get() == 0
        for _ in range(2):  # Nobody waits for the journal meanwhile.
            clock.advance(3600)
            await broker.control.settled()
        resume.set()

        async def waits() -> bool:
            return any(replica.index.waiters for replica in broker.core.replicas)

        await eventually(waits)
        put(tmp_path / "root", 5, b"hello")
        clock.advance(3600)
        async with asyncio.timeout(30):
            await reading
        assert await sent.get() == 5


# Opening and leaving


async def test_a_journal_is_suspended_as_it_is_about_to_open(tmp_path: Path) -> None:
    async with new_broker(tmp_path) as broker, calling(broker.endpoint) as caller:
        await caller.create(journal_spec(stores=["file:///"]))
        core = broker.core
        item = core.space.get(NAME)
        assert item is not None
        opening = asyncio.ensure_future(core.replicas.get(item))
        await asyncio.sleep(0)  # It has begun, and its task hasn't.
        suspended = journal_spec(stores=["file:///"], suspend=FULL)
        core.replicas.follow(KeySpaceTransaction(core.space.revision, (suspended,)), [])
        async with asyncio.timeout(30):
            await opening
            assert await caller.commit(b"content") == 0


async def test_a_journal_suspended_while_it_opens_is_flushed(tmp_path: Path) -> None:
    store = HeldStore(tmp_path / "root", "list")
    async with new_broker(tmp_path) as broker, calling(broker.endpoint) as caller:
        await caller.create(journal_spec())
        await caller.commit(b"content")
    async with new_broker(tmp_path) as broker, calling(broker.endpoint) as caller:
        broker.core.stores.get("file:///").replace(store)
        await caller.create(journal_spec(stores=["file:///"]))  # It's opened by that.
        assert await asyncio.to_thread(store.reached.wait, 30)
        await caller.create(journal_spec(stores=["file:///"], suspend=FULL))
        store.release.set()
        await broker.control.settled()
        await broker.core.replicas.flush_all()
        assert fragment_files(tmp_path / "root") == [f"{NAME}/{file_name(0, b'content')}"]


async def test_a_journal_created_anew_during_a_flush_has_its_own_files(tmp_path: Path) -> None:
    """Its earlier life was to be opened by the flush, and isn't any more."""
    names = [f"test/{number}" for number in range(9)]
    specs = [journal_spec(name, stores=["file:///"]) for name in names]
    async with new_broker(tmp_path) as broker, calling(broker.endpoint) as caller:
        await caller.create(*(journal_spec(name) for name in names))
        for name in names:
            await caller.commit(b"content", name)
    store = HeldStore(tmp_path / "root", "list")
    async with new_broker(tmp_path) as broker, calling(broker.endpoint) as caller:
        broker.control.clock.freeze()
        # Before there are journals of it, which might list it at once.
        broker.core.stores.get("file:///").replace(store)
        await caller.create(*specs)
        flushing = asyncio.ensure_future(broker.core.replicas.flush_all())
        assert await asyncio.to_thread(store.reached.wait, 30)
        # The last one waits for its turn.
        await caller.delete(names[-1])
        await caller.create(specs[-1])
        store.release.set()
        await flushing
        await caller.create(specs[-1])
        assert await caller.commit(b"anew", names[-1]) == 0
        item = broker.core.space.get(names[-1])
        (replica,) = [r for r in broker.core.replicas if r.name == names[-1]]
        assert item is not None
        assert replica.directory.name.startswith(f"{item.create_revision}-")


# Work which waits for a store, or for a client


async def test_work_of_a_silent_store_keeps_no_other_waiting(broker: EmbeddedBroker) -> None:
    scheduler = broker.core.scheduler
    end = asyncio.Event()
    done: list[str] = []

    async def silent() -> None:
        await end.wait()
        done.append("silent")

    async def local() -> None:
        done.append("local")

    for number in range(3 * MAX_RUNNING):
        scheduler.after(0.0, f"silent {number}", silent, lane="s3://silent/")
    scheduler.after(0.0, "local", local)

    async def is_done() -> bool:
        return bool(done)

    await eventually(is_done)
    assert done == ["local"]
    end.set()
    await broker.control.settled()
    assert len(done) == 1 + 3 * MAX_RUNNING


async def test_a_slow_append_keeps_no_other_journal_from_its_pulse(tmp_path: Path) -> None:
    clock = ManualClock()
    async with new_broker(tmp_path, clock=clock) as broker, calling(broker.endpoint) as caller:
        names = [f"test/{number:02}" for number in range(MAX_RUNNING + 1)]
        await caller.create(*(journal_spec(name, stores=["file:///"]) for name in names))
        for name in names:
            await caller.commit(b"content", name)
        held = [replica for replica in broker.core.replicas if replica.name != names[-1]]
        async with contextlib.AsyncExitStack() as stack:
            for replica in held:
                await stack.enter_async_context(replica.head.exclusive())
            clock.advance(60)
            async with asyncio.timeout(30):
                await broker.control.settled()
            assert len(fragment_files(tmp_path / "root")) == 1
        clock.advance(60)  # They have theirs later.
        await broker.control.settled()
        assert len(fragment_files(tmp_path / "root")) == len(names)


# What's acknowledged before it's synced


class SyncedFiles(FaultyFiles):
    """Notes which files are synced, one by one, each after it was let go."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()
        self.release = threading.Event()
        self.synced: list[str] = []

    def datasync(self, descriptor: int) -> None:
        path = self._paths[descriptor]
        if path.suffix == ".spool":
            self.begun.set()
            assert self.release.wait(30)
            self.synced.append(path.parent.name)
        super().datasync(descriptor)


async def test_the_end_waits_for_all_that_is_being_synced(tmp_path: Path) -> None:
    files = SyncedFiles()
    async with running(tmp_path, files, "interval", sync_interval=0.001) as core:
        for name in ("test/one", "test/two", "test/three"):
            change = pb.ApplyRequest.Change(upsert=journal_spec(name))
            await serve_apply(core, CLAIMS, pb.ApplyRequest(changes=[change]))
        # The last one is acknowledged while a round is under way.
        for name in ("test/one", "test/two", "test/three"):
            await send(core, b"x", journal=name)
        assert await asyncio.to_thread(files.begun.wait, 30)
        ending = asyncio.ensure_future(core.stop_serving())
        await asyncio.sleep(0)
        files.release.set()
        await ending
    assert len(set(files.synced)) == 3


async def test_what_is_suspended_before_it_is_synced_is_synced(tmp_path: Path) -> None:
    files = SyncedFiles()
    files.release.set()
    async with running(tmp_path, files, "interval", sync_interval=3600.0) as core:
        for suspend in (pb.JournalSpec.Suspend(), FULL):
            spec = journal_spec(suspend=suspend)
            change = pb.ApplyRequest.Change(upsert=spec, expect_mod_revision=-1)
            await serve_apply(core, CLAIMS, pb.ApplyRequest(changes=[change]))
            if not suspend.level:
                await send(core, b"content", journal=NAME)
                assert not files.synced
        assert await asyncio.to_thread(files.begun.wait, 30)


# What's left by an earlier run


@pytest.mark.parametrize("suspended", [False, True])
async def test_what_an_earlier_run_left_is_flushed(tmp_path: Path, suspended: bool) -> None:
    async with new_broker(tmp_path) as broker, calling(broker.endpoint) as caller:
        await caller.create(journal_spec("test/kept"), journal_spec("test/bare"))
        await caller.commit(b"content", "test/kept")
        await caller.commit(b"content", "test/bare")
        suspend = FULL if suspended else pb.JournalSpec.Suspend()
        if suspended:
            await caller.create(journal_spec("test/kept", stores=["file:///"], suspend=suspend))
    async with new_broker(tmp_path) as broker, calling(broker.endpoint) as caller:
        broker.control.clock.freeze()  # Nothing happens but what's asked for.
        await caller.create(journal_spec("test/kept", stores=["file:///"], suspend=suspend))
        assert fragment_files(tmp_path / "root") == []
        await broker.core.replicas.flush_all()
        name = file_name(0, b"content")
        assert fragment_files(tmp_path / "root") == [f"test/kept/{name}"]
        assert "test/bare" not in {replica.name for replica in broker.core.replicas}


async def test_a_store_which_comes_later_takes_what_an_earlier_run_left(tmp_path: Path) -> None:
    async with new_broker(tmp_path) as broker, calling(broker.endpoint) as caller:
        await caller.create(journal_spec("test/kept"))
        await caller.commit(b"content", "test/kept")
    async with (
        new_broker(tmp_path, pulse_interval=0.01) as broker,
        calling(broker.endpoint) as caller,
    ):
        await caller.create(journal_spec("test/kept", stores=["file:///"]))

        async def is_persisted() -> bool:
            return bool(fragment_files(tmp_path / "root"))

        await eventually(is_persisted)


async def test_all_are_flushed_though_one_fails(tmp_path: Path) -> None:
    async with new_broker(tmp_path) as broker, calling(broker.endpoint) as caller:
        for number in range(3):
            spec = journal_spec(f"test/{number}", stores=["file:///b/" if number else "file:///"])
            await caller.create(spec)
            await caller.commit(b"content", spec.name)
        with broker.control.fail_store("file:///"), pytest.raises(pb.StoreError):
            await broker.core.replicas.flush_all()
        assert len(fragment_files(tmp_path / "root" / "b")) == 2
        assert len(fragment_files(tmp_path / "root")) == 2


async def test_a_silent_store_keeps_no_other_from_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDOFTESTS")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret/of-tests")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(100)
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        store = f"s3://bucket/?endpoint={endpoint}"
        async with (
            new_broker(tmp_path, store_endpoint=[endpoint]) as broker,
            calling(broker.endpoint) as caller,
        ):
            for number in range(24):
                name = f"test/{number:02}"
                await caller.create(journal_spec(name))
                await caller.commit(b"content", name)
                at = store if number < 20 else "file:///"
                await caller.create(journal_spec(name, stores=[at]))
            flushing = asyncio.ensure_future(broker.core.replicas.flush_all())

            async def is_persisted() -> bool:
                return len(fragment_files(tmp_path / "root")) == 4

            await eventually(is_persisted)
            assert not flushing.done()
            begun = time.monotonic()
            flushing.cancel()
            await asyncio.wait([flushing])
            await broker.stop(0.2)
            assert time.monotonic() - begun < 20


# Files


async def test_an_empty_file_is_written_anew(tmp_path: Path) -> None:
    """A crash of a broker which doesn't sync may leave one."""
    left = put(tmp_path / "root", 0, b"content")
    left.write_bytes(b"")
    async with new_broker(tmp_path) as broker, calling(broker.endpoint) as caller:
        await caller.create(journal_spec())
        await caller.commit(b"content")
        await caller.create(journal_spec(stores=["file:///"]))
        await broker.flush(NAME)
        assert left.read_bytes() == b"content"


async def test_a_directory_is_not_taken_for_a_fragment(tmp_path: Path) -> None:
    taken = put(tmp_path / "root", 0, b"content")
    taken.unlink()
    taken.mkdir()
    async with new_broker(tmp_path) as broker, calling(broker.endpoint) as caller:
        await caller.create(journal_spec(stores=["file:///"]))
        await caller.commit(b"content")
        with pytest.raises(pb.StoreError, match="is not a file"):
            await broker.flush(NAME)
        assert await caller.read() == b"content"


async def test_of_equal_fragments_the_last_one_by_its_path_remains(tmp_path: Path) -> None:
    content = b"content"
    for postfix in ("c", "a", "b"):
        path = tmp_path / "root" / NAME / postfix / file_name(0, content)
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        os.utime(path, (1, (1 << 40) if postfix == "b" else 7))
    async with new_broker(tmp_path) as broker, calling(broker.endpoint) as caller:
        await caller.create(journal_spec(stores=["file:///"]))
        (fragment,) = await caller.fragments()
        assert (fragment.path_postfix, fragment.mod_time) == ("c", 7)


def _hang(begun: threading.Event, end: threading.Event) -> None:
    begun.set()
    assert end.wait(30)


async def test_a_thread_which_was_given_up_keeps_no_call_waiting() -> None:
    workers = Workers(3, "test", abandonable=True)
    end = threading.Event()
    try:
        for _ in range(2):
            begun = threading.Event()
            stuck = asyncio.ensure_future(workers.run(_hang, begun, end))
            assert await asyncio.to_thread(begun.wait, 30)
            stuck.cancel()
            await asyncio.wait([stuck])
        async with asyncio.timeout(30):
            for number in range(20):
                assert await workers.run(abs, -number) == number
        assert "threads=3" in repr(workers)
    finally:
        end.set()
        workers.close()
