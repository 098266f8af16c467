"""Content of pending appends on disks which are full, or become so."""

from __future__ import annotations

import asyncio
import errno
import functools
import itertools
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis.strategies import DataObject, data, integers, sampled_from

import gazette_aio.protocol as pb
from gazette_aio.aio.threads import in_thread
from gazette_aio.client import AppendService, JournalClient
from gazette_aio.client.appends import content_buffer, journal_appends, spool
from gazette_aio.client.appends.content_buffer import SPILL_BYTES, ContentBuffer, chunks
from gazette_aio.client.appends.spool import Spool
from gazette_aio.testing.stub_broker import StubBroker
from tests.client.appends.spool_files import SpoolFiles, full_disk, unlimited
from tests.client.support import JOURNAL, MemoryJournals
from tests.waiting import eventually, turns


class Disk(SpoolFiles):
    """Files which accept so many bytes in all, and then no more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
        super().__init__(monkeypatch, self._limit)
        self.room = room

    def _limit(self, name: str, size: int) -> int | None:
        if name != "write":
            return None
        count = min(size, self.room)
        if not count:
            full_disk()
        self.room -= count
        return count


async def whole(spooled: Spool) -> bytes:
    filed = [piece async for piece in spooled.filed()]
    return b"".join((*spooled.buffer.head, *filed, *spooled.buffer.rest))


@functools.cache
def pattern(size: int, first: int = 0) -> bytes:
    return bytes((first + number // 251 + number) % 251 for number in range(size))


async def test_a_disk_which_becomes_full_and_is_not_later(monkeypatch: pytest.MonkeyPatch) -> None:
    size = SPILL_BYTES + 1000
    disk = Disk(monkeypatch, size - 300)
    buffer = ContentBuffer()
    spooled = Spool(buffer)
    content = pattern(size)
    buffer.append(content)
    spooled.spill()
    await spooled.idle()
    # What got there is there, and the rest is kept.
    assert (buffer.filed, buffer.unsettled_bytes, spooled.failures) == (size - 300, 300, 0)
    spooled.spill()
    await spooled.idle()
    assert await whole(spooled) == content

    more = pattern(SPILL_BYTES, 7)
    buffer.append(more)
    for failures in (1, 2):
        spooled.spill()
        await spooled.idle()
        assert (buffer.filed, spooled.failures) == (size - 300, failures)
        assert await whole(spooled) == content + more

    # It has exactly the room which is needed.
    disk.room = SPILL_BYTES + 300
    spooled.spill()
    await spooled.idle()
    assert (buffer.unsettled_bytes, spooled.failures, disk.room) == (0, 0, 0)
    assert await whole(spooled) == content + more

    # Rolled back behind what the file has, and written anew.
    buffer.truncate(100)
    buffer.append(more)
    disk.room = 1 << 30
    spooled.spill()
    await spooled.idle()
    assert await whole(spooled) == content[:100] + more
    spooled.close()
    await spooled.idle()
    assert [file.closed for file in disk.files] == [True]


async def test_rolling_back_while_content_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    Disk(monkeypatch, 1 << 30)
    buffer = ContentBuffer()
    spooled = Spool(buffer)
    buffer.append(pattern(SPILL_BYTES))
    spooled.spill()
    buffer.truncate(10)
    buffer.append(b"behind")
    await spooled.idle()
    assert await whole(spooled) == pattern(10) + b"behind"
    buffer.append(bytes(SPILL_BYTES))
    spooled.spill()
    spooled.close()  # Under the thread at work.
    spooled.close()
    await spooled.idle()


def tasks_of_spools() -> list[asyncio.Task[object]]:
    return [task for task in asyncio.all_tasks() if task.get_name() == "gazette append spool"]


async def moved(spooled: Spool, content: bytes) -> None:
    """Append `content`, and wait until it's in the file."""
    spooled.buffer.append(content)
    spooled.spill()
    await spooled.idle()


async def test_only_a_replay_seeks(monkeypatch: pytest.MonkeyPatch) -> None:
    files = SpoolFiles(monkeypatch)
    spooled = Spool(ContentBuffer())
    pieces = [pattern(SPILL_BYTES + first, first) for first in range(12)]
    for piece in pieces:
        await moved(spooled, piece)
    assert files.calls == ["open"] + ["write"] * 12
    for _ in range(2):
        files.calls.clear()
        assert await whole(spooled) == b"".join(pieces)
        assert files.calls == ["seek"] + ["read"] * 4  # A mebibyte each.
    spooled.close()
    await spooled.idle()
    assert files.calls[-1] == "close"


