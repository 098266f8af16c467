"""Requests which meet at a bad moment: with one another, with a failure, with a cancellation."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker.core import BrokerCore
from gazette_aio.broker.fragments.commit_log import EntryKind
from gazette_aio.broker.host.files import FileOps
from gazette_aio.broker.host.log import encode_record
from gazette_aio.broker.keyspace import meta_log
from gazette_aio.broker.service.read import ContentChunk
from gazette_aio.broker.stores import FileFragmentStore
from gazette_aio.serving.rpc_error import RpcError
from tests.broker.caller import journal_spec
from tests.broker.journal.faulty_files import BootedFiles, FaultyFiles
from tests.broker.journal.test_crash_points import CLAIMS, Level, read, running, send
from tests.broker.served import serve_append, serve_apply, serve_list, serve_read
from tests.waiting import eventually, turns

NAME = "test/journal"


class GatedFiles(FaultyFiles):
    """Holds syncs of files whose names end in a suffix until the gate is opened."""

    def __init__(self, suffix: str) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()
        self._suffix = suffix

    def datasync(self, descriptor: int) -> None:
        if str(self._paths[descriptor]).endswith(self._suffix) and not self.gate.is_set():
            self.reached.set()
            assert self.gate.wait(30)
        super().datasync(descriptor)


async def reached(files: GatedFiles) -> None:
    assert await asyncio.to_thread(files.reached.wait, 30)


async def apply(core: BrokerCore, *specs: pb.JournalSpec, delete: str = "") -> pb.ApplyResponse:
    request = pb.ApplyRequest()
    for spec in specs:
        request.changes.add(upsert=spec, expect_mod_revision=-1)
    if delete:
        request.changes.add(delete=delete, expect_mod_revision=-1)
    return await serve_apply(core, CLAIMS, request)


async def names(path: Path) -> list[str]:
    async with running(path, FileOps()) as core:
        return [item.name for item in core.space]


async def test_a_cancelled_apply_is_adopted_if_it_is_in_the_log(tmp_path: Path) -> None:
    files = GatedFiles(".log")
    async with running(tmp_path / "data", files) as core:
        files.gate.clear()
        task = asyncio.create_task(apply(core, journal_spec("test/cancelled")))
        await reached(files)
        task.cancel()
        files.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await apply(core, journal_spec("test/acknowledged"))
        now = [item.name for item in core.space]
        shutil.copytree(tmp_path / "data", tmp_path / "killed")
    assert now == ["test/acknowledged", "test/cancelled"]
    assert await names(tmp_path / "killed") == now


async def test_after_a_failed_sync_nothing_is_acknowledged(tmp_path: Path) -> None:
    files = GatedFiles(".spool")
    async with running(tmp_path / "data", files) as core:
        await apply(core, journal_spec())
        await send(core, b"one", journal=NAME)
        await send(core, b"two", journal=NAME)
        files.gate.clear()
        first = asyncio.create_task(send(core, b"lost", journal=NAME))
        await reached(files)
        # It streams and commits while the sync of the one before it is about to fail.
        second = asyncio.create_task(send(core, b"behind", journal=NAME))
        item = core.space.get(NAME)
        assert item is not None
        replica = await core.replica(item)
        await eventually(lambda: replica.head.offset >= len(b"onetwolostbehind"))
        files.fail_once("datasync", ".spool", errno.EIO)  # As the kernel tells an error once.
        files.gate.set()
        for task in (first, second):
            with pytest.raises(RpcError, match="input/output error"):
                await task
        assert await read(core, NAME, 0, 100) == b"onetwo"


class Stream:
    """Messages of an append, as they're given."""

    def __init__(self, core: BrokerCore, journal: str = NAME) -> None:
        self._queue: asyncio.Queue[pb.AppendRequest | bytes | None] = asyncio.Queue()
        self.give(pb.AppendRequest(journal=journal))
        self.task = asyncio.create_task(serve_append(core, CLAIMS, self._messages()))

    def give(self, *messages: pb.AppendRequest | bytes | None) -> None:
        for message in messages:
            self._queue.put_nowait(message)

    async def _messages(self) -> AsyncIterator[pb.AppendRequest | bytes]:
        while (message := await self._queue.get()) is not None:
            yield message

    async def commit(self) -> pb.AppendResponse:
        self.give(pb.AppendRequest(), None)
        return await self.task


async def holding(core: BrokerCore) -> None:
    item = core.space.get(NAME)
    assert item is not None
    replica = await core.replica(item)
    await eventually(lambda: replica.head.spool.delta)


