"""Files of an IntentLog: the lock, and the records. All functions block.

| file | content |
| --- | --- |
| `NAME` | the record of a log without a fence, replaced as a whole |
| `NAME.EPOCH-NUMBER` | a record of a log with a fence, whose register names the valid one |
| `NAME.lock` | locked while a process uses the log; it has the ID of that process |
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from gazette_aio.aio.file_lock import FileLock, holder_of
from gazette_aio.protocol.errors import LockedError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class RecordID(NamedTuple):
    """Identity of the records of a log with a fence; later ones are greater."""

    epoch: int
    """Epoch of the owner that wrote the record."""
    number: int
    """Number of the record within the epoch."""

    def file_of(self, path: Path) -> Path:
        """Return the file of the record, of the log at `path`."""
        return path if self == PLAIN else path.with_name(f"{path.name}.{self.epoch}-{self.number}")


PLAIN: Final = RecordID(0, 0)
"""The record of a log without a fence, which a fence may be added to later."""


def lock(held: FileLock, path: Path, *, is_optional: bool) -> None:
    """Acquire the lock of the log at `path`, which ends with its process at the latest. Idempotent.

    Args:
        held: The lock.
        path: Path of the log.
        is_optional: Whether to do without a lock on file systems that have none.

    Raises:
        LockedError: Another process holds it, or another object of this process.
        StoreError: The file can't be opened or locked.
    """
    if held.is_held:
        return
    file = path.with_name(f"{path.name}.lock")
    try:
        held.acquire(lambda: os.open(file, os.O_RDWR | os.O_CREAT, 0o600), is_optional=is_optional)
        try:
            held.sign()
        except BaseException:
            held.release()
            raise
    except BlockingIOError:
        raise LockedError(f"{file}: the log is in use by {holder_of(file)}") from None
    except OSError as error:
        raise StoreError(f"{file}: {error.strerror}") from error


def read_file(path: Path) -> bytes | None:
    """Return the content of a file, or None if there is none.

    Raises:
        StoreError: It can't be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error


def replace_file(path: Path, content: bytes, is_visible: Callable[[], None]) -> None:
    """Replace a file as a whole and durably. The caller holds the lock of the log.

    Args:
        path: Path of the file.
        content: Its new content.
        is_visible: Called when a later process may find the new content, before it's durable.

    Raises:
        StoreError: A step failed.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        try:
            _write_synced(temporary, content)
            os.replace(temporary, path)  # noqa: PTH105 - Every call of the system is here.
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)  # noqa: PTH108
            raise
        # Invariant: from here on the record may be found by a later process.
        is_visible()
        sync_directory(path)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error


def create_file(path: Path, content: bytes) -> None:
    """Write a file durably, which nobody reads before that.

    Raises:
        StoreError: A step failed.
    """
    try:
        try:
            _write_synced(path, content)
            sync_directory(path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(path)  # noqa: PTH108
            raise
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error


def append_file(path: Path, content: bytes) -> None:
    """Append to a file that exists. Nothing is synced.

    Raises:
        FileNotFoundError: There is no such file.
        StoreError: A step failed.
    """
    try:
        # Without O_CREAT, which would create a file that isn't a record.
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            _write_all(descriptor, content)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error


def remove_file(path: Path) -> None:
    """Remove a file that nobody needs. What can't be removed stays."""
    with contextlib.suppress(OSError):
        os.unlink(path)  # noqa: PTH108


def sync_directory(path: Path) -> None:
    """Make the name of a file durable.

    Raises:
        OSError: A step failed.
    """
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def find_records(path: Path) -> set[RecordID]:
    """Return the records of the log at `path`: that of its name, and those of fences.

    Raises:
        StoreError: The directory can't be listed.
    """
    pattern = re.compile(re.escape(path.name) + r"(?:\.([1-9]\d*)-([1-9]\d*))?")
    try:
        names = os.listdir(path.parent)  # noqa: PTH208
    except OSError as error:
        raise StoreError(f"{path.parent}: {error.strerror}") from error
    found = [match for name in names if (match := pattern.fullmatch(name))]
    return {RecordID(int(match[1] or 0), int(match[2] or 0)) for match in found}


def _write_synced(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        _write_all(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
