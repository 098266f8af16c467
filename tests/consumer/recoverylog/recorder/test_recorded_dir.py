"""Recorded directories, against their local files and what playback makes of the log."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import JournalClient
from gazette_aio.consumer.recoverylog import (
    AsyncRecordedDir,
    RecordedDir,
    Recorder,
    RecorderError,
)
from gazette_aio.consumer.recoverylog.recording.encoder import MAX_WRITE_BYTES
from gazette_aio.consumer.recoverylog.recording.recorded_dir import TRUNCATING_PATH
from gazette_aio.protocol.recoverylog import FSMHints
from tests.cancellation import cancel_at_every_await
from tests.consumer.recoverylog.recorder.support import (
    LOG,
    SECOND,
    Played,
    kinds,
    open_recorder,
    play,
    read_log,
)


@pytest.fixture
async def recorder(client: JournalClient, tmp_path: Path) -> AsyncIterator[Recorder]:
    root = tmp_path / "recorded"
    root.mkdir()
    async with await open_recorder(client, directory=root) as recorder:
        yield recorder


@pytest.fixture
def directory(recorder: Recorder) -> RecordedDir:
    return RecordedDir(recorder)


def local_files(recorder: Recorder) -> dict[str, bytes]:
    root = Path(recorder.directory)
    return {
        "/" + str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
    }


async def check(client: JournalClient, recorder: Recorder) -> dict[str, bytes]:
    """Return the local files, which playback has as well."""
    hints = await recorder.build_hints()
    files = local_files(recorder)
    assert (await play(client)).files == files
    assert (await play(client, hints)).files == files
    return files


async def test_files(client: JournalClient, directory: RecordedDir):
    directory.mkdir("sub/directory")
    with directory.open("sub/directory/file", "x+b") as file:
        assert file.write(b"first-") == 6
        assert file.write(bytearray(b"second")) == 6
        assert file.pwrite(memoryview(b"F"), 0) == 1
        assert (file.tell(), file.size()) == (12, 12)
        assert file.seek(-6, os.SEEK_END) == 6
        assert file.read(3) == b"sec"
        assert file.write(b"OND") == 3
        assert file.seek(0) == 0
        assert file.read() == b"First-secOND"
        assert file.read() == b""
        assert file.seek(-2, os.SEEK_CUR) == 10
        assert file.pread(100, 6) == b"secOND"
        assert file.write(b"") == 0
        assert "at 10" in repr(file)
    assert file.closed
    file.close()
    with directory.open("sub/directory/file", "r+b") as file:
        file.seek(20)
        file.write(b"beyond")
    with directory.open("sub/directory/file") as file:
        assert file.read() == b"First-secOND" + bytes(8) + b"beyond"
    assert await check(client, directory.recorder) == {
        "/sub/directory/file": b"First-secOND" + bytes(8) + b"beyond"
    }


async def test_reading_advances_the_recorded_offset(client: JournalClient, directory: RecordedDir):
    with directory.open("file", "w+b") as file:
        file.write(b"0123456789")
        file.seek(0)
        assert file.read(4) == b"0123"
        file.write(b"xx")
    assert await check(client, directory.recorder) == {"/file": b"0123xx6789"}


async def test_modes(directory: RecordedDir):
    with pytest.raises(ValueError, match="invalid mode"):
        directory.open("file", "ab")  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        directory.open("file")
    with pytest.raises(FileNotFoundError):
        directory.open("file", "r+b")
    with directory.open("file", "r+b", create=True) as file:
        file.write(b"content")
    with pytest.raises(FileExistsError):
        directory.open("file", "xb")
    with directory.open("file", "r+b", create=True) as file:
        assert file.read() == b"content"
    with directory.open("file", "rb") as file, pytest.raises(OSError, match="Bad file"):
        file.write(b"content")
    with directory.open("file", "wb") as file:
        assert file.size() == 0
    assert directory.recorder.error is None


@pytest.mark.parametrize("name", ["/absolute", "..", "../escape", "sub/../../escape", "", "."])
async def test_names_that_lead_elsewhere(directory: RecordedDir, name: str):
    for call in (
        lambda: directory.open(name, "wb"),
        lambda: directory.remove(name),
        lambda: directory.rename("file", name),
        lambda: directory.link("file", name),
        lambda: directory.mkdir(name),
        lambda: directory.write_file_atomic(name, b"", temporary="temporary"),
    ):
        with pytest.raises(ValueError, match=r"isn't (relative|below)"):
            call()


async def test_what_fails_locally_is_not_recorded(client: JournalClient, directory: RecordedDir):
    directory.mkdir("directory/within")
    directory.open("file", "w+b").close()
    for call in (
        lambda: directory.open("missing/file", "wb"),
        lambda: directory.open("directory", "wb"),
        lambda: directory.remove("missing"),
        lambda: directory.rename("missing", "file"),
        lambda: directory.rename("file", "directory"),
        lambda: directory.rename("file", "missing/file"),
        lambda: directory.link("file", "missing/file"),
        lambda: directory.link("file", "file"),
    ):
        with pytest.raises(OSError):
            call()
    with pytest.raises(ValueError, match="isn't a recorded file"):
        directory.rename("directory", "other")
    with directory.open("file") as file:
        with pytest.raises(ValueError, match="negative"):
            file.seek(-1)
        with pytest.raises(ValueError, match="negative"):
            file.truncate(-1)
        with pytest.raises(ValueError, match="whence"):
            file.seek(0, 9)
    with pytest.raises(ValueError, match="closed"):
        file.read()
    assert await check(client, directory.recorder) == {"/file": b""}


async def test_files_that_are_not_recorded(directory: RecordedDir):
    local = Path(directory.recorder.directory) / "LOG"
    local.write_bytes(b"not recorded")
    with directory.open("LOG") as file:
        assert file.read() == b"not recorded"
    with pytest.raises(ValueError, match="isn't recorded"):
        directory.open("LOG", "r+b", create=True)
    with pytest.raises(ValueError, match="isn't a recorded file"):
        directory.remove("LOG")
    assert directory.recorder.error is None


async def test_a_short_write(
    client: JournalClient, directory: RecordedDir, monkeypatch: pytest.MonkeyPatch
):
    """The bytes which were written before a failure are recorded, and no others."""
    pwrite, written = os.pwrite, 0

    def write_some(descriptor: int, data: bytes, offset: int) -> int:
        nonlocal written
        if written:
            raise OSError(errno.ENOSPC, "disk full")
        written = pwrite(descriptor, data[:4], offset)
        return written

    with directory.open("file", "w+b") as file:
        monkeypatch.setattr(os, "pwrite", write_some)
        with pytest.raises(OSError, match="disk full"):
            file.write(b"0123456789")
        monkeypatch.undo()
        assert file.tell() == 0
    assert await check(client, directory.recorder) == {"/file": b"0123"}


async def test_renames_and_links(client: JournalClient, directory: RecordedDir):
    for name in ("one", "two", "three"):
        with directory.open(name, "w+b") as file:
            file.write(name.encode())
    directory.rename("one", "two")
    directory.rename("two", "two")
    directory.link("two", "linked")
    directory.rename("linked", "two")
    directory.remove("three")
    assert await check(client, directory.recorder) == {"/two": b"one", "/linked": b"one"}


async def test_a_property(client: JournalClient, directory: RecordedDir):
    def write(name: str, content: bytes) -> None:
        with directory.open(name, "w+b") as file:
            file.write(content)

    write("IDENTITY.dbtmp", b"first")
    directory.rename("IDENTITY.dbtmp", "IDENTITY")
    write("IDENTITY.dbtmp", b"second")
    directory.rename("IDENTITY.dbtmp", "IDENTITY")
    write("other", b"\xff")
    with pytest.raises(ValueError, match="utf-8"):
        directory.rename("other", "IDENTITY")
    for call in (
        lambda: directory.open("IDENTITY", "wb"),
        lambda: directory.link("other", "IDENTITY"),
        lambda: directory.remove("IDENTITY"),
        lambda: directory.rename("IDENTITY", "other"),
    ):
        with pytest.raises(ValueError, match=r"is a property|isn't a recorded file"):
            call()
    with directory.open("IDENTITY") as file:
        assert file.read() == b"second"
    assert await check(client, directory.recorder) == {"/IDENTITY": b"second", "/other": b"\xff"}


@pytest.mark.parametrize("size", [0, 5, 10, 25])
async def test_truncation(client: JournalClient, directory: RecordedDir, size: int):
    """It holds for all paths and open files, of which writes go on."""
    with directory.open("file", "w+b") as file, directory.open("file", "r+b") as other:
        file.write(b"0123456789")
        directory.link("file", "linked")
        before = directory.recorder.links()["/file"]
        file.seek(size)
        assert file.truncate() == size
        assert (directory.recorder.links()["/file"] == before) is (size >= 10)
        other.pwrite(b"x", 1)
        file.pwrite(b"y", 2)
        with directory.open("linked", "r+b") as linked:
            linked.pwrite(b"z", 3)
    expected = bytearray(b"0123456789"[:size].ljust(max(size, 4), b"\0"))
    expected[1:4] = b"xyz"
    assert await check(client, directory.recorder) == dict.fromkeys(
        ("/file", "/linked"), bytes(expected)
    )


async def test_truncation_of_a_long_file(client: JournalClient, directory: RecordedDir):
    content = os.urandom(1 << 10) * 3000
    with directory.open("file", "w+b") as file:
        file.write(content)
        file.truncate(2 * MAX_WRITE_BYTES + 7)
    files = await check(client, directory.recorder)
    assert files == {"/file": content[: 2 * MAX_WRITE_BYTES + 7]}


async def test_a_truncation_of_a_long_name(
    client: JournalClient, directory: RecordedDir, tmp_path: Path
):
    """Playback to any operation of it makes files of names that file systems permit."""
    name = "n" * 255
    with directory.open(name, "w+b") as file:
        file.write(b"0123456789")
        file.truncate(4)
    await directory.recorder.barrier()
    content = await read_log(client)
    for op in (await play(client)).ops:
        for path in Played(content[: op.last_offset], FSMHints(log=LOG)).files:
            (tmp_path / path[1:]).touch()
    assert await check(client, directory.recorder) == {f"/{name}": b"0123"}


async def test_short_reads_of_a_truncation(
    client: JournalClient, directory: RecordedDir, monkeypatch: pytest.MonkeyPatch
):
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda file, size, offset: pread(file, min(size, 3), offset))
    with directory.open("file", "w+b") as file:
        file.write(b"0123456789")
        file.truncate(8)
    assert await check(client, directory.recorder) == {"/file": b"01234567"}


@pytest.mark.parametrize("is_error", [True, False])
async def test_a_truncated_file_that_cannot_be_read(
    client: JournalClient,
    directory: RecordedDir,
    monkeypatch: pytest.MonkeyPatch,
    is_error: bool,
):
    """It was shortened, and the history doesn't have that: nothing may follow."""

    def fail(*_: int) -> bytes:
        if is_error:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return b""

    with directory.open("file", "w+b") as file:
        file.write(b"0123456789")
        await directory.recorder.barrier()
        with monkeypatch.context() as patch:
            patch.setattr(os, "pread", fail)
            with pytest.raises(OSError, match="Errno 5"):
                file.truncate(8)
        with pytest.raises(RecorderError, match="truncated file can't be read"):
            file.write(b"x")
    with pytest.raises(RecorderError, match="truncated file can't be read"):
        await directory.recorder.barrier()
    assert (await play(client)).files == {"/file": b"0123456789"}