@pytest.mark.parametrize("content", [b"", b"before "])
async def test_a_suspension_during_an_append(tmp_path: Path, content: bytes) -> None:
    async with running(tmp_path / "data", FileOps()) as core:
        await apply(core, journal_spec())
        if content:
            await send(core, content, journal=NAME)
            await send(core, content, journal=NAME)
        stream = Stream(core)
        stream.give(b"under way ")
        await holding(core)
        await apply(core, journal_spec(suspend={"level": Level.FULL}))
        # It resumes the journal, whose files the append above still has.
        following = asyncio.create_task(send(core, b"resumed", journal=NAME))
        await turns(50)
        response = await stream.commit()
        assert response.status == pb.Status.OK
        assert (await following).commit.begin == response.commit.end
        expected = content * 2 + b"under way resumed"
        assert await read(core, NAME, 0, len(expected)) == expected
    async with running(tmp_path / "data", FileOps()) as core:
        assert await read(core, NAME, 0, len(expected)) == expected
        assert (await send(core, journal=NAME)).commit.begin == len(expected)


async def test_a_deletion_during_an_append(tmp_path: Path) -> None:
    async with running(tmp_path / "data", FileOps()) as core:
        await apply(core, journal_spec())
        stream = Stream(core)
        stream.give(b"under way")
        await holding(core)
        await apply(core, delete=NAME)
        await apply(core, journal_spec())
        assert (await send(core, b"new life", journal=NAME)).commit.begin == 0
        response = await stream.commit()
        assert (response.status, response.commit.end) == (pb.Status.OK, 9)
        assert await read(core, NAME, 0, 100) == b"new life"
        directory = tmp_path / "data" / "journals"
        await eventually(lambda: len(list(directory.iterdir())) == 1)


async def test_a_suspension_is_of_the_journal_it_was_decided_for(tmp_path: Path) -> None:
    async with running(tmp_path / "data", FileOps()) as core:
        await apply(core, journal_spec())
        old = core.space.get(NAME)
        assert old is not None
        await apply(core, delete=NAME)
        await apply(core, journal_spec())
        await core.space_store.suspend(old, Level.FULL, 1024)
        new = core.space.get(NAME)
        assert new is not None
        assert not new.spec.HasField("suspend")


async def test_a_cancelled_roll_leaves_nothing_open(tmp_path: Path) -> None:
    files = GatedFiles(f"{3:016x}.spool")
    async with running(tmp_path / "data", files) as core:
        await apply(core, journal_spec())
        await send(core, b"one", journal=NAME)
        files.gate.clear()
        task = asyncio.create_task(core.flush(NAME))
        await reached(files)
        task.cancel()
        files.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        (directory,) = (tmp_path / "data" / "journals").iterdir()
        assert not list(directory.glob(f"{3:016x}*"))
        assert (await send(core, b"two", journal=NAME)).commit.begin == 3
        assert await read(core, NAME, 0, 6) == b"onetwo"


@pytest.mark.parametrize(("operation", "part"), [("open", ".log.tmp"), ("rename", "/meta/")])
async def test_a_snapshot_which_fails_is_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, part: str
) -> None:
    monkeypatch.setattr(meta_log, "SNAPSHOT_BYTES", 100)
    path, killed = tmp_path / "data", tmp_path / "killed"
    files = FaultyFiles()
    async with running(path, files) as core:
        (first,) = (path / "meta").iterdir()
        files.fail(operation, part)
        for number in range(5):
            await apply(core, journal_spec(f"test/journal-{number}"))
        assert files.failed
        assert list((path / "meta").iterdir()) == [first]
        shutil.copytree(path, killed)
        files.heal()
        for number in range(5, 10):
            await apply(core, journal_spec(f"test/journal-{number}"))
        assert len(list((path / "meta").iterdir())) == 2
    assert len(await names(killed)) == 5
    assert len(await names(path)) == 10


async def test_after_a_snapshot_that_may_be_durable_or_not_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meta_log, "SNAPSHOT_BYTES", 100)
    files = FaultyFiles()
    async with running(tmp_path / "data", files) as core:
        files.fail("sync_directory", "/meta", errno.EIO)
        await apply(core, journal_spec(labels=pb.label_set("long", "x" * 100)))
        assert files.failed == 1
        files.heal()
        with pytest.raises(RpcError, match="key space: input/output error"):
            await apply(core, journal_spec("test/refused"))
    assert await names(tmp_path / "data") == [NAME]


async def test_a_log_of_a_later_version_is_not_touched(tmp_path: Path) -> None:
    async with running(tmp_path / "data", FileOps()) as core:
        await apply(core, journal_spec())
        await send(core, b"content", journal=NAME)
    (log,) = (tmp_path / "data" / "journals").glob(f"*/{0:016x}.log")
    before = log.read_bytes()
    later = before + encode_record(b"jl" + bytes([max(EntryKind) + 1]) + b"of a later version")
    log.write_bytes(later)
    async with running(tmp_path / "data", FileOps()) as core:
        with pytest.raises(RpcError, match=f"unknown record at offset {len(before)}"):
            await send(core, b"more", journal=NAME)
    assert log.read_bytes() == later
    assert log.with_suffix(".spool").read_bytes() == b"content"


