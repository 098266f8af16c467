"""Records of a journal's commit log, which define its committed content.

Each fragment of a journal has a content file and a log beside it. The log opens with BEGIN, and has
a COMMIT for each append with the SHA-1 of its content, so that the two files may reach the disk in
any order: a record whose content is missing was never acknowledged.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

from google.protobuf.message import DecodeError

import gazette_aio.protocol as pb

TAG = b"jl"
_BEGIN = struct.Struct("<2sBqqHHI")
_COMMIT = struct.Struct("<2sBqq20sdI")
_PERSISTED = struct.Struct("<2sBq")
_NO_REGISTERS = 0xFFFFFFFF


class EntryKind(enum.IntEnum):
    """Kind of a record."""

    BEGIN = 1
    COMMIT = 2
    PERSISTED = 3


@dataclass(frozen=True, slots=True)
class Begin:
    """The fragment begins. Repeated only while it's empty."""

    journal: str
    begin: int
    previous_end: int
    """End of the fragment before it, which is less than `begin` if the journal skipped ahead."""
    codec: int
    registers: bytes


@dataclass(frozen=True, slots=True)
class Commit:
    """An append is part of the journal."""

    end: int
    length: int
    digest: bytes
    first_append_seconds: float
    registers: bytes | None
    """Registers as of this append, or None if it didn't change them."""


@dataclass(frozen=True, slots=True)
class Persisted:
    """The fragment is persisted up to `end`, and its content may be removed."""

    end: int


Entry = Begin | Commit | Persisted


def encode_entry(entry: Entry) -> bytes:
    """Return the payload of a log entry."""
    match entry:
        case Begin():
            name = entry.journal.encode()
            head = _BEGIN.pack(
                TAG,
                EntryKind.BEGIN,
                entry.begin,
                entry.previous_end,
                entry.codec,
                len(name),
                len(entry.registers),
            )
            return head + name + entry.registers
        case Commit():
            registers = entry.registers
            head = _COMMIT.pack(
                TAG,
                EntryKind.COMMIT,
                entry.end,
                entry.length,
                entry.digest,
                entry.first_append_seconds,
                _NO_REGISTERS if registers is None else len(registers),
            )
            return head + (registers or b"")
        case Persisted():
            return _PERSISTED.pack(TAG, EntryKind.PERSISTED, entry.end)


def decode_entry(payload: bytes) -> Entry | None:
    """Return the entry of a payload, or None if the payload is invalid."""
    if len(payload) < 3 or payload[:2] != TAG:
        return None
    try:
        match payload[2]:
            case EntryKind.BEGIN:
                return _decode_begin(payload)
            case EntryKind.COMMIT:
                return _decode_commit(payload)
            case EntryKind.PERSISTED:
                return Persisted(_PERSISTED.unpack(payload)[2])
            case _:
                return None
    except (struct.error, ValueError):
        return None


def _decode_begin(payload: bytes) -> Begin | None:
    _, _, begin, previous, codec, name_length, length = _BEGIN.unpack_from(payload)
    name_end = _BEGIN.size + name_length
    registers = payload[name_end:]
    if len(payload) != name_end + length:
        return None
    if not 0 <= previous <= begin or not _is_label_set(registers):
        return None
    return Begin(payload[_BEGIN.size : name_end].decode(), begin, previous, codec, registers)


def _decode_commit(payload: bytes) -> Commit | None:
    _, _, end, length, digest, first, registers_length = _COMMIT.unpack_from(payload)
    rest = payload[_COMMIT.size :]
    registers = None if registers_length == _NO_REGISTERS else rest
    if not 0 < length <= end or len(rest) != len(registers or b""):
        return None
    if registers is not None and (
        len(registers) != registers_length or not _is_label_set(registers)
    ):
        return None
    return Commit(end, length, digest, first, registers)


def _is_label_set(data: bytes) -> bool:
    try:
        pb.LabelSet.FromString(data)
    except DecodeError:
        return False
    return True
