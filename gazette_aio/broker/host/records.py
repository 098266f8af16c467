"""Length-prefixed, checksummed records of the broker's own log files.

A record is `u32 length | u32 CRC-32 of the payload | payload`, little-endian. A log is a
concatenation of records; a crash may leave a torn record at its end.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

_HEADER = struct.Struct("<II")
HEADER_LENGTH = _HEADER.size
MAX_PAYLOAD = 1 << 28
"""Longest payload which is written, and believed when it's read."""


class FoundRecord(NamedTuple):
    """A record as found in a log."""

    offset: int
    """Offset of the first byte of the record's header."""
    end: int
    """Offset after the last byte of its payload."""
    payload: bytes


def encode_record(payload: bytes) -> bytes:
    """Return the bytes of a record holding `payload`, which isn't empty."""
    assert 0 < len(payload) <= MAX_PAYLOAD, "payload out of bounds"
    return _HEADER.pack(len(payload), zlib.crc32(payload)) + payload


def decode_record(data: bytes | memoryview, offset: int) -> FoundRecord | None:
    """Return the record at `offset` of `data`, or None without a complete and valid record."""
    start = offset + HEADER_LENGTH
    if offset < 0 or start > len(data):
        return None
    length, checksum = _HEADER.unpack_from(data, offset)
    end = start + length
    if not 0 < length <= MAX_PAYLOAD or end > len(data):
        return None
    payload = bytes(data[start:end])
    if zlib.crc32(payload) != checksum:
        return None
    return FoundRecord(offset, end, payload)


def scan_records(data: bytes | memoryview) -> tuple[list[FoundRecord], int]:
    """Return the valid records at the head of `data`, and the offset after the last record."""
    records: list[FoundRecord] = []
    offset = 0
    while (record := decode_record(data, offset)) is not None:
        records.append(record)
        offset = record.end
    return records, offset


def find_tagged_record(data: bytes, start: int, tag: bytes) -> FoundRecord | None:
    """Return the first valid record after `start` whose payload begins with `tag`.

    Distinguishes damage in the middle of a log (a valid record follows) from a torn tail.
    """
    position = start + HEADER_LENGTH
    while (position := data.find(tag, position)) >= 0:
        record = decode_record(data, position - HEADER_LENGTH)
        if record is not None:
            return record
        position += 1
    return None
