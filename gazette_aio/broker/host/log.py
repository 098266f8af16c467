"""Logs of the broker: files of checksummed records.

A record is `u32 length | u32 CRC-32 of the payload | payload`, little-endian. A crash may leave a
torn record at the end of a log.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import zlib
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    from gazette_aio.broker.host.files import FileOps

_HEADER = struct.Struct("<II")
MAX_PAYLOAD = 1 << 28
"""Longest payload, in bytes; a longer length isn't valid."""
SEARCHED_BYTES = 1 << 30
"""Most bytes whose sums a search computes: content of clients, such as registers, may contain any
number of headers that claim long payloads."""


class FoundRecord(NamedTuple):
    """A record as found in a log."""

    offset: int
    """Offset of the first byte of the record's header."""
    end: int
    """Offset after the last byte of its payload."""
    payload: bytes


def encode_record(payload: bytes) -> bytes:
    """Return the bytes of a record of `payload`, which must not be empty."""
    assert 0 < len(payload) <= MAX_PAYLOAD, "payload out of bounds"
    return _HEADER.pack(len(payload), zlib.crc32(payload)) + payload


def _record_at(data: bytes | memoryview, offset: int) -> FoundRecord | None:
    """Return the record at `offset` of `data`; None unless a complete and valid record is there."""
    start = offset + _HEADER.size
    if start > len(data):
        return None
    length, checksum = _HEADER.unpack_from(data, offset)
    end = start + length
    if not 0 < length <= MAX_PAYLOAD or end > len(data):
        return None
    payload = memoryview(data)[start:end]
    if zlib.crc32(payload) != checksum:
        return None
    return FoundRecord(offset, end, bytes(payload))


def scan_records(data: bytes | memoryview, offset: int = 0) -> tuple[list[FoundRecord], int]:
    """Return the valid records from `offset` on, and the offset after the last of them."""
    records: list[FoundRecord] = []
    while (record := _record_at(data, offset)) is not None:
        records.append(record)
        offset = record.end
    return records, offset


def find_tagged_record(data: bytes, start: int, tag: bytes) -> FoundRecord | None:
    """Return the first valid record after `start` whose payload begins with `tag`, if it's found.

    A search gives up after `SEARCHED_BYTES`.
    """
    left = SEARCHED_BYTES
    position = start + _HEADER.size
    while (position := data.find(tag, position)) >= 0:
        offset = position - _HEADER.size
        length, _ = _HEADER.unpack_from(data, offset)
        if length <= len(data) - position:
            left -= length
            if left < 0:
                return None
            if (record := _record_at(data, offset)) is not None:
                return record
        position += 1
    return None


class RecordLog:
    """A log that is written. All methods block.

    Args:
        path: The file, created when it's opened.
        length: Bytes of its sound records. Anything after them is overwritten.
        sync: Whether records are durable when `append()` returns.
    """

    def __init__(self, files: FileOps, path: Path, length: int = 0, *, sync: bool = False) -> None:
        self.path: Path = path
        self.length: int = length
        self.has_failed: bool = False
        """Whether it's unknown what is on disk: a restart has to read it before more is written."""
        self._files = files
        self._sync = sync
        self._descriptor = -1
        self._is_torn = False

    def __repr__(self) -> str:
        return f"<RecordLog {self.path.name} bytes={self.length}>"

    @property
    def is_open(self) -> bool:
        """Whether the file is held open."""
        return self._descriptor >= 0

    def open(self) -> None:
        """Open the file, unless it's open."""
        if self._descriptor < 0:
            self._descriptor = self._files.open(self.path, os.O_RDWR | os.O_CREAT)

    def append(self, payload: bytes) -> None:
        """Write a record.

        Raises:
            OSError: The log `has_failed`, or the record can't be written or made durable. It's cut
                off now, or before the next record.
        """
        if self.has_failed:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(self.path))
        self.open()
        if self._is_torn:
            self.cut()
        record = encode_record(payload)
        self._is_torn = True
        try:
            self._files.pwrite(self._descriptor, record, self.length)
            if self._sync:
                self.sync()
        except OSError:
            if not self.has_failed:
                with contextlib.suppress(OSError):
                    self.cut()
            raise
        self._is_torn = False
        self.length += len(record)

    def cut(self) -> None:
        """Cut off the record whose write failed, if any: a part of it may be in the file.

        Raises:
            OSError: The record can't be cut off.
        """
        if self._is_torn:
            self.open()
            self._files.truncate(self._descriptor, self.length)
            if self._sync:
                self.sync()
            self._is_torn = False

    def sync(self) -> None:
        """Make the records durable. The file must be open.

        Raises:
            OSError: They can't be made durable.
        """
        try:
            self._files.datasync(self._descriptor)
        except OSError as error:
            # Invariant: after other failures nothing is synced again, since a second sync could
            # succeed without the writes that the failed sync lost.
            self.has_failed = error.errno not in (errno.ENOSPC, errno.EDQUOT)
            raise

    def duplicate(self) -> int:
        """Return a duplicate of the descriptor of the open file, for the caller to close."""
        return self._files.duplicate(self._descriptor)

    def close(self) -> None:
        """Close the file, if it's open."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            self._files.close(descriptor)