async def test_without_syncs_journals_which_the_key_space_never_knew_are_kept(
    tmp_path: Path,
) -> None:
    """A crash of the machine may lose what created a journal, and keep its files."""
    async with running(tmp_path / "data", BootedFiles("first"), "off") as core:
        await apply(core, journal_spec())
        await send(core, b"content", journal=NAME)
    shutil.rmtree(tmp_path / "data" / "meta")
    async with running(tmp_path / "data", BootedFiles("second"), "off") as core:
        await apply(core, journal_spec())
        assert (await send(core, b"new", journal=NAME)).commit.begin == 0
    (aside,) = (tmp_path / "data" / "journals").glob("*.orphan")
    assert (aside / f"{0:016x}.spool").read_bytes() == b"content"


async def test_with_syncs_a_journal_which_the_key_space_never_knew_is_a_sign_of_damage(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "data", FileOps()) as core:
        await apply(core, journal_spec())
        await send(core, b"content", journal=NAME)
    shutil.rmtree(tmp_path / "data" / "meta")
    with pytest.raises(pb.StoreError, match="revision 2 was acknowledged"):
        async with running(tmp_path / "data", FileOps()):
            pass


async def test_unsynced_content_of_closed_files_is_synced(tmp_path: Path) -> None:
    files = GatedFiles(".spool")
    async with running(tmp_path / "data", files, "interval") as core:
        await apply(core, journal_spec())
        await send(core, b"content", journal=NAME)
        for replica in core.replicas:
            replica.head.close_files()
            assert not replica.head.spool.is_open
        files.gate.clear()
        await reached(files)
        files.gate.set()


# Tokens


async def test_the_end_of_a_token_ends_what_it_allowed(tmp_path: Path) -> None:
    ended = pb.Claims(capability=pb.Capability.ALL, expires_at=int(time.time()) - 1)
    async with running(tmp_path / "data", FileOps(), auth_keys="c2VjcmV0") as core:
        await apply(core, journal_spec())
        await send(core, b"x" * 10, journal=NAME)
        await core.flush()
        await send(core, b"y" * 10, journal=NAME)

        async def messages() -> AsyncIterator[pb.AppendRequest | bytes]:
            yield pb.AppendRequest(journal=NAME)
            yield b"content"
            yield pb.AppendRequest()

        with pytest.raises(RpcError, match="deadline exceeded"):
            await serve_append(core, ended, messages())
        revision = core.space.revision
        change = pb.ApplyRequest.Change(upsert=journal_spec("test/other"))
        with pytest.raises(RpcError, match="context deadline exceeded"):
            await serve_apply(core, ended, pb.ApplyRequest(changes=[change]))
        assert core.space.revision == revision
        assert [replica.head.offset for replica in core.replicas] == [20]
        content: list[bytes] = []

        async def take(response: pb.ReadResponse | ContentChunk) -> None:
            if not isinstance(response, pb.ReadResponse):
                content.append(response.content)

        request = pb.ReadRequest(journal=NAME, min_etcd_revision=1)
        await serve_read(core, ended, request, take)
        assert content == [b"x" * 10], "it ends between two fragments"
        request.min_etcd_revision = 1 << 40
        with pytest.raises(RpcError, match="context deadline exceeded"):
            await serve_read(core, ended, request, take)
        listed: list[pb.ListResponse] = []

        async def collect(response: pb.ListResponse) -> None:
            listed.append(response)
            await apply(core, journal_spec("test/another"))  # There's always a change.

        await serve_list(core, ended, pb.ListRequest(watch=True), collect)
        assert len(listed) <= 2


# Stores


def test_paths_stay_within_their_store(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    store = FileFragmentStore(FileOps(), tmp_path, "file:///store/", sync=True)
    for path in ("../other/x", "a/../../other/x", "/etc/x"):
        with pytest.raises(pb.StoreError, match="leads out"):
            store.put(path, (b"content",))
        for operation in (store.open, store.stat, store.remove, store.sign_get):
            with pytest.raises(pb.StoreError, match="leads out"):
                operation(path)
        with pytest.raises(pb.StoreError, match="leads out"):
            list(store.list(path + "/"))
    replacing = FileFragmentStore(
        FileOps(), tmp_path, "file:///store/?find=inner&replace=../../other", sync=False
    )
    with pytest.raises(pb.StoreError, match="leads out"):
        replacing.put("inner/x", (b"content",))
    assert [path.name for path in tmp_path.rglob("*")] == ["store"]
    store.put("a/b/x", (b"content",))
    assert store.sign_get("a/b/x") == "file:///store/a/b/x"


def test_what_is_not_a_file_is_not_listed(tmp_path: Path) -> None:
    directory = tmp_path / "a"
    directory.mkdir()
    os.mkfifo(directory / "pipe")
    (directory / "loop").symlink_to("loop")
    (directory / "broken").symlink_to("missing")
    (directory / "circle").symlink_to(directory)
    (directory / "file").write_bytes(b"")
    (directory / "link").symlink_to("file")
    (directory / "through").symlink_to("file/below")
    (directory / "long").symlink_to("x" * 300)
    store = FileFragmentStore(FileOps(), tmp_path, "file:///", sync=False)
    assert sorted(listed.path for listed in store.list("a/")) == ["file"]
