"""Reading of clocks, flags and producers from the UUIDs of messages."""

from __future__ import annotations

import struct
from binascii import unhexlify
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from gazette_aio.message.uuid import RAW_LENGTH, TEXT_LENGTH

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gazette_aio.message.core.plain.splitting import Block

Row = tuple[bytes, int, int, int, bytes, int, bool]
"""One message: payload, begin, end, clock, producer, flags, and whether its UUID is explicit: not
made up of clock, flags and producer."""
PAYLOAD: Final = 0
BEGIN: Final = 1
END: Final = 2
CLOCK: Final = 3
PRODUCER: Final = 4
FLAGS: Final = 5
EXPLICIT: Final = 6

Stamp = tuple[int, bytes, int, bool]
"""The last members of a Row."""

_MOST_TAILS = 4096
_LOWS = 0xFFFFFFFF << 4
"""Bits of a clock that are the first digits of a UUID."""
_halves_of = struct.Struct(">QQ").unpack
_low_of = struct.Struct(">I").unpack


def stamp_of(raw: bytes) -> Stamp:
    """Return the stamp of the 16 bytes of a UUID. Neither version nor variant are required."""
    high, low = _halves_of(raw)
    clock = (high & 0xFFF) << 52 | (high >> 16 & 0xFFFF) << 36 | high >> 32 << 4 | low >> 58 & 0xF
    is_time = high >> 12 & 0xF == 1 and low >> 62 == 2
    return clock, raw[10:], low >> 48 & 0x3FF, not is_time


def _raw_of(text: bytes) -> bytes | None:
    """Return the bytes of the canonical text of a UUID, or None if it isn't."""
    if len(text) != TEXT_LENGTH or text[8:24:5] != b"----":
        return None
    try:
        raw = unhexlify(text.replace(b"-", b""))
    except ValueError:
        return None
    return raw if len(raw) == RAW_LENGTH else None


_ZERO = bytes(RAW_LENGTH)


class StampReader:
    """Reads the stamps of messages.

    All of a UUID but the low 32 bits of its timestamp recurs in the messages of a producer for
    minutes: this *tail* is looked up rather than parsed.

    Args:
        prefix: Constant bytes before the UUID, if any.
        suffix: Constant bytes after it, which is text then. None if it's 16 bytes.
        path: Names of nested JSON members that lead to a UUID that has another place, if any.
        strict: Leave UUIDs that are neither zero nor of version 1 to the caller.
    """

    def __init__(
        self,
        prefix: bytes | None,
        suffix: bytes | None,
        path: Sequence[bytes] | None,
        *,
        strict: bool,
    ) -> None:
        if path is not None and suffix is None:
            raise ValueError("text has a suffix")
        self._prefix = prefix
        self._suffix = suffix
        self._find_text: Callable[[bytes], str | None] | None = None
        if path is not None:
            names = tuple(name.decode() for name in path)
            self._find_text = member_reader(names, cast("Any", str | None))
        self._strict = strict
        self._tails: dict[bytes, tuple[int, bytes, int]] = {}
        self._low_at = len(prefix or b"")
        self._tail_at = self._low_at + (4 if suffix is None else 8)
        uuid_length = RAW_LENGTH if suffix is None else TEXT_LENGTH
        self._tail_end = self._low_at + uuid_length + len(suffix or b"")

    def read_rows(self, block: Block) -> list[Row]:
        """Return the rows of frames, up to the first whose UUID isn't clear."""
        rows: list[Row] = []
        add = rows.append
        prefix, find_tail = self._prefix or b"", self._tails.get
        low_at, tail_at, tail_end = self._low_at, self._tail_at, self._tail_end
        raw_of = bytes if self._suffix is None else unhexlify
        # Hot: a call for each message would take longer than all else.
        for payload, begin, end in zip(*block, strict=True):
            tail = find_tail(payload[tail_at:tail_end])
            if tail is not None and payload.startswith(prefix):
                try:
                    (low,) = _low_of(raw_of(payload[low_at:tail_at]))
                except ValueError:
                    pass
                else:
                    base, producer, flags = tail
                    add((payload, begin, end, base | low << 4, producer, flags, False))
                    continue
            stamp = self.read(payload)
            if stamp is None:
                break
            add((payload, begin, end, *stamp))
        return rows

    def read(self, payload: bytes) -> Stamp | None:
        """Return the stamp of a message, or None if the caller has to find it, or the error."""
        raw = self._read_placed(payload)
        is_placed = raw is not None
        if raw is None and self._find_text is not None:
            raw = self._read_member(self._find_text, payload)
        if raw is None:
            return None
        stamp = stamp_of(raw)
        if stamp[-1]:
            return None if self._strict and raw != _ZERO else stamp
        if is_placed:
            if len(self._tails) >= _MOST_TAILS:
                self._tails.clear()
            clock, producer, flags, _ = stamp
            self._tails[payload[self._tail_at : self._tail_end]] = clock & ~_LOWS, producer, flags
        return stamp

    def _read_placed(self, payload: bytes) -> bytes | None:
        """Return the UUID at the usual place."""
        if self._prefix is None or not payload.startswith(self._prefix):
            return None
        found = payload[self._low_at : self._tail_end]
        if self._suffix is None:
            return found if len(found) == RAW_LENGTH else None
        return _raw_of(found[:TEXT_LENGTH]) if found[TEXT_LENGTH:] == self._suffix else None

    @staticmethod
    def _read_member(find_text: Callable[[bytes], str | None], payload: bytes) -> bytes | None:
        """Return the UUID at the path, or zero if it's missing or null."""
        try:
            text = find_text(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        return _ZERO if text is None else _raw_of(text.encode())


@lru_cache(maxsize=64)
def member_reader(path: tuple[str, ...], kind: Any) -> Callable[[bytes], Any]:
    """Return a function that returns the member of a JSON document at a path, or None.

    It decodes nothing else. It's kept, because each shard has adapters, and classes are costly to
    make and to collect.

    Args:
        path: Names of nested members.
        kind: Type of the member.
    """
    for name in reversed(path):
        field = msgspec.field(default=None, name=name)
        kind = msgspec.defstruct("Stamped", [("member", kind, field)]) | None
    decode = msgspec.json.Decoder(kind).decode

    def read(document: bytes) -> Any:
        value: Any = decode(document)
        for _ in path:
            value = None if value is None else value.member
        return value

    return read
