"""Heads: how much of each log is acknowledged, in one file outside of the logs' directories.

A log that is shorter than its head is damaged. What isn't sound after the head was never
acknowledged, and is cut off. A head is written after what it claims, and isn't synced: it may be
out of date, but never claims too much.

What is acknowledged before it's synced has another head, with the machine's present boot. It counts
until the next boot, because a power loss may keep the head, and lose the content.

The file begins with a line that names its form. Then each head has a slot of two halves, written in
turn, so that a torn write leaves the previous head. A half is
`u64 number | name in 40 bytes | i64 first | i64 end | i64 length | boot in 8 bytes | u32 CRC-32`,
little-endian. Without a name, the slot is free.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from gazette_aio.broker.host.files import write_durably

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gazette_aio.broker.host.files import FileOps

_BODY = struct.Struct("<Q40sqqq8s")
_CHECKSUM = struct.Struct("<I")
_HALF_BYTES = 128
_SLOT_BYTES = 2 * _HALF_BYTES
_FORM = b"gazette-aio heads 1\n".ljust(_SLOT_BYTES, b"\0")
_Key = tuple[str, bytes]
"""Name and boot."""
_DURABLE = bytes(8)
"""Boot of a head that counts after each boot."""
_FREE: _Key = ("", _DURABLE)


class Head(NamedTuple):
    """Acknowledged part of a log and of the content that it describes."""

    first: int
    """Which log: the first offset of a fragment, or the revision of a snapshot."""
    end: int
    """End of acknowledged content, or an acknowledged revision."""
    length: int
    """Bytes of the log that are acknowledged."""


_NONE = Head(0, 0, 0)


@dataclass(slots=True)
class _Slot:
    """A slot of the file."""

    index: int
    number: int = 0
    """Number of the newest half."""
    head: Head = _NONE


class Heads:
    """Heads by the names of directories. All methods may block.

    Args:
        files: File operations.
        path: The file.
    """

    def __init__(self, files: FileOps, path: Path) -> None:
        self.path: Path = path
        self._files = files
        boot = files.boot_id()
        self._boot = (
            hashlib.sha1(boot.encode(), usedforsecurity=False).digest()[:8] if boot else b""
        )
        self._descriptor = -1
        self._slots: dict[_Key, _Slot] = {}
        self._free: list[_Slot] = []
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Heads of {len(self.names)} logs>"

    @property
    def names(self) -> set[str]:
        """Names that have a head."""
        with self._lock:
            return {name for name, _ in self._slots}

    def load(self) -> bool:
        """Open the file; return False if it's missing, or doesn't begin as such a file does.

        Raises:
            OSError: The file can't be opened or read.
        """
        self.close()
        self._slots, self._free = {}, []
        try:
            data = self._files.read_file(self.path)
        except FileNotFoundError:
            return False
        if not data.startswith(_FORM):
            return False
        self._descriptor = self._files.open(self.path, os.O_RDWR)
        for index, begin in enumerate(range(_SLOT_BYTES, len(data), _SLOT_BYTES)):
            self._load_slot(index, data[begin : begin + _SLOT_BYTES])
        return True

    def _load_slot(self, index: int, data: bytes) -> None:
        slot, key = _Slot(index), _FREE
        for begin in (0, _HALF_BYTES):
            body, checksum = data[begin : begin + _BODY.size], data[begin + _BODY.size :]
            if checksum[: _CHECKSUM.size] != _CHECKSUM.pack(zlib.crc32(body)):
                continue
            number, name, first, end, length, boot = _BODY.unpack(body)
            if number > slot.number:
                slot.number, slot.head = number, Head(first, end, length)
                key = name.rstrip(b"\0").decode(), boot
        if key[0] and key[1] in (_DURABLE, self._boot):
            self._slots[key] = slot
        else:
            self._free.append(slot)

    def create(self, heads: Mapping[str, Head], *, sync: bool) -> None:
        """Replace the file by one with the given heads, which are durable.

        Raises:
            OSError: The file can't be written.
        """
        number = 2  # Of the first half.
        slots = [_half(number, (name, _DURABLE), head) for name, head in heads.items()]
        parts = [_FORM, *(slot.ljust(_SLOT_BYTES, b"\0") for slot in slots)]
        write_durably(self._files, self.path, b"".join(parts), sync=sync)
        self.load()

    def get(self, name: str) -> Head | None:
        """Return the head of a name, or None if nothing is known to be acknowledged."""
        slots = (self._slots.get((name, boot)) for boot in (_DURABLE, self._boot))
        return max((slot.head for slot in slots if slot is not None), default=None)

    def record(self, name: str, head: Head, *, durable: bool) -> None:
        """Write the head of a name, unless a later one was written.

        Args:
            name: Name of a directory.
            head: What is acknowledged.
            durable: Whether it's durable, too. Otherwise, the head counts until the next boot, and
                nothing is written where the boot is unknown.

        Raises:
            OSError: The head can't be written. The previous one remains.
        """
        key = name, _DURABLE if durable else self._boot
        if not key[1]:
            return
        with self._lock:
            slot = self._slots.get(key)
            if slot is None or slot.head < head:
                self._write(key, head)

    def restart(self, name: str, head: Head) -> None:
        """Replace the heads of a name by a durable one, even if it's less.

        Raises:
            OSError: The heads can't be replaced.
        """
        with self._lock:
            self._write((name, _DURABLE), head)
            self._drop((name, self._boot))

    def remove(self, name: str) -> None:
        """Forget a name. Idempotent.

        Raises:
            OSError: A head can't be removed.
        """
        with self._lock:
            for boot in (_DURABLE, self._boot):
                self._drop((name, boot))

    def sync(self) -> None:
        """Make all heads durable.

        Raises:
            OSError: They can't be made durable.
        """
        self._files.datasync(self._descriptor)

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            self._files.close(descriptor)

    def _drop(self, key: _Key) -> None:
        if (slot := self._slots.get(key)) is not None:
            self._put(slot, _FREE, _NONE)
            del self._slots[key]
            self._free.append(slot)

    def _write(self, key: _Key, head: Head) -> None:
        if (slot := self._slots.get(key)) is not None:
            self._put(slot, key, head)
            return
        if not self._free:
            self._free.append(_Slot(len(self._slots)))
        self._put(self._free[-1], key, head)
        self._slots[key] = self._free.pop()

    def _put(self, slot: _Slot, key: _Key, head: Head) -> None:
        number = slot.number + 1
        position = (slot.index + 1) * _SLOT_BYTES + number % 2 * _HALF_BYTES
        self._files.pwrite(self._descriptor, _half(number, key, head), position)
        slot.number, slot.head = number, head


def _half(number: int, key: _Key, head: Head) -> bytes:
    name, boot = key
    body = _BODY.pack(number, name.encode(), *head, boot)
    return body + _CHECKSUM.pack(zlib.crc32(body))
