"""Cancellation of playback, by asyncio and by anyio."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from pathlib import Path

import anyio
import pytest

from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import JournalClient
from gazette_aio.consumer.recoverylog import PlaybackError, Player
from gazette_aio.protocol.recoverylog import FSMHints
from tests.cancellation import cancel_at_every_await
from tests.consumer.recoverylog.player.logs import (
    LOG,
    LogWriter,
    create_log,
    files_of,
    is_there,
    written,
)
from tests.waiting import eventually, wait_until

HINTS = FSMHints(log=LOG)


@pytest.mark.parametrize("author", [None, 1337])
async def test_at_every_await(client: JournalClient, directory: Path, author: int | None):
    writer = await written(client)
    players: list[Player] = []

    async def play() -> None:
        player = Player(wipe=True)
        players.append(player)
        if author is None:
            player.finish_at_write_head()
        else:
            player.inject_handoff(author)
        await player.play(HINTS, directory, client)

    async def check() -> None:
        player = players[-1]
        assert player.tailing.is_set()
        error = player.done.exception()
        if error is None:
            assert files_of(directory) == writer.expected()
        else:
            assert str(error) == f"playback of {LOG} was cancelled"
            assert not is_there(directory)
            with pytest.raises(PlaybackError):
                await player.done

    count = await cancel_at_every_await(play, check)
    assert count >= 5


async def test_at_every_await_of_parts(client: JournalClient, directory: Path):
    """Parts of the log that are read ahead end with the playback, too."""
    writer = LogWriter()
    for number in range(3):
        writer.create(f"/live{number}")
        writer.create("/dead")
        writer.write("/dead", bytes(2 << 20))
        writer.unlink("/dead")
    writer.create("/last")
    await create_log(client)
    await client.append(LOG, writer.content)

    async def play() -> None:
        player = Player(wipe=True)
        player.finish_at_write_head()
        await player.play(writer.hints, directory, client)

    async def check() -> None:
        mine = [task for task in asyncio.all_tasks() if "gazette recovery log" in task.get_name()]
        assert not [task for task in mine if not task.done()]
        assert not is_there(directory) or files_of(directory) == writer.expected()

    assert await cancel_at_every_await(play, check) >= 8


async def test_a_standby_by_a_scope(client: JournalClient, directory: Path):
    await written(client)
    player = Player()
    async with anyio.create_task_group() as group:
        group.start_soon(player.play, HINTS, directory, client)
        await player.tailing.wait()
        group.cancel_scope.cancel()
    assert not is_there(directory)
    assert player.done.done()
    player.finish_at_write_head()  # Doesn't block, and does nothing.


async def test_before_the_beginning(client: JournalClient, directory: Path):
    await create_log(client)
    player = Player()
    playing = asyncio.create_task(player.play(HINTS, directory, client))
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert not is_there(directory)


@pytest.mark.parametrize("by_scope", [False, True])
async def test_while_a_thread_writes(
    client: JournalClient, directory: Path, monkeypatch: pytest.MonkeyPatch, *, by_scope: bool
):
    """Playback ends, and its directory is removed, only after its thread has left the files."""
    await written(client)
    entered, leave = threading.Event(), threading.Event()
    write = os.pwritev

    def slowly(descriptor: int, buffers: list[bytes], offset: int) -> int:
        entered.set()
        wait_until(leave.is_set)
        return write(descriptor, buffers, offset)

    monkeypatch.setattr(os, "pwritev", slowly)
    scope = anyio.CancelScope()

    async def play() -> None:
        with scope:
            await Player().play(HINTS, directory, client)

    playing = asyncio.create_task(play())
    await eventually(entered.is_set)
    for _ in range(3):
        scope.cancel() if by_scope else playing.cancel()
        await asyncio.sleep(0)
    assert not playing.done()
    assert is_there(directory)
    leave.set()
    await asyncio.wait((playing,))
    assert playing.cancelled() != by_scope
    assert not is_there(directory)


async def test_twice_while_the_directory_is_removed(
    broker: EmbeddedBroker, client: JournalClient, directory: Path, monkeypatch: pytest.MonkeyPatch
):
    await written(client)
    entered, leave = threading.Event(), threading.Event()
    remove = shutil.rmtree

    def slowly(path: Path, **options: object) -> None:
        entered.set()
        wait_until(leave.is_set)
        remove(path, **options)

    monkeypatch.setattr(shutil, "rmtree", slowly)
    player = Player()
    playing = asyncio.create_task(player.play(HINTS, directory, client))
    await player.tailing.wait()
    playing.cancel()
    await eventually(entered.is_set)
    playing.cancel()
    await asyncio.sleep(0)
    assert not playing.done()
    assert not player.done.done()
    leave.set()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert player.done.done()
    assert not is_there(directory)
