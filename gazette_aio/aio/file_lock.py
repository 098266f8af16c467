"""Locks of files by `flock`, and who holds them. All functions block."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gazette_aio.aio.forks import close_in_children, no_fork

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_SIGNATURE: Final = re.compile(rb"[0-9]{1,9}\n")
_PROCESSES: Final = Path("/proc")
_UNSUPPORTED: Final = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})


class FileLock:
    """Lock of a file, which ends with this process at the latest: forked children don't keep it.

    Args:
        close: Closes a descriptor; None for `os.close()`.
    """

    def __init__(self, close: Callable[[int], object] | None = None) -> None:
        self._close = close or os.close
        self._descriptor = -1

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock. In a forked child, it doesn't."""
        return self._descriptor >= 0

    def acquire(self, opened: Callable[[], int], *, is_optional: bool = False) -> int:
        """Lock a file, and return its descriptor, which `release()` closes.

        Args:
            opened: Opens the file, and returns the descriptor.
            is_optional: Whether to do without a lock on file systems that have none.

        Raises:
            BlockingIOError: Another process holds the lock, or another object of this process.
            OSError: The file can't be opened or locked.
        """
        with no_fork:
            descriptor = opened()
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if not (is_optional and error.errno in _UNSUPPORTED):
                    self._close(descriptor)
                    raise
            self._descriptor = descriptor
            close_in_children(self, FileLock._drop)
        return descriptor

    def sign(self) -> None:
        """Write the ID of this process into the locked file, which `holder_of()` reads.

        Raises:
            OSError: The file can't be written.
        """
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, b"%d\n" % os.getpid(), 0)

    def release(self) -> None:
        """Release the lock. Idempotent."""
        with no_fork:
            if self._descriptor >= 0:
                # Race: a child that is just being forked hasn't closed its copy yet.
                with contextlib.suppress(OSError):
                    fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self._drop()

    def _drop(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                self._close(descriptor)


@contextlib.contextmanager
def locked(opened: Callable[[], int]) -> Generator[int]:
    """Lock a file, and yield its descriptor.

    Args:
        opened: Opens the file, and returns the descriptor.

    Raises:
        BlockingIOError: Another process holds the lock, or another object of this process.
        OSError: The file can't be opened or locked.
    """
    lock = FileLock()
    try:
        yield lock.acquire(opened)
    finally:
        lock.release()


def holder_of(path: Path) -> str:
    """Return a phrase that names the process which holds the lock of a file.

    Linux tells which processes of this user hold it. Elsewhere, the phrase has the process that
    signed the file, and says so if that doesn't run.
    """
    signed = 0
    with contextlib.suppress(OSError):
        if match := _SIGNATURE.fullmatch(path.read_bytes()[:32]):
            signed = int(match[0])
    if signed and _holds(signed, path):
        return f"process {signed}"
    if holders := [each for each in _processes() if _holds(each, path)]:
        return f"process {', '.join(map(str, holders))}"
    if not signed:
        return "another process"
    try:
        os.kill(signed, 0)
    except ProcessLookupError:
        return f"another process (process {signed}, which took the lock, doesn't run here)"
    except OSError:
        pass  # It's of another user.
    return f"process {signed}"


def _processes() -> list[int]:
    with contextlib.suppress(OSError):
        return [int(each.name) for each in _PROCESSES.iterdir() if each.name.isdecimal()]
    return []


def _holds(process: int, path: Path) -> bool:
    """Return whether a process is known to hold the lock of a file."""
    with contextlib.suppress(OSError):
        file = path.stat()
        for each in (_PROCESSES / f"{process}/fd").iterdir():
            with contextlib.suppress(OSError):  # It was closed meanwhile.
                # Wire: each descriptor that keeps the lock has it in its information. /proc/locks
                # has the process that took it instead, which may have ended.
                information = _PROCESSES / f"{process}/fdinfo/{each.name}"
                if os.path.samestat(each.stat(), file) and b" FLOCK " in information.read_bytes():
                    return True
    return False
