"""File operations that durability depends on, behind one interface.

Tests replace `FileOps` to fail operations, or to lose unsynced writes. All methods block; long
operations run in worker threads.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_DATASYNC = getattr(os, "fdatasync", os.fsync)


class FileOps:
    """File operations of the operating system."""

    def open(self, path: Path, flags: int) -> int:
        """Open a file and return its descriptor; created files are private to user and group."""
        return os.open(path, flags | os.O_CLOEXEC, 0o640)

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        os.close(descriptor)

    def duplicate(self, descriptor: int) -> int:
        """Return another descriptor of an open file."""
        return os.dup(descriptor)

    def pread(self, descriptor: int, length: int, offset: int) -> bytes:
        """Read up to `length` bytes at `offset`."""
        return os.pread(descriptor, length, offset)

    def pwrite(self, descriptor: int, data: bytes | memoryview, offset: int) -> None:
        """Write all of `data` at `offset`."""
        written = os.pwrite(descriptor, data, offset)
        if written == len(data):
            return
        view = memoryview(data)
        while True:
            if written <= 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            view = view[written:]
            if not view:
                return
            offset += written
            written = os.pwrite(descriptor, view, offset)

    def truncate(self, descriptor: int, length: int) -> None:
        """Set the length of a file."""
        os.ftruncate(descriptor, length)

    def datasync(self, descriptor: int) -> None:
        """Make the content of a file durable."""
        _DATASYNC(descriptor)

    def sync_directory(self, path: Path) -> None:
        """Make the entries of a directory durable."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read_file(self, path: Path) -> bytes:
        """Return the content of a file."""
        return path.read_bytes()

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file, replacing the target."""
        source.replace(target)

    def unlink(self, path: Path) -> None:
        """Remove a file, if it exists."""
        path.unlink(missing_ok=True)

    def make_directory(self, path: Path) -> None:
        """Make a directory and its parents, if they're missing."""
        path.mkdir(mode=0o750, parents=True, exist_ok=True)

    def remove_tree(self, path: Path) -> None:
        """Remove a directory with its content, as far as possible."""
        shutil.rmtree(path, ignore_errors=True)

    def boot_id(self) -> str:
        """Return an ID of the machine's present boot, or an empty text where it's unknown.

        While the ID is the same, no write was lost, synced or not.
        """
        try:
            return _BOOT_ID.read_text("ascii").strip()
        except (OSError, ValueError):
            return ""

    def size(self, descriptor: int) -> int:
        """Return the length of an open file."""
        return os.fstat(descriptor).st_size


@contextlib.contextmanager
def opened(files: FileOps, path: Path, flags: int) -> Generator[int]:
    """Yield the descriptor of a file, and close it in the end."""
    descriptor = files.open(path, flags)
    try:
        yield descriptor
    finally:
        files.close(descriptor)


def make_durable_directory(files: FileOps, path: Path, *, sync: bool) -> None:
    """Make a directory and its parents, if they're missing, and their names durable."""
    missing: list[Path] = []
    for directory in (path, *path.parents):
        if directory.exists():
            break
        missing.append(directory)
    files.make_directory(path)
    if sync:
        for directory in missing:
            files.sync_directory(directory.parent)


def os_error_text(error: OSError, operation: str = "", path: str | Path = "") -> str:
    """Return the text of an operating system error in the form that Gazette's clients expect."""
    reason = (error.strerror or str(error) or type(error).__name__).lower()
    if error.errno == errno.ENOSPC:
        reason = f"the broker's disk is full ({reason})"
    return f"{operation} {path}: {reason}" if operation else reason


def write_durably(files: FileOps, path: Path, data: bytes, *, sync: bool) -> None:
    """Replace a file atomically: after a crash too, it has the old or the new content."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with opened(files, temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
            files.pwrite(descriptor, data, 0)
            if sync:
                files.datasync(descriptor)
        files.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            files.unlink(temporary)
        raise
    if sync:
        files.sync_directory(path.parent)