async def test_a_truncation_is_broken_off_at_each_operation(
    client: JournalClient, directory: RecordedDir
):
    """The file is as before, or as after. In between, it's missing within one append only."""
    with directory.open("file", "w+b") as file:
        file.write(b"0123456789")
        before = (await play(client)).ops
        file.truncate(4)
    await directory.recorder.barrier()
    content = await read_log(client)
    seen = set()
    for op in (await play(client)).ops[len(before) + 2 :]:
        files = Played(content[: op.last_offset], FSMHints(log=LOG)).files
        seen.add(files.get("/file"))
    assert seen == {b"0123456789", b"0123", None}


def created(recorder: Recorder, path: str) -> None:
    """Create and record an empty file, as other members may."""
    local = Path(recorder.directory + path)
    local.parent.mkdir(exist_ok=True)
    local.write_bytes(b"")
    recorder.record_create(local)


async def test_leftovers_are_removed(client: JournalClient, recorder: Recorder):
    created(recorder, TRUNCATING_PATH)
    directory = RecordedDir(recorder)
    with pytest.raises(ValueError, match="is reserved"):
        directory.open(TRUNCATING_PATH[1:], "wb")
    assert await check(client, recorder) == {}


async def test_files_of_others_whose_names_are_like_those_of_leftovers_stay(
    client: JournalClient, recorder: Recorder
):
    """Other members, which may be of another implementation, know no reserved names."""
    names = ["file.truncating", "sub/.truncating"]
    for name in names:
        created(recorder, f"/{name}")
    directory = RecordedDir(recorder)
    for name in names:
        with directory.open(name, "r+b") as file:
            file.write(b"0123456789")
            file.truncate(4)
    assert await check(client, recorder) == {f"/{name}": b"0123" for name in names}


