"""Content of pending appends in temporary files, on disks which are full, slow, or fail."""

from __future__ import annotations

import asyncio
import errno
import functools
import itertools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import gazette_aio.protocol as pb
from gazette_aio.aio.threads import in_thread
from gazette_aio.client import AppendService, AsyncOperation, JournalClient
from gazette_aio.client.append_memory import AppendMemory
from gazette_aio.client.appends import content_buffer
from gazette_aio.client.appends.appender import content_messages
from gazette_aio.client.appends.content_buffer import SPILL_BYTES, ContentBuffer
from gazette_aio.client.options import CHUNK_BYTES
from tests import extent
from tests.client.appends.spool_files import SpoolFiles, full_disk
from tests.client.support import JOURNAL, MemoryJournals
from tests.waiting import turns


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


@functools.cache
def pattern(size: int, first: int = 0) -> bytes:
    return bytes((first + number // 251 + number) % 251 for number in range(size))


class HeldCalls:
    """Has the thread of such calls wait until the test lets it leave."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.entered = threading.Event()
        self.left = threading.Event()

    def __call__(self, name: str, _size: int) -> None:
        if name == self._name:
            self.entered.set()
            assert self.left.wait(30)


@pytest.fixture
def tiny_spill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few bytes are long content."""
    monkeypatch.setattr(content_buffer, "SPILL_BYTES", 7)


def test_messages_of_long_content() -> None:
    """Pieces of any length make messages of which each but the last one is full."""
    lengths = [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 999, 3 * CHUNK_BYTES + 7, 3, 0]
    pieces = [pattern(length, first) for first, length in enumerate(lengths)]
    for count in range(len(pieces) + 1):
        messages = [pb.AppendRequest.FromString(each) for each in content_messages(pieces[:count])]
        assert all(len(each.content) == CHUNK_BYTES for each in messages[:-1])
        assert all(each.content for each in messages)
        assert b"".join(each.content for each in messages) == b"".join(pieces[:count])


steps = st.one_of(
    st.tuples(st.just("append"), st.just(b"content") | st.binary(max_size=9)),
    st.tuples(st.just("truncate"), st.integers(0, 40)),
    st.tuples(st.just("retain")),
    st.tuples(st.just("settle"), st.booleans()),
    st.tuples(st.just("settled")),
)


@given(script=st.lists(steps, max_size=30))
@extent.examples(50)
@example(script=[("append", b"content"), ("settle", True), ("retain",), ("settled",)])
def test_a_content_buffer_is_a_byte_string(script: list[tuple[Any, ...]]) -> None:
    """Whatever happens while content is written to the file, and memory is used up or not."""
    may_write = asyncio.Event()

    async def call(function: Callable[..., Any], *args: Any) -> Any:
        if function.__name__ == "write":
            await may_write.wait()
        return function(*args)

    async def run() -> None:
        memory, model = AppendMemory(20), b""
        buffer = ContentBuffer(memory=memory)
        settling: asyncio.Task[None] | None = None
        for step in script:
            match step:
                case ("append", data):
                    buffer.append(data)
                    model += data
                case ("truncate", length) if length <= len(model):
                    buffer.truncate(length)
                    model = model[:length]
                case ("retain",):
                    room, long = memory.free_bytes, buffer.tail_bytes >= 7
                    may_stay = long and not buffer.filed and buffer.tail_bytes <= room
                    taken = buffer.tail_bytes if may_stay else 0
                    assert buffer.retain() == (may_stay or not long)
                    assert memory.free_bytes == room - taken
                case ("settle", is_used_up) if settling is None:
                    others = memory.free_bytes if is_used_up else 0
                    assert memory.reserve(others)
                    may_write.clear()
                    settling = asyncio.create_task(buffer.settle())
                    await turns(2)
                    memory.release(others)
                case ("settled",) if settling is not None:
                    was_settled = settling.done()
                    may_write.set()
                    await settling
                    settling = None
                    assert was_settled or buffer.tail_bytes < 7
                case _:
                    pass  # It doesn't apply now.
            assert buffer.length == len(model)
            lists = [list(each) async for each in buffer.pieces()]
            assert b"".join(itertools.chain(*lists)) == model
            assert buffer.head_bytes == 20 - memory.free_bytes == sum(map(len, buffer.head))
            assert buffer.tail_bytes == sum(map(len, buffer.tail))
            assert buffer.quick_length >= buffer.filed + buffer.head_bytes
        closing = buffer.discard()
        may_write.set()
        if settling is not None:
            await settling
        if closing is not None:
            await closing
        assert memory.free_bytes == 20

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(content_buffer, "SPILL_BYTES", 7)
        patch.setattr(content_buffer, "in_thread", call)
        asyncio.run(run())


@pytest.mark.usefixtures("tiny_spill")
@pytest.mark.parametrize("memory", [0, 10])
@pytest.mark.parametrize("room", [0, 3, 7, 1 << 20])
async def test_a_pipeline_through_a_tiny_spool(
    client: JournalClient,
    journals: MemoryJournals,
    monkeypatch: pytest.MonkeyPatch,
    room: int,
    memory: int,
) -> None:
    """Roll-backs before, between and after what's kept, most of which is in the file by then."""
    client.context.append_memory.free_bytes = memory
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
            if room > 20:
                await append.drain()
            if is_kept:
                append.release()
            else:
                append.roll_back(pb.StoreError("whoops"))
        journals.gate.set()
        await service.flush()
    assert (JOURNAL, b"write one write two") in journals.appended
    assert disk.files or memory
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


async def append_in_parts(service: AppendService, journal: str) -> tuple[str, bytes]:
    content = b""
    append = await service.start_append(journal)
    for number in range(3):
        part = pattern(20, number + len(journal))
        content += part
        append.write(part)
        await append.drain()
    append.release()
    await append
    return journal, content


@pytest.mark.usefixtures("no_memory", "tiny_spill")
@pytest.mark.parametrize("failures", [1, 2])
async def test_a_failure_of_each_call(
    client: JournalClient,
    journals: MemoryJournals,
    monkeypatch: pytest.MonkeyPatch,
    failures: int,
) -> None:
    """The next one may fail as well, and batches of two journals are written meanwhile."""

    async def run(failing: int) -> int:
        count = itertools.count()

        def fail(name: str, size: int) -> int | None:
            if failing <= next(count) < failing + failures:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return size // 2 if name in ("read", "write") and size > 10 else None

        files = SpoolFiles(monkeypatch, fail)
        journals.contents.clear()
        async with AppendService(client) as service:
            results = await asyncio.gather(
                append_in_parts(service, "a/one"), append_in_parts(service, "b/three")
            )
        for journal, content in results:
            assert journals.contents[journal] == content, failing
        assert (files.misuses, files.all_closed) == ([], True)
        return len(files.calls)

    failing = 0
    while failing <= await run(failing):
        failing += 1
    assert failing > 10


@pytest.mark.usefixtures("no_memory", "tiny_spill")
@pytest.mark.parametrize("stopped", ["open", "seek", "write"])
@pytest.mark.parametrize("cancelled", ["drain", "service"])
async def test_cancellation_within_a_call(
    client: JournalClient,
    journals: MemoryJournals,
    monkeypatch: pytest.MonkeyPatch,
    stopped: str,
    cancelled: str,
) -> None:
    """The file is neither closed nor used by others before the thread has left it."""
    held = HeldCalls(stopped)
    files = SpoolFiles(monkeypatch, held)
    async with AppendService(client) as service:
        append = await service.start_append(JOURNAL)
        append.write(pattern(20))
        draining = asyncio.create_task(append.drain())
        await in_thread(held.entered.wait, 30)
        if cancelled == "drain":
            draining.cancel()
        else:
            service.cancel()
        await turns(5)
        assert not draining.done()
        assert not any(file.closed for file in files.files)
        held.left.set()
        await asyncio.wait((draining,))
        assert draining.cancelled() == (cancelled == "drain")
        if cancelled == "drain":
            await append.drain()
            append.write(b"more")
            append.release()
            await append
            assert journals.contents[JOURNAL] == pattern(20) + b"more"
        else:
            append.release()
            with pytest.raises(pb.TransportError, match="cancelled"):
                await append
    assert (files.misuses, files.all_closed) == ([], True)


@pytest.mark.usefixtures("no_memory", "tiny_spill")
@pytest.mark.parametrize("is_kept", [False, True])
async def test_an_append_that_ends_while_a_task_of_it_drains(
    client: JournalClient,
    journals: MemoryJournals,
    monkeypatch: pytest.MonkeyPatch,
    is_kept: bool,
) -> None:
    held = HeldCalls("write")
    files = SpoolFiles(monkeypatch, held)
    async with AppendService(client) as service:
        journals.gate.clear()
        dependency = AsyncOperation()
        first = await service.start_append(JOURNAL, [dependency])
        first.write(pattern(20))
        draining = asyncio.create_task(first.drain())
        await in_thread(held.entered.wait, 30)
        if is_kept:
            first.release()
        else:
            first.roll_back(OSError("no"))
        following = asyncio.create_task(service.start_append(JOURNAL, [dependency]))
        await turns(5)
        held.left.set()
        await draining
        append = await following
        append.write(pattern(30, 1))
        await append.drain()
        append.release()
        journals.gate.set()
        dependency.resolve()
        await append
    assert journals.contents[JOURNAL] == (pattern(20) if is_kept else b"") + pattern(30, 1)
    assert (files.misuses, files.all_closed) == ([], True)


@pytest.mark.usefixtures("no_memory", "tiny_spill")
async def test_memory_that_becomes_free_while_a_task_of_an_append_drains(
    client: JournalClient, journals: MemoryJournals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Content that the next holder retains isn't in the file as well."""
    held = HeldCalls("write")
    files = SpoolFiles(monkeypatch, held)
    async with AppendService(client) as service:
        dependency = AsyncOperation()
        first = await service.start_append(JOURNAL, [dependency])
        first.write(pattern(20))
        draining = asyncio.create_task(first.drain())
        await in_thread(held.entered.wait, 30)
        first.release()
        client.context.append_memory.free_bytes = 50
        append = await service.start_append(JOURNAL, [dependency])
        assert client.context.append_memory.free_bytes == 30
        append.write(pattern(30, 1))
        held.left.set()
        await draining
        append.release()
        dependency.resolve()
        await append
    assert journals.contents[JOURNAL] == pattern(20) + pattern(30, 1)
    assert client.context.append_memory.free_bytes == 50
    assert (files.misuses, files.all_closed) == ([], True)


@pytest.mark.usefixtures("tiny_spill")
async def test_content_that_reaches_the_file_while_it_is_read_is_read_once() -> None:
    """A task of an append may still drain when the append is sent."""
    buffer = ContentBuffer()
    buffer.append(pattern(20))
    await buffer.settle()
    buffer.append(pattern(30, 1))
    parts: list[bytes] = []
    async for pieces in buffer.pieces():
        await buffer.settle()
        parts += pieces
    assert b"".join(parts) == pattern(20) + pattern(30, 1)
    closing = buffer.discard()
    assert closing is not None
    await closing


@pytest.mark.usefixtures("no_memory", "tiny_spill")
async def test_an_append_that_has_failed_while_it_is_held_opens_no_file(
    client: JournalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it wait until a disk that is full has room."""
    files = SpoolFiles(monkeypatch, full_disk)
    async with AppendService(client) as service:
        append = await service.start_append(JOURNAL)
        service.cancel()
        await turns(5)
        for part in range(3):
            append.write(pattern(20, part))
            await asyncio.wait_for(append.drain(), 30)
        append.release()
        with pytest.raises(pb.TransportError, match="cancelled"):
            await append
    assert not files.calls
