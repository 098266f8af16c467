"""Records which writers append, and which readers find in the content of a journal.

Each record is its length, who wrote it, a number and noise.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING

from benchmarks.soaks.invariant import require

if TYPE_CHECKING:
    import random

LONGEST_BYTES = 6_000
_HEX = frozenset(b"0123456789abcdef")


def record(writer: str, number: int, rng: random.Random) -> bytes:
    """Return the content of one append."""
    noise = rng.randbytes(rng.randrange(1, LONGEST_BYTES)).hex().encode()
    body = f"{writer} {number} ".encode() + noise
    return b"%08x" % len(body) + body


def digest(content: bytes) -> bytes:
    """Return what stands for a record."""
    return hashlib.blake2b(content, digest_size=16).digest()


@dataclasses.dataclass(frozen=True, slots=True)
class Placed:
    """A record, and where it is."""

    begin: int
    end: int
    digest: bytes


class Records:
    """Splits content into records.

    Args:
        where: Journal, for texts.
        offset: Offset of the first byte.
    """

    def __init__(self, where: str, offset: int = 0) -> None:
        self.offset = offset
        """Offset behind the last whole record."""
        self._where = where
        self._pending = bytearray()

    @property
    def end(self) -> int:
        """Offset behind all content."""
        return self.offset + len(self._pending)

    def feed(self, chunk: bytes) -> list[tuple[Placed, bytes]]:
        """Take the next content, and return the records which it completes."""
        self._pending += chunk
        found: list[tuple[Placed, bytes]] = []
        position = 0
        while len(self._pending) - position >= 8:
            header = bytes(self._pending[position : position + 8])
            require(
                _HEX.issuperset(header),
                f"{self._where}: torn or foreign bytes at {self.offset}: {header!r}",
            )
            end = position + 8 + int(header, 16)
            if end > len(self._pending):
                break
            content = bytes(self._pending[position:end])
            length = end - position
            found.append((Placed(self.offset, self.offset + length, digest(content)), content))
            self.offset += length
            position = end
        del self._pending[:position]
        return found
