"""Checks that nothing was left behind: tasks, threads, open files and sockets, temporary files."""

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

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

_DESCRIPTORS: Final = Path("/dev/fd")
_PAUSE_SECONDS: Final = 0.01

_POOLED_THREADS: Final = ("asyncio_", "uvloop_", "ThreadPoolExecutor-")
"""Beginnings of the names of threads which stay with a process on purpose: those of executors."""


@contextlib.asynccontextmanager
async def no_leaks(
    *, grace_seconds: float = 2.0, directory: Path | None = None
) -> AsyncGenerator[None]:
    """Return an async context manager which fails if its block leaves anything behind.

    It looks for tasks which aren't done, threads which don't belong to a pool, regular files and
    connections which are still open, and new entries of `directory`. Young garbage is collected
    first, so that what wasn't closed may warn about itself. If the block raises, nothing is
    checked.

    Args:
        grace_seconds: Longest time to wait for what is about to end: connections which were closed
            take a moment.
        directory: Directory in which no files may be left, as that of `spool_directory`.

    Raises:
        AssertionError: Something is left; the text names it.

    Example:
        ```python
        async with no_leaks():
            async with connect(broker.endpoint) as client:
                await client.append("a/journal", b"content")
        ```
    """
    tasks = asyncio.all_tasks()
    threads = set(threading.enumerate())
    descriptors = _descriptors()
    entries = _entries(directory)
    yield
    gc.collect(1)  # All generations would take longer than most tests do.
    # Fixtures may end in another task than they began in.
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
    # Daemons are others' too, such as the one by which grpcio polls.
    return thread.is_alive() and not thread.daemon and not thread.name.startswith(_POOLED_THREADS)


def _entries(directory: Path | None) -> set[str]:
    return set() if directory is None else {entry.name for entry in directory.iterdir()}


def _descriptors() -> dict[int, str]:
    """Return what open files and sockets are about, by descriptor."""
    found: dict[int, str] = {}
    for entry in _DESCRIPTORS.iterdir() if _DESCRIPTORS.is_dir() else ():
        number = int(entry.name)
        # Race: the one by which the directory is listed is closed by now, as may be others.
        with contextlib.suppress(OSError):
            if what := _describe(number):
                found[number] = what
    return found


def _describe(number: int) -> str | None:
    status = os.fstat(number)
    if stat.S_ISREG(status.st_mode):
        return f"file {_target(number)} ({status.st_dev}:{status.st_ino})"
    if not stat.S_ISSOCK(status.st_mode):
        return None  # Pipes and the like are what event loops are made of.
    with socket.socket(fileno=os.dup(number)) as sock:
        if sock.family == socket.AF_UNIX and not sock.getsockname():
            return None  # Half of a pair, likewise.
        return f"socket {sock.getsockname()} ({status.st_ino})"


def _target(number: int) -> str:
    try:
        return str((_DESCRIPTORS / str(number)).readlink())
    except OSError:
        return str(number)