async def test_removed_files_stay_open(client: JournalClient, directory: RecordedDir):
    with directory.open("removed", "w+b") as removed, directory.open("other", "w+b") as replaced:
        directory.remove("removed")
        directory.open("new", "w+b").close()
        directory.rename("new", "other")
        for file in (removed, replaced):
            file.write(b"content")
            file.truncate(3)
            file.seek(0)
            assert file.read() == b"con"
    assert await check(client, directory.recorder) == {"/other": b""}


async def test_write_file_atomic(
    client: JournalClient, broker: EmbeddedBroker, directory: RecordedDir
):
    appends = broker.control.observe("append", journal=LOG)
    for content in ([b"one\n", b"two\n", b"three\n"], b"once more"):
        directory.write_file_atomic("state.json", content, temporary="next.json")
    await directory.recorder.barrier()
    assert len(appends.requests) == 1
    assert await check(client, directory.recorder) == {"/state.json": b"once more"}
    commit = ["create", "write", "write", "write", "link", "unlink"]
    again = ["create", "write", "unlink", "link", "unlink"]
    assert kinds((await play(client)).ops)[1:] == commit + again

    def failing() -> list[bytes]:
        raise OSError("no content")

    with contextlib.suppress(OSError):
        directory.write_file_atomic("state.json", iter(failing, None))  # type: ignore[arg-type]
    files = await check(client, directory.recorder)
    assert files == {"/state.json": b"once more", "/state.json.next": b""}


