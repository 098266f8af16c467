"""Recorded directories, against their local files and what playback makes of the log."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import JournalClient
from gazette_aio.consumer.recoverylog import RecordedDir, RecordedFile, Recorder, RecorderError
from gazette_aio.consumer.recoverylog.recording.encoder import MAX_WRITE_BYTES
from tests.consumer.recoverylog.recorder.support import (
    LOG,
    kinds,
    open_recorder,
    play,
    read_log,
    take_over,
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


def content_of(file: RecordedFile) -> bytes:
    return os.pread(file.fileno(), 100, 0)


async def test_files(client: JournalClient, directory: RecordedDir):
    directory.path("sub/directory").mkdir(parents=True)
    with directory.open("sub/directory/file", "x") as file:
        assert file.pwrite(b"first-", 0) == 6
        assert file.pwrite(bytearray(b"second"), 6) == 6
        assert file.pwrite(memoryview(b"F"), 0) == 1
        assert file.pwrite(b"", 50) == 0
    file.close()
    with directory.open("sub/directory/file", "r") as file:
        file.pwrite(b"beyond", 20)
        assert content_of(file) == b"First-second" + bytes(8) + b"beyond"
    assert await check(client, directory.recorder) == {
        "/sub/directory/file": b"First-second" + bytes(8) + b"beyond"
    }


async def test_modes(client: JournalClient, directory: RecordedDir):
    with pytest.raises(ValueError, match="invalid mode"):
        directory.open("file", "a")  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        directory.open("file", "r")
    with directory.open("file", "w") as file:
        file.pwrite(b"content", 0)
    with pytest.raises(FileExistsError):
        directory.open("file", "x")
    with directory.open("file", "r") as file:
        assert content_of(file) == b"content"
    assert directory.recorder.error is None
    assert await check(client, directory.recorder) == {"/file": b"content"}


async def test_an_emptied_file_is_another_one(client: JournalClient, directory: RecordedDir):
    """Other names and open files keep the former one, as they do in the history."""
    with directory.open("file", "w") as former:
        former.pwrite(b"0123456789", 0)
        directory.link("file", "linked")
        with directory.open("file", "w") as file:
            file.pwrite(b"new", 0)
        former.pwrite(b"x", 1)
    assert await check(client, directory.recorder) == {"/file": b"new", "/linked": b"0x23456789"}


@pytest.mark.parametrize("name", ["/absolute", "..", "../escape", "sub/../../escape", "", "."])
async def test_names_that_lead_elsewhere(directory: RecordedDir, name: str):
    for call in (
        lambda: directory.open(name, "w"),
        lambda: directory.remove(name),
        lambda: directory.rename("file", name),
        lambda: directory.link("file", name),
        lambda: directory.write_file_atomic(name, b"", temporary="temporary"),
    ):
        with pytest.raises(ValueError, match=r"isn't (relative|below)"):
            call()


async def test_what_fails_locally_is_not_recorded(client: JournalClient, directory: RecordedDir):
    directory.path("directory/within").mkdir(parents=True)
    directory.open("file", "w").close()
    for call in (
        lambda: directory.open("missing/file", "w"),
        lambda: directory.open("directory", "w"),
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
    with directory.open("file", "r") as file:
        pass
    with pytest.raises(ValueError, match="closed"):
        file.pwrite(b"content", 0)
    assert await check(client, directory.recorder) == {"/file": b""}


async def test_files_that_are_not_recorded(directory: RecordedDir):
    local = Path(directory.recorder.directory) / "LOG"
    local.write_bytes(b"not recorded")
    with pytest.raises(ValueError, match="isn't a recorded file"):
        directory.open("LOG", "r")
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

    with directory.open("file", "w") as file:
        monkeypatch.setattr(os, "pwrite", write_some)
        with pytest.raises(OSError, match="disk full"):
            file.pwrite(b"0123456789", 0)
        monkeypatch.undo()
    assert await check(client, directory.recorder) == {"/file": b"0123"}


async def test_renames_and_links(client: JournalClient, directory: RecordedDir):
    for name in ("one", "two", "three"):
        with directory.open(name, "w") as file:
            file.pwrite(name.encode(), 0)
    directory.rename("one", "two")
    directory.rename("two", "two")
    directory.link("two", "linked")
    directory.rename("linked", "two")
    directory.remove("three")
    assert await check(client, directory.recorder) == {"/two": b"one", "/linked": b"one"}


async def test_a_property(client: JournalClient, directory: RecordedDir):
    def write(name: str, content: bytes) -> None:
        with directory.open(name, "w") as file:
            file.pwrite(content, 0)

    write("IDENTITY.dbtmp", b"first")
    directory.rename("IDENTITY.dbtmp", "IDENTITY")
    write("IDENTITY.dbtmp", b"second")
    directory.rename("IDENTITY.dbtmp", "IDENTITY")
    write("other", b"\xff")
    with pytest.raises(ValueError, match="utf-8"):
        directory.rename("other", "IDENTITY")
    for call in (
        lambda: directory.open("IDENTITY", "w"),
        lambda: directory.link("other", "IDENTITY"),
        lambda: directory.remove("IDENTITY"),
        lambda: directory.rename("IDENTITY", "other"),
    ):
        with pytest.raises(ValueError, match=r"is a property|isn't a recorded file"):
            call()
    assert await check(client, directory.recorder) == {"/IDENTITY": b"second", "/other": b"\xff"}


async def test_removed_files_stay_open(client: JournalClient, directory: RecordedDir):
    with directory.open("removed", "w") as removed, directory.open("other", "w") as replaced:
        directory.remove("removed")
        directory.open("new", "w").close()
        directory.rename("new", "other")
        for file in (removed, replaced):
            file.pwrite(b"content", 0)
            assert content_of(file) == b"content"
    assert await check(client, directory.recorder) == {"/other": b""}


async def test_write_file_atomic(
    client: JournalClient, broker: EmbeddedBroker, directory: RecordedDir
):
    appends = broker.control.observe("append", journal=LOG)
    for content in ([b"one\n", b"two\n", b"three\n"], bytearray(b"once more")):
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


async def test_numbers_are_no_content(client: JournalClient, directory: RecordedDir):
    """Python would make each of them as many zeros."""
    number: Any = 5
    fnode = directory.recorder.record_create(directory.path("recorded"))
    with directory.open("file", "w") as file, pytest.raises(TypeError):
        file.pwrite(number, 0)
    with pytest.raises(TypeError):
        directory.recorder.record_write_at(fnode, number, 0)
    with pytest.raises(TypeError):
        directory.write_file_atomic("atomic", [number], temporary="next")
    assert directory.path("file").read_bytes() == b""
    await directory.recorder.barrier()
    assert (await play(client)).files == {"/recorded": b"", "/file": b"", "/next": b""}


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
    async with await take_over(client):
        directory.open("file", "w").close()
        with contextlib.suppress(RecorderError):
            await directory.recorder.barrier()
        with pytest.raises(RecorderError):
            directory.open("other", "w")
        with pytest.raises(RecorderError):
            await asyncio.to_thread(directory.remove, "file")


async def test_threads_write_overlapping_ranges(client: JournalClient, directory: RecordedDir):
    """The order in the log is that of the local writes."""
    with directory.open("file", "w") as file:

        def write(number: int) -> None:
            for step in range(100):
                file.pwrite(bytes([number]) * 50, (number * 7 + step * 13) % 200)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
    await check(client, directory.recorder)
