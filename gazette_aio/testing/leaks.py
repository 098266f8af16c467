"""Check for leaks: tasks, threads, open files and sockets, temporary files."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import stat
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gazette_aio.testing import ports

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

_DESCRIPTORS: Final = Path("/dev/fd")
_PAUSE_SECONDS: Final = 0.01

_POOLED_THREADS: Final = ("AnyIO ", "asyncio_", "uvloop_", "ThreadPoolExecutor-")
"""Prefixes of the names of executors' threads, which intentionally stay alive."""


@contextlib.asynccontextmanager
async def no_leaks(
    *, grace_seconds: float = 20.0, directory: Path | None = None
) -> AsyncGenerator[None]:
    """Return an async context manager that fails if its block leaks.

    The check covers unfinished tasks, threads outside of pools, open regular files and connections,
    and new entries of `directory`. Young garbage is collected first, so that unclosed objects warn.
    If the block raises, nothing is checked.

    Args:
        grace_seconds: Most seconds to wait for objects that are ending, such as connections.
        directory: Directory in which no new files may remain, such as `spool_directory`.

    Raises:
        AssertionError: Something leaked; the text names it.

    Example:
        ```python
        async with no_leaks():
            async with connect(broker.endpoint) as client:
                await client.append("a/journal", b"content")
        ```

    Cancellation: safe — nothing is checked.
    """
    tasks = asyncio.all_tasks()
    threads = set(threading.enumerate())
    descriptors = _descriptors()
    entries = _entries(directory)
    yield
    gc.collect(1)  # A full collection takes longer than most tests.
    # Fixtures may begin and end in different tasks.
    if (current := asyncio.current_task()) is not None:
        tasks.add(current)
    deadline = time.monotonic() + grace_seconds
    while left := [
        *(f"task {task!r}" for task in asyncio.all_tasks() - tasks if not task.done()),
        *(
            f"thread {thread!r}"
            for thread in set(threading.enumerate()) - threads
            if _counts(thread)
        ),
        *(f"open {what}" for key, what in _descriptors().items() if descriptors.get(key) != what),
        *(f"file {name}" for name in _entries(directory) - entries),
    ]:
        if time.monotonic() >= deadline:
            raise AssertionError(f"left behind: {'; '.join(left)}")
        await asyncio.sleep(_PAUSE_SECONDS)


def _counts(thread: threading.Thread) -> bool:
    # Libraries have daemons, such as the polling thread of grpcio.
    return thread.is_alive() and not thread.daemon and not thread.name.startswith(_POOLED_THREADS)


def _entries(directory: Path | None) -> set[str]:
    return set() if directory is None else {entry.name for entry in directory.iterdir()}


def _descriptors() -> dict[int, str]:
    """Return descriptions of open files and sockets by descriptor."""
    found: dict[int, str] = {}
    for entry in _DESCRIPTORS.iterdir() if _DESCRIPTORS.is_dir() else ():
        number = int(entry.name)
        # Race: the descriptor of the directory listing is closed by now, and so may be others.
        with contextlib.suppress(OSError):
            if what := _describe(number):
                found[number] = what
    return found


def _describe(number: int) -> str | None:
    status = os.fstat(number)
    if stat.S_ISREG(status.st_mode):
        if ports.stays_open(number):
            return None
        return f"file {_target(number)} ({status.st_dev}:{status.st_ino})"
    if not stat.S_ISSOCK(status.st_mode):
        return None  # Pipes and other kinds belong to event loops.
    with socket.socket(fileno=os.dup(number)) as sock:
        if sock.family == socket.AF_UNIX and not sock.getsockname():
            return None  # Half of a socket pair, which also belongs to event loops.
        return f"socket {sock.getsockname()} ({status.st_ino})"


def _target(number: int) -> str:
    try:
        return str((_DESCRIPTORS / str(number)).readlink())
    except OSError:
        return str(number)
