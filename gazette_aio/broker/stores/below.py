"""Files below a root directory, opened without following symbolic links. All functions block.

A link could lead out of the root, or into the directory of another journal, so no link below the
root is followed. The path of the root itself may have links.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
from typing import TYPE_CHECKING, Final

import gazette_aio.protocol as pb
from gazette_aio.broker.host.files import os_error_text

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

_READ: Final = os.O_RDONLY | os.O_CLOEXEC


class LocalFile(io.FileIO):
    """A file open for reading."""

    gzipped = True
    """No server decompresses a local file."""

    @property
    def version(self) -> str:
        """Text that changes when the file is written or replaced."""
        status = os.fstat(self.fileno())
        return f"{status.st_ino}-{status.st_size}-{status.st_mtime_ns}"


@contextlib.contextmanager
def directory_below(root: Path, parts: Sequence[str]) -> Generator[int]:
    """Yield the descriptor of a directory.

    Args:
        root: The root.
        parts: Names of the directories from the root to the directory.

    Raises:
        StoreError: A directory is a symbolic link.
        OSError: The directory can't be opened. It's a NotADirectoryError if one of the parts is a
            file.
    """
    descriptor = os.open(root, _READ | os.O_DIRECTORY)
    try:
        for number, part in enumerate(parts, 1):
            try:
                below = os.open(part, _READ | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
            except OSError as error:
                _refuse_link(error, descriptor, parts[:number])
                raise
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def status_below(root: Path, parts: Sequence[str]) -> os.stat_result:
    """Return the status of a file, without following it.

    Raises:
        StoreError: A directory which leads to it is a symbolic link.
        OSError: There's no such file.
    """
    with directory_below(root, parts[:-1]) as directory:
        return os.stat(parts[-1], dir_fd=directory, follow_symlinks=False)


def open_below(root: Path, parts: Sequence[str]) -> LocalFile:
    """Open a regular file for reading.

    Raises:
        StoreError: The file or one of its directories is a symbolic link, or the file isn't
            regular.
        OSError: The file can't be opened.
    """
    # Otherwise, opening a pipe would wait forever.
    flags = _READ | os.O_NOFOLLOW | os.O_NONBLOCK
    with directory_below(root, parts[:-1]) as directory:
        try:
            descriptor = os.open(parts[-1], flags, dir_fd=directory)
        except OSError as error:
            _refuse_link(error, directory, parts)
            raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise pb.StoreError(f"{'/'.join(parts)} is not a file")
    return LocalFile(descriptor)


def unlink_below(root: Path, parts: Sequence[str]) -> None:
    """Remove a file.

    Raises:
        StoreError: A directory which leads to it is a symbolic link.
        OSError: The file can't be removed.
    """
    with directory_below(root, parts[:-1]) as directory:
        os.unlink(parts[-1], dir_fd=directory)


def shown_error(error: OSError, operation: str, parts: Sequence[str]) -> str:
    """Return the text of an error for clients, without the path of the root."""
    return os_error_text(error, operation, "/".join(parts) or ".")


def _refuse_link(error: OSError, directory: int, parts: Sequence[str]) -> None:
    """Raise StoreError if the error came from a symbolic link."""
    if error.errno not in (errno.ELOOP, errno.ENOTDIR):
        return
    with contextlib.suppress(OSError):
        mode = os.stat(parts[-1], dir_fd=directory, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            text = f"{'/'.join(parts)} is a symbolic link, which is not followed"
            raise pb.StoreError(text) from None
