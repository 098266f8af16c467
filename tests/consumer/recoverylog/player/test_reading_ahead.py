"""Content that is read ahead of playback, within bounds."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import JournalClient
from gazette_aio.consumer.recoverylog import Player
from gazette_aio.consumer.recoverylog.playing.reader import READ_AHEAD_BYTES
from gazette_aio.consumer.recoverylog.segments import READ_THROUGH_BYTES
from gazette_aio.protocol.recoverylog import FSMHints
from tests.consumer.recoverylog.player.logs import (
    LOG,
    LogWriter,
    create_log,
    files_of,
    is_there,
    recover,
)
from tests.waiting import eventually, turns, wait_until

HINTS = FSMHints(log=LOG)
WRITE = bytes(range(256)) * 4096


class Counted:
    """A client that counts what its readers return."""

    def __init__(self, client: JournalClient) -> None:
        self._client = client
        self.read_bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def read(self, *args: Any, **options: Any) -> Any:
        reader = self._client.read(*args, **options)
        read = reader.read

        async def counted() -> bytes:
            data = await read()
            self.read_bytes += len(data)
            return data

        reader.read = counted
        return reader


async def long_log(client: JournalClient) -> LogWriter:
    """Write a log that is much longer than what is read ahead."""
    await create_log(client)
    writer = LogWriter()
    writer.create("/file")
    for _ in range(4 * READ_AHEAD_BYTES // len(WRITE)):
        writer.write("/file", WRITE)
    await client.append(LOG, writer.content)
    return writer


async def test_memory_is_bounded(
    client: JournalClient, directory: Path, monkeypatch: pytest.MonkeyPatch
):
    """Reading waits for playback, which waits for the disk."""
    writer = await long_log(client)
    counted: Any = Counted(client)
    begun = allowed = 0
    write = os.pwritev

    def is_held() -> bool:
        return begun > allowed

    def held(descriptor: int, buffers: Any, offset: int) -> int:
        nonlocal begun
        begun += 1
        wait_until(lambda: not is_held())
        return write(descriptor, buffers, offset)

    monkeypatch.setattr(os, "pwritev", held)
    player = Player()
    player.finish_at_write_head()
    playing = asyncio.create_task(player.play(HINTS, directory, counted))
    while not playing.done():
        await eventually(lambda: is_held() or playing.done())
        await turns(50)
        # One batch is being played, and as much is read ahead.
        ahead = counted.read_bytes - player.progress.bytes_played
        assert ahead < 2 * (READ_AHEAD_BYTES + (2 << 20))
        allowed = begun
    await playing
    assert files_of(directory) == writer.expected()
    assert counted.read_bytes == writer.offset


@pytest.mark.parametrize("gap", [100, 2 * READ_THROUGH_BYTES])
async def test_the_next_part_is_read_ahead(
    broker: EmbeddedBroker,
    client: JournalClient,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    gap: int,
):
    """While a part is played, that after a long gap is asked for. A short gap is read."""
    await create_log(client)
    writer = LogWriter()
    writer.create("/one")
    writer.write("/one", b"content")
    end = writer.offset
    writer.create("/dead")
    writer.write("/dead", bytes(gap))
    writer.unlink("/dead")
    begin = writer.offset
    writer.create("/two")
    await client.append(LOG, writer.content)
    expected = [(0, 0)] if gap < READ_THROUGH_BYTES else [(0, end), (begin, 0)]
    create = os.open

    def open_after_reads(path: Any, flags: int, mode: int = 0o777, **options: Any) -> int:
        if str(directory) in str(path):
            wait_until(lambda: len(reads.requests) >= len(expected))
        return create(path, flags, mode, **options)

    with broker.control.observe("read") as reads:
        monkeypatch.setattr(os, "open", open_after_reads)
        await recover(client, directory, writer.hints)
    assert files_of(directory) == writer.expected()
    assert sorted((each.offset, each.end_offset) for each in reads.requests) == expected


async def test_failures(broker: EmbeddedBroker, client: JournalClient, directory: Path):
    await create_log(client)
    with broker.control.once("read", status=pb.Status.NOT_ALLOWED):
        with pytest.raises(pb.NotAllowedError):
            await Player().play(HINTS, directory, client)
    assert not is_there(directory)
