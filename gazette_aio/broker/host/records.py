"""Length-prefixed, checksummed records of the broker's own log files.

A record is `u32 length | u32 CRC-32 of the payload | payload`, little-endian. A log is a
concatenation of records; a crash may leave a torn record at its end.
"""

from __future__ import annotations

import functools
import struct
import zlib
from typing import Final, NamedTuple

_HEADER = struct.Struct("<II")
HEADER_LENGTH = _HEADER.size
MAX_PAYLOAD = 1 << 28
"""Longest payload, in bytes; a longer length isn't valid."""

_POLYNOMIAL: Final = 0xEDB88320  # Of CRC-32, the lowest power first.
_BLOCK_BYTES: Final = 1 << 10


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


def decode_record(data: bytes | memoryview, offset: int) -> FoundRecord | None:
    """Return the record at `offset` of `data`; None unless a complete and valid record is there."""
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
    # Invariant: the search takes about the time of one pass. Content of clients, such as registers,
    # may contain any number of headers that claim long payloads.
    sums = _Sums(data)
    position = start + HEADER_LENGTH
    while (position := data.find(tag, position)) >= 0:
        length, checksum = _HEADER.unpack_from(data, position - HEADER_LENGTH)
        end = position + length
        if 0 < length <= MAX_PAYLOAD and end <= len(data) and sums.of(position, end) == checksum:
            return FoundRecord(position - HEADER_LENGTH, end, bytes(data[position:end]))
        position += 1
    return None


class _Sums:
    """CRC-32 of any part of `data`, in a time that doesn't grow with the part."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._of_blocks = [0]  # Sums of all content before each block.

    def of(self, begin: int, end: int) -> int:
        """Return the sum of a part."""
        if end - begin <= _BLOCK_BYTES:
            return zlib.crc32(self._data[begin:end])
        # The sum of a whole is the sum of its head, carried over the rest, plus the sum of the
        # rest.
        return self._up_to(end) ^ _carried(self._up_to(begin), end - begin)

    def _up_to(self, position: int) -> int:
        block = position // _BLOCK_BYTES
        while (known := len(self._of_blocks)) <= block:
            content = self._data[(known - 1) * _BLOCK_BYTES : known * _BLOCK_BYTES]
            self._of_blocks.append(zlib.crc32(content, self._of_blocks[-1]))
        return zlib.crc32(self._data[block * _BLOCK_BYTES : position], self._of_blocks[block])


def _carried(checksum: int, count: int) -> int:
    """Return the contribution of a sum to the sum of its content and `count` further bytes."""
    for tables in _tables():
        if not count:
            break
        if count & 1:
            checksum = _looked_up(tables, checksum)
        count >>= 1
    return checksum


def _looked_up(tables: list[list[int]], checksum: int) -> int:
    low, second, third, high = tables
    return (
        low[checksum & 0xFF]
        ^ second[checksum >> 8 & 0xFF]
        ^ third[checksum >> 16 & 0xFF]
        ^ high[checksum >> 24]
    )


@functools.cache
def _tables() -> list[list[list[int]]]:
    """Return tables that carry a sum over 1, 2, 4, … bytes: one table for each byte of the sum."""
    one: list[int] = []
    for value in range(256):
        checksum = value
        for _ in range(8):
            checksum = checksum >> 1 ^ (_POLYNOMIAL if checksum & 1 else 0)
        one.append(checksum)
    tables = [[one, *([value << 8 * (byte - 1) for value in range(256)] for byte in (1, 2, 3))]]
    while 1 << len(tables) <= MAX_PAYLOAD:
        last = tables[-1]
        tables.append([[_looked_up(last, checksum) for checksum in table] for table in last])
    return tables