async def test_what_is_added_during_a_partial_write_follows_its_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second, third = (pattern(SPILL_BYTES, number) for number in (1, 2, 3))
    adding, added = threading.Event(), threading.Event()
    written: list[int] = []

    def write_a_part(name: str, size: int) -> int | None:
        if name != "write":
            return None
        written.append(size)
        if len(written) == 1:
            adding.set()
            assert added.wait(30)
            return 1000
        if len(written) == 2:
            full_disk()
        return None

    SpoolFiles(monkeypatch, write_a_part)
    buffer = ContentBuffer()
    spooled = Spool(buffer)
    buffer.append(first)
    spooled.spill()
    await in_thread(adding.wait, 30)
    buffer.append(second)
    buffer.append(third)
    added.set()
    await spooled.idle()
    assert (buffer.filed, spooled.failures) == (1000, 0)
    assert await whole(spooled) == first + second + third
    await moved(spooled, b"end")
    assert (buffer.filed, buffer.unsettled_bytes) == (buffer.length, 0)
    assert await whole(spooled) == first + second + third + b"end"
    spooled.close()
    await spooled.idle()


@pytest.mark.parametrize("size", [1, 1000, SPILL_BYTES, 3 << 20, 1 << 30])
def test_long_content_in_memory(size: int) -> None:
    """More than is joined at once, in pieces of any length, during a move."""
    lengths = [SPILL_BYTES, 0, 1, 1 << 20, 999, 1000, 1001, 700 << 10, 300 << 10, 3, 0]
    if size == 1:
        lengths = [7, 0, 1, 3]
    pieces = [pattern(length, first) for first, length in enumerate(lengths)]
    buffer = ContentBuffer()
    for number, piece in enumerate(pieces):
        buffer.append(piece)
        if number == 1:
            buffer.begin_move()
    parts = [b"".join(chunk) for chunk in chunks(buffer.rest, size)]
    assert [len(part) for part in parts[:-1]] == [size] * (len(parts) - 1)
    assert 0 < len(parts[-1]) <= size
    assert b"".join(parts) == b"".join(pieces)


@given(data())
def test_a_buffer_is_its_content(data: DataObject) -> None:
    """Any order of appending, truncating and moving, whose end is written wholly or in part."""
    buffer, expected, file = ContentBuffer(), b"", bytearray()
    moving, at = b"", 0
    for number in range(data.draw(integers(1, 12))):
        match data.draw(sampled_from(["append", "truncate", "begin", "end"])):
            case "append":
                content = pattern(data.draw(integers(0, 20)), number)
                buffer.append(content)
                expected += content
            case "truncate":
                length = data.draw(integers(0, len(expected)))
                buffer.truncate(length)
                expected = expected[:length]
            case "begin" if not buffer.moving and buffer.tail_bytes:
                moving, at = buffer.begin_move(), buffer.filed
            case "end" if buffer.moving:
                written = data.draw(integers(0, len(moving)))
                # The file may be longer, by content that was truncated.
                file[at : at + written] = moving[:written]
                buffer.end_move(written)
            case _:
                pass
        assert bytes(file[: buffer.filed]) + b"".join(buffer.rest) == expected
        assert (buffer.length, buffer.unsettled_bytes) == (
            len(expected),
            len(expected) - buffer.filed,
        )


