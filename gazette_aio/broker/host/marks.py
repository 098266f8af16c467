"""Marks: small files that record how much of other files is acknowledged.

A mark is written after the marked content is durable, and isn't synced itself: a mark may be out of
date, but never claims too much. By the mark, recovery distinguishes content that may be torn, and
is cut off, from acknowledged content, whose damage is reported.

Content that is acknowledged before it's synced has a separate mark, whose name has the machine's
present boot. That mark counts until the next boot, because a power loss may keep the mark, and lose
the content.

The file has two slots, which are written in turn, so that a torn write leaves the previous mark. A
slot is `u64 number | i64 first | i64 end | i64 length | u32 CRC-32 of these`, little-endian.
"""

from __future__ import annotations

import os
import struct
import threading
import zlib
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    from gazette_aio.broker.host.files import FileOps

_BODY = struct.Struct("<Qqqq")
_CHECKSUM = struct.Struct("<I")
_SLOT_BYTES = 64


class Mark(NamedTuple):
    """Acknowledged part of a log and of the content that it describes."""

    first: int
    """Name of the log: the first offset of a fragment, or the number of a log."""
    end: int
    """End of acknowledged content, or an acknowledged revision."""
    length: int
    """Bytes of the log that are acknowledged."""


def newest_mark(files: FileOps, path: Path) -> Mark | None:
    """Return the newest valid mark of a path, or None if there's none. Blocks.

    Raises:
        OSError: A file exists, and can't be read.
    """
    marks = [MarkFile(files, path).read()]
    if (of_boot := path_of_boot(files, path)) is not None:
        marks.append(MarkFile(files, of_boot).read())
    return max((mark for mark in marks if mark is not None), default=None)


def path_of_boot(files: FileOps, path: Path) -> Path | None:
    """Return the path of the mark that counts until the next boot; None if the boot is unknown."""
    boot = files.boot_id()
    return path.with_name(f"{path.name}.{boot}") if boot else None


def mark_paths(path: Path) -> list[Path]:
    """Return the paths of all marks of a path, including marks that don't count any more."""
    return [path, *sorted(path.parent.glob(f"{path.name}.*"))]


class MarkFile:
    """The file of a mark. All methods block.

    Args:
        files: File operations.
        path: Path of the file.
        stays_open: Whether the file stays open after a write, until `close()`.
    """

    def __init__(self, files: FileOps, path: Path, *, stays_open: bool = False) -> None:
        self._files = files
        self._path = path
        self._stays_open = stays_open
        self._descriptor = -1
        self._number: int | None = None
        self._mark: Mark | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<MarkFile {self._path.name} {self._mark}>"

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self._path

    def read(self) -> Mark | None:
        """Return the newest sound mark, or None if there's none.

        Raises:
            OSError: The file exists, and can't be read.
        """
        self._number, self._mark = 0, None
        try:
            data = self._files.read_file(self._path)
        except FileNotFoundError:
            return None
        for offset in (0, _SLOT_BYTES):
            body = data[offset : offset + _BODY.size]
            checksum = data[offset + _BODY.size : offset + _BODY.size + _CHECKSUM.size]
            if len(checksum) < _CHECKSUM.size or _CHECKSUM.unpack(checksum) != (zlib.crc32(body),):
                continue
            number, *fields = _BODY.unpack(body)
            if number > self._number:
                self._number, self._mark = number, Mark(*fields)
        return self._mark

    def write(self, mark: Mark) -> None:
        """Write a mark, unless the file has a later mark.

        Raises:
            OSError: The mark can't be written. The previous mark remains.
        """
        with self._lock:
            if self._number is None:
                self.read()
            assert self._number is not None
            if self._mark is not None and mark <= self._mark:
                return
            number = self._number + 1
            body = _BODY.pack(number, *mark)
            slot = body + _CHECKSUM.pack(zlib.crc32(body))
            if self._descriptor < 0:
                self._descriptor = self._files.open(self._path, os.O_RDWR | os.O_CREAT)
            try:
                self._files.pwrite(self._descriptor, slot, number % 2 * _SLOT_BYTES)
            finally:
                if not self._stays_open:
                    self._close()
            self._number, self._mark = number, mark

    def close(self) -> None:
        """Close the file, if it's open."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._files.close(descriptor)
