"""Appending the content of files, which may block."""

from __future__ import annotations

import asyncio
import io
import threading
from pathlib import Path

import aiofiles
import aiofiles.threadpool
import grpc
import pytest

from gazette_aio.aio.threads import in_thread
from gazette_aio.client import JournalClient
from gazette_aio.testing.stub_broker import StubBroker, StubError
from tests.client.support import JOURNAL, MemoryJournals
from tests.waiting import turns


async def test_a_file_of_aiofiles(
    broker: StubBroker, client: JournalClient, tmp_path: Path
) -> None:
    journals = MemoryJournals(broker)
    journals.failures = [StubError(grpc.StatusCode.UNAVAILABLE, "gone")]
    path = tmp_path / "file"
    path.write_bytes(b"file " * 200_000)
    async with aiofiles.open(path, "rb") as file:
        await file.seek(7)
        await client.append(JOURNAL, file, b"end")
    assert journals.contents[JOURNAL] == path.read_bytes() + b"end"
    assert journals.begun == 2


@pytest.mark.parametrize("wrapped", [True, False])
async def test_a_cancelled_append_leaves_no_thread_in_its_file(
    broker: StubBroker, client: JournalClient, wrapped: bool
) -> None:
    """The caller closes the file right after that."""
    journals = MemoryJournals(broker)
    entered, left = threading.Event(), threading.Event()
    events: list[str] = []

    class SlowFile(io.FileIO):
        def read(self, size: int | None = -1, /) -> bytes:
            entered.set()
            assert left.wait(30)
            data = super().read(size)
            events.append("read")
            return data

    with SlowFile(__file__) as raw:
        file = aiofiles.threadpool.wrap(raw) if wrapped else raw  # type: ignore[call-overload]
        appending = asyncio.create_task(client.append(JOURNAL, file))
        assert await in_thread(entered.wait, 30)
        for _ in range(3):
            appending.cancel()
            await turns(5)
        assert not appending.done()
        left.set()
        await asyncio.wait((appending,))
        events.append("close")
    assert appending.cancelled()
    assert events == ["read", "close"]
    assert journals.contents == {}
