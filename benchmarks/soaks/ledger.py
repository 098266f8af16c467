"""What the writers of a journal know of it, and the rules which its content must follow.

Each append is one record: its length, who wrote it, a number and noise. Writers number their
records from zero, each is acknowledged before the next one is sent, and each sets a register to
its number, or removes the register. So content alone tells what the registers must be.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING

from benchmarks.soaks.invariant import require

if TYPE_CHECKING:
    import random

LONGEST_BYTES = 6_000
REMOVING = 8
"""One in so many records of a writer removes its register."""


def record(writer: str, number: int, rng: random.Random) -> bytes:
    """Return the content of one append."""
    noise = rng.randbytes(rng.randrange(1, LONGEST_BYTES)).hex().encode()
    body = f"{writer} {number} ".encode() + noise
    return b"%08x" % len(body) + body


def removes_register(number: int) -> bool:
    """Return whether the record `number` removes the register of its writer."""
    return number % REMOVING == REMOVING - 1


def digest(content: bytes) -> bytes:
    """Return what stands for a record."""
    return hashlib.blake2b(content, digest_size=16).digest()


@dataclasses.dataclass
class Ledger:
    """What writers know of one journal."""

    journal: str
    acknowledged: dict[int, tuple[int, bytes]] = dataclasses.field(default_factory=dict)
    """By begin: the end of an append, and the digest of its content."""
    attempted: set[bytes] = dataclasses.field(default_factory=set)
    """Digests of everything which was ever sent."""
    head: int = 0
    """End of the last acknowledged append."""

    def attempt(self, content: bytes) -> bytes:
        """Note that `content` is about to be sent; return its digest."""
        name = digest(content)
        self.attempted.add(name)
        return name

    def acknowledge(self, begin: int, end: int, length: int, name: bytes) -> None:
        """Note where an append was committed."""
        where = f"{self.journal} [{begin}, {end})"
        require(end - begin == length, f"{where}: {length} bytes were acknowledged")
        require(begin not in self.acknowledged, f"{where}: two appends")
        self.acknowledged[begin] = end, name
        self.head = max(self.head, end)


class ContentCheck:
    """Checks content of a journal in order, and tells which registers it leads to.

    Args:
        ledger: The journal.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._pending = bytearray()
        self._last: dict[str, int] = {}
        self._seen: dict[int, tuple[int, bytes]] = {}
        self.offset = 0
        """Offset behind the last whole record."""

    @property
    def registers(self) -> dict[str, str]:
        """Registers as of the last whole record."""
        return {
            writer: str(number)
            for writer, number in self._last.items()
            if not removes_register(number)
        }

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the journal."""
        self._pending += chunk
        position = 0
        while len(self._pending) - position >= 8:
            length = self._length(bytes(self._pending[position : position + 8]))
            end = position + 8 + length
            if end > len(self._pending):
                break
            self._record(bytes(self._pending[position:end]))
            position = end
        del self._pending[:position]

    def finish(self, head: int, acknowledged: dict[int, tuple[int, bytes]]) -> None:
        """Require that the content ends at `head`, and has all that was `acknowledged`.

        What was seen so far is forgotten then, other than its effect.
        """
        journal = self._ledger.journal
        require(not self._pending, f"{journal}: half an append before {head}")
        require(self.offset == head, f"{journal}: read up to {self.offset} of {head}")
        for begin, expected in acknowledged.items():
            found = self._seen.get(begin)
            require(found == expected, f"{journal}: acknowledged append at {begin} is lost")
        self._seen.clear()

    def _length(self, text: bytes) -> int:
        try:
            return int(text, 16)
        except ValueError:
            require(False, f"{self._ledger.journal}: torn or foreign bytes at {self.offset}")
            raise

    def _record(self, content: bytes) -> None:
        where = f"{self._ledger.journal} at {self.offset}"
        name = digest(content)
        require(name in self._ledger.attempted, f"{where}: torn or foreign bytes")
        writer, number, _ = content[8:].decode().split(" ", 2)
        last = self._last.get(writer, -1)
        # An append whose acknowledgement was lost is sent again, and may be there twice.
        require(int(number) in (last, last + 1), f"{where}: {writer} {number} behind {last}")
        self._last[writer] = int(number)
        end = self.offset + len(content)
        self._seen[self.offset] = end, name
        self.offset = end
