"""Keys and values of checkpoints in RocksDB, as other implementations have them.

Each commit stores the checkpoint under one key, and the offset of each source under a key of its
own, as early releases did. The offsets are read only if there's no checkpoint.

Source: the ordered encoding of keys of CockroachDB.
"""

from __future__ import annotations

from typing import Final

from gazette_aio.protocol.errors import StoreError

_NULL: Final = b"\x00"
_TEXT: Final = b"\x12"
_END: Final = b"\x00\x01"
_ZERO: Final = 0x88
_SMALL_MAX: Final = 109
_LONG: Final = 0xF5


def _text(data: bytes) -> bytes:
    return _TEXT + data.replace(b"\x00", b"\x00\xff") + _END


CHECKPOINT_KEY: Final = _NULL + _text(b"checkpoint")
"""Key of the checkpoint, whose value is its protobuf encoding."""

OFFSETS_PREFIX: Final = _NULL + _text(b"mark")
"""Prefix of the keys of offsets."""

OFFSETS_END: Final = OFFSETS_PREFIX[:-1] + bytes([OFFSETS_PREFIX[-1] + 1])
"""Key that follows all keys of offsets."""


def offset_key(journal: str) -> bytes:
    """Return the key of the offset of a journal."""
    return OFFSETS_PREFIX + _text(journal.encode())


def journal_of(key: bytes) -> str:
    """Return the journal of the key of an offset.

    Raises:
        StoreError: It isn't such a key.
    """
    text = key[len(OFFSETS_PREFIX) :]
    if not key.startswith(OFFSETS_PREFIX) or text[:1] != _TEXT or text[-2:] != _END:
        raise StoreError(f"unexpected key of an offset: {key!r}")
    try:
        return text[1:-2].replace(b"\x00\xff", b"\x00").decode()
    except UnicodeDecodeError as error:
        raise StoreError(f"unexpected key of an offset: {key!r}") from error


def encode_offset(offset: int) -> bytes:
    """Return the value of an offset, which sorts as the number does."""
    if 0 <= offset <= _SMALL_MAX:
        return bytes([_ZERO + offset])
    if offset > 0:
        length = (offset.bit_length() + 7) // 8
        return bytes([_LONG + length]) + offset.to_bytes(length, "big")
    length = ((-offset).bit_length() + 7) // 8
    return bytes([_ZERO - length]) + (offset + (1 << 8 * length)).to_bytes(length, "big")


def decode_offset(value: bytes) -> int:
    """Return the offset of a value.

    Raises:
        StoreError: It isn't such a value.
    """
    first = value[0] if value else 0
    length = first - _LONG if first > _LONG else _ZERO - first if first < _ZERO else 0
    if not 0x80 <= first <= 0xFD or len(value) != 1 + length:
        raise StoreError(f"unexpected value of an offset: {value!r}")
    if not length:
        return first - _ZERO
    number = int.from_bytes(value[1:], "big")
    return number if first > _LONG else number - (1 << 8 * length)
