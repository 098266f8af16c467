"""The check for leaks finds each kind of them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from gazette_aio.testing import no_leaks
from tests.waiting import turns


async def test_nothing() -> None:
    async with no_leaks():
        await asyncio.create_task(asyncio.sleep(0))
        await asyncio.to_thread(int)
        with tempfile.TemporaryFile():
            pass


async def test_what_is_about_to_end_is_waited_for() -> None:
    async with no_leaks():
        task = asyncio.create_task(turns())
    assert task.done()


async def test_what_was_there_before_is_no_leak() -> None:
    async with no_leaks():
        event = asyncio.Event()
        task = asyncio.create_task(event.wait())
        with tempfile.TemporaryFile(), socket.create_server(("127.0.0.1", 0)):
            async with no_leaks(grace_seconds=0):
                pass
        event.set()
        await task


async def test_tasks() -> None:
    event = asyncio.Event()
    task: asyncio.Task[object] | None = None
    with pytest.raises(AssertionError, match="left behind: task <Task pending name='leaked'"):
        async with no_leaks(grace_seconds=0.01):
            task = asyncio.create_task(event.wait(), name="leaked")
    event.set()
    assert task is not None
    await task


async def test_threads() -> None:
    event = threading.Event()
    thread = threading.Thread(target=event.wait, name="leaked")
    with pytest.raises(AssertionError, match=r"left behind: thread <Thread\(leaked"):
        async with no_leaks(grace_seconds=0.01):
            thread.start()
    event.set()
    await asyncio.to_thread(thread.join)


async def test_files_and_sockets(tmp_path: Path) -> None:
    with contextlib.ExitStack() as leaked:
        with pytest.raises(AssertionError, match="left behind: open file /"):
            async with no_leaks(grace_seconds=0.01):
                leaked.enter_context(tempfile.TemporaryFile(dir=tmp_path))
        with pytest.raises(AssertionError, match=r"open socket \('127\.0\.0\.1', "):
            async with no_leaks(grace_seconds=0.01):
                leaked.enter_context(socket.create_server(("127.0.0.1", 0)))


async def test_entries_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "before").touch()
    with pytest.raises(AssertionError, match="left behind: file after"):  # noqa: PT012
        async with no_leaks(grace_seconds=0.01, directory=tmp_path):
            (tmp_path / "after").touch()
            (tmp_path / "before").touch()


async def test_an_error_of_the_block_is_not_masked() -> None:
    event = asyncio.Event()
    task: asyncio.Task[object] | None = None
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with no_leaks():
            task = asyncio.create_task(event.wait())
            raise ZeroDivisionError
    event.set()
    assert task is not None
    await task


def test_the_file_by_which_ports_are_kept_stays_open() -> None:
    program = """
import asyncio
from gazette_aio.testing.leaks import no_leaks
from gazette_aio.testing.ports import free_port

async def main():
    async with no_leaks(grace_seconds=0):
        free_port()

asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", program], check=True)
