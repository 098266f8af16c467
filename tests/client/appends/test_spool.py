"""Content of pending appends on disks which are full, or become so."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import gazette_aio.protocol as pb
from gazette_aio.client import AppendService, JournalClient
from gazette_aio.client.appends import content_buffer, journal_appends, spool
from gazette_aio.client.appends.content_buffer import SPILL_BYTES, ContentBuffer
from gazette_aio.client.appends.spool import Spool
from gazette_aio.testing.stub_broker import StubBroker
from tests.client.support import JOURNAL, MemoryJournals


class Disk:
    """Files which accept so many bytes in all, and then no more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
        self.room = room
        self.files: list[LimitedFile] = []
        monkeypatch.setattr(spool.tempfile, "TemporaryFile", self.open)

    def open(self, **options: object) -> LimitedFile:
        assert options["prefix"] == "gazette-append"
        self.files.append(LimitedFile(self))
        return self.files[-1]


class LimitedFile(io.BytesIO):
    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self.disk = disk

    def write(self, data: object) -> int:
        count = min(len(data), self.disk.room)  # type: ignore[arg-type]
        if not count:
            raise OSError(28, "No space left on device")
        self.disk.room -= count
        return super().write(data[:count])  # type: ignore[index]


async def whole(spooled: Spool) -> bytes:
    return b"".join([bytes(chunk) async for chunk in spooled.chunks(1000)])


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
    assert (buffer.filed, buffer.memory_bytes, spooled.failures) == (size - 300, 300, 0)
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
    assert (buffer.memory_bytes, spooled.failures, disk.room) == (0, 0, 0)
    assert await whole(spooled) == content + more

    # Rolled back behind what the file has, and written anew.
    buffer.truncate(100)
    buffer.append(more)
    disk.room = 1 << 30
    spooled.spill()
    await spooled.idle()
    assert await whole(spooled) == content[:100] + more
    spooled.close()
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


@pytest.fixture
async def journals(broker: StubBroker) -> AsyncIterator[MemoryJournals]:
    journals = MemoryJournals(broker)
    yield journals
    journals.gate.set()


@pytest.mark.parametrize("room", [0, 3, 7, 1 << 20])
async def test_a_pipeline_through_a_tiny_spool(
    client: JournalClient,
    journals: MemoryJournals,
    monkeypatch: pytest.MonkeyPatch,
    room: int,
) -> None:
    """Roll-backs before, between and behind what's kept, most of which is in the file by then."""
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
            await asyncio.sleep(0.002)
            if is_kept:
                append.release()
            else:
                append.roll_back(pb.StoreError("whoops"))
            await asyncio.sleep(0.002)
        journals.gate.set()
        await service.flush()
    assert (JOURNAL, b"write one write two") in journals.appended
    assert len(disk.files) >= 1
    assert all(file.closed for file in disk.files)


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