async def a_life(spooled: Spool) -> bytes:
    """Use each call of a file more than once, and return the content. Failed reads are repeated."""
    one, two, three = (pattern(SPILL_BYTES + 10 * number, number) for number in (1, 2, 3))
    expected = b""
    for content in (one, two):
        await moved(spooled, content)
        expected += content
    while True:
        try:
            assert await whole(spooled) == expected
        except OSError:
            continue
        break
    spooled.buffer.truncate(SPILL_BYTES // 2)
    expected = expected[: SPILL_BYTES // 2]
    for content in (three, one):
        await moved(spooled, content)
        expected += content
    while spooled.buffer.tail_bytes >= SPILL_BYTES:
        spooled.spill()
        await spooled.idle()
    return expected


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("failures", [1, 2])
async def test_a_failure_of_each_call(
    monkeypatch: pytest.MonkeyPatch, error: int, failures: int
) -> None:
    """The next one may fail as well, and another spool writes meanwhile."""

    async def run(failing: int) -> int:
        count = itertools.count()

        def fail(name: str, size: int) -> int | None:
            if failing <= next(count) < failing + failures:
                raise OSError(error, os.strerror(error))
            return size // 2 if name == "write" and size > 100_000 else None

        files = SpoolFiles(monkeypatch, fail)
        spools = [Spool(ContentBuffer()) for _ in range(2)]
        contents = await asyncio.gather(*map(a_life, spools))
        total = len(files.calls)
        files.seam = unlimited
        for spooled, expected in zip(spools, contents, strict=True):
            assert await whole(spooled) == expected, failing
        files.seam = fail
        for spooled in spools:
            spooled.close()
            await spooled.idle()
        assert (files.misuses, files.all_closed) == ([], True)
        return total

    failing = 0
    while failing <= await run(failing):
        failing += 1
    assert failing > 30


@pytest.mark.parametrize("cancellations", [1, 3])
async def test_tasks_cancelled_during_each_call(
    monkeypatch: pytest.MonkeyPatch, cancellations: int
) -> None:
    """The end of an event loop cancels the tasks of spools, while a thread uses the file."""

    async def run(stopping: int) -> bool:
        count = itertools.count()
        entered, left = threading.Event(), threading.Event()

        def stop(name: str, size: int) -> None:
            if next(count) == stopping:
                entered.set()
                assert left.wait(30)

        files = SpoolFiles(monkeypatch, stop)
        spooled = Spool(ContentBuffer())

        async def live() -> None:
            expected = await a_life(spooled)
            assert await whole(spooled) == expected
            spooled.close()
            await spooled.idle()

        living = asyncio.create_task(live())
        in_a_call = asyncio.create_task(in_thread(entered.wait, 30))
        await asyncio.wait((living, in_a_call), return_when=asyncio.FIRST_COMPLETED)
        if living.done():
            entered.set()
            await in_a_call
            await living
            return False
        (using,) = tasks_of_spools()
        for _ in range(cancellations):
            using.cancel()
            await turns(5)
        # Neither closed nor used by others before the thread has left.
        spooled.close()
        await turns(5)
        assert not using.done()
        assert not any(file.closed for file in files.files)
        left.set()
        living.cancel()
        await asyncio.wait((living, using))
        await spooled.idle()
        assert (files.misuses, files.all_closed) == ([], True), stopping
        return True

    stopping = 0
    while await run(stopping):
        stopping += 1
    assert stopping > 8


async def test_a_close_cancelled_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    files = SpoolFiles(monkeypatch)
    spooled = Spool(ContentBuffer())
    await moved(spooled, pattern(SPILL_BYTES))
    spooled.close()
    (closing,) = tasks_of_spools()
    closing.cancel()
    await spooled.idle()
    assert (files.misuses, files.all_closed) == ([], True)


async def test_cancelled_moves_and_reads_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that was cancelled may have come to its end: the file is at no known position."""
    entered, left = threading.Event(), threading.Event()

    def stop(name: str, size: int) -> None:
        if name in ("write", "read"):
            entered.set()
            assert left.wait(30)

    files = SpoolFiles(monkeypatch, stop)
    spooled = Spool(ContentBuffer())
    content = pattern(SPILL_BYTES)
    spooled.buffer.append(content)
    spooled.spill()
    await in_thread(entered.wait, 30)
    (using,) = tasks_of_spools()
    using.cancel()
    left.set()
    await spooled.idle()
    assert (spooled.buffer.filed, spooled.failures) == (0, 1)
    await moved(spooled, b"more")
    assert files.calls == ["open", "write", "seek", "write"]
    assert await whole(spooled) == content + b"more"

    entered.clear()
    left.clear()
    reading = asyncio.create_task(whole(spooled))
    await in_thread(entered.wait, 30)
    reading.cancel()
    await asyncio.wait((reading,))
    assert reading.cancelled()  # It doesn't wait for a slow disk.
    left.set()
    assert await whole(spooled) == content + b"more"
    spooled.close()
    await spooled.idle()
    assert (files.misuses, files.all_closed) == ([], True)


@pytest.fixture
async def journals(broker: StubBroker) -> AsyncIterator[MemoryJournals]:
    journals = MemoryJournals(broker)
    yield journals
    journals.gate.set()


def none_moves() -> bool:
    """Whether no spool uses its file."""
    return all(task.get_name() != "gazette append spool" for task in asyncio.all_tasks())


@pytest.mark.parametrize("memory", [0, 10])
@pytest.mark.parametrize("room", [0, 3, 7, 1 << 20])
async def test_a_pipeline_through_a_tiny_spool(
    client: JournalClient,
    journals: MemoryJournals,
    monkeypatch: pytest.MonkeyPatch,
    room: int,
    memory: int,
) -> None:
    """Roll-backs before, between and behind what's kept, most of which is in the file by then."""
    client.context.append_memory.free_bytes = memory
    for module in (content_buffer, spool, journal_appends):
        monkeypatch.setattr(module, "SPILL_BYTES", 7)
    disk = Disk(monkeypatch, room)
    async with AppendService(client) as service:
        journals.gate.clear()
        blocking = service.try_append("b/journal", b"first")
        for data, is_kept in (
            (b"aborted first write", False),
            (b"write one", True),
            (b"ABT", False),
            (b" write two", True),
            (b"ABORT ABORT", False),
        ):
            append = await service.start_append(JOURNAL, [blocking] if blocking else [])
            append.write(data[:4])
            append.write(data[4:])
            await eventually(none_moves)
            if is_kept:
                append.release()
            else:
                append.roll_back(pb.StoreError("whoops"))
            await eventually(none_moves)
        journals.gate.set()
        await service.flush()
    assert (JOURNAL, b"write one write two") in journals.appended
    assert len(disk.files) >= 1
    assert disk.all_closed
    assert client.context.append_memory.free_bytes == memory


@pytest.mark.usefixtures("no_memory")
async def test_files_are_gone_once_appended(
    client: JournalClient, journals: MemoryJournals, tmp_path: Path
) -> None:
    async with AppendService(client, spool_directory=str(tmp_path)) as service:
        for first in range(3):
            append = await service.start_append(JOURNAL)
            append.write(pattern(SPILL_BYTES * 2, first))
            await append.drain()
            append.write(b"end")
            append.release()
            await append
            assert not os.listdir(tmp_path)  # noqa: PTH208
    expected = b"".join(pattern(SPILL_BYTES * 2, first) + b"end" for first in range(3))
    assert journals.contents[JOURNAL] == expected


@pytest.mark.usefixtures("no_memory")
@pytest.mark.parametrize("failures", [1, 2])
async def test_a_failure_of_each_call_under_a_service(
    client: JournalClient,
    journals: MemoryJournals,
    monkeypatch: pytest.MonkeyPatch,
    failures: int,
) -> None:
    """The next one may fail as well, and batches of two journals are written meanwhile."""
    for module in (content_buffer, spool, journal_appends):
        monkeypatch.setattr(module, "SPILL_BYTES", 7)

    async def write(service: AppendService, journal: str) -> tuple[str, bytes, bool]:
        content = b""
        append = await service.start_append(journal)
        for number in range(3):
            part = pattern(20, number + len(journal))
            content += part
            append.write(part)
            await eventually(none_moves)
        append.release()
        journals.gate.set()
        try:
            await append
        except (OSError, pb.GazetteError):
            return journal, content, False
        return journal, content, True

    async def run(failing: int) -> int:
        count = itertools.count()

        def fail(name: str, size: int) -> int | None:
            if failing <= next(count) < failing + failures:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return size // 2 if name == "write" and size > 10 else None

        files = SpoolFiles(monkeypatch, fail)
        journals.contents.clear()
        async with AppendService(client) as service:
            results = await asyncio.gather(write(service, "a/one"), write(service, "b/three"))
            await service.flush()
        for journal, content, is_appended in results:
            assert is_appended, failing
            assert journals.contents[journal] == content, failing
        assert (files.misuses, files.all_closed) == ([], True)
        return len(files.calls)

    failing = 0
    while failing <= await run(failing):
        failing += 1
    assert failing > 10