async def test_write_file_atomic_is_one_append_of_any_length(
    client: JournalClient, directory: RecordedDir
):
    """Nothing of it is appended before its end."""
    begun, goes_on = threading.Event(), threading.Event()

    def chunks() -> Iterator[bytes]:
        yield bytes(2 * MAX_WRITE_BYTES)
        begun.set()
        goes_on.wait()
        yield b"end"

    writing = asyncio.ensure_future(
        asyncio.to_thread(directory.write_file_atomic, "state", chunks())
    )
    await asyncio.to_thread(begun.wait)
    barrier = directory.recorder.barrier()
    head = len(await read_log(client))
    for _ in range(5):
        await client.append(LOG, b"")
    assert not barrier.done()
    goes_on.set()
    await writing
    assert (await barrier).commit.begin == head
    assert await check(client, directory.recorder) == {
        "/state": bytes(2 * MAX_WRITE_BYTES) + b"end"
    }


async def test_a_failed_recorder(client: JournalClient, directory: RecordedDir):
    played = await play(client)
    async with await open_recorder(
        client, fsm=played.fsm, author=SECOND, fence=True, read_through=played.end
    ):
        directory.open("file", "w+b").close()
        with contextlib.suppress(RecorderError):
            await directory.recorder.barrier()
        with pytest.raises(RecorderError):
            directory.open("other", "w+b")
        with pytest.raises(RecorderError):
            await asyncio.to_thread(directory.remove, "file")


async def test_sync_waits_in_threads(client: JournalClient, directory: RecordedDir):
    def write() -> None:
        with directory.open("file", "w+b") as file:
            file.write(b"content")
            file.sync()

    await asyncio.to_thread(write)
    assert (await play(client)).files == {"/file": b"content"}


async def test_threads_write_overlapping_ranges(client: JournalClient, directory: RecordedDir):
    """The order in the log is that of the local writes."""
    with directory.open("file", "w+b") as file:

        def write(number: int) -> None:
            for step in range(100):
                file.pwrite(bytes([number]) * 50, (number * 7 + step * 13) % 200)
                if step % 10 == 0:
                    file.truncate(100)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
    await check(client, directory.recorder)


async def test_async_facade(client: JournalClient, directory: RecordedDir):
    recorded = AsyncRecordedDir(directory)
    await recorded.mkdir("sub")
    async with await recorded.open("sub/file", "x+b") as file:
        assert await file.write(b"0123456789") == 10
        assert await file.pwrite(b"x", 0) == 1
        assert await file.seek(2) == file.tell() == 2
        assert await file.read(2) == b"23"
        assert await file.pread(1, 0) == b"x"
        assert await file.truncate(5) == await file.size() == 5
        assert (await file.sync()).commit.end
        assert not file.closed
    assert file.closed
    await recorded.link("sub/file", "linked")
    await recorded.rename("linked", "renamed")
    await recorded.remove("sub/file")
    await recorded.write_file_atomic("state", b"content")
    assert await check(client, directory.recorder) == {
        "/renamed": b"x1234",
        "/state": b"content",
    }


async def test_the_facade_is_cancelled_at_each_await(client: JournalClient, directory: RecordedDir):
    recorded = AsyncRecordedDir(directory)

    async def use() -> None:
        async with await recorded.open("file", "w+b") as file:
            await file.write(b"content")
            await file.truncate(3)
            await file.sync()
        await recorded.write_file_atomic("state", b"content")
        await recorded.rename("file", "renamed")

    async def check_files() -> None:
        await check(client, directory.recorder)

    assert await cancel_at_every_await(use, check_files) >= 6
