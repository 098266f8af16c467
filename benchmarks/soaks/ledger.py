"""Ledger of a journal's writers, and the rules which its content must follow.

Each append is one record. Writers number their records from zero, each is acknowledged before the
next one is sent, and each sets a register to its number, or removes the register. So content alone
tells what the registers must be.
"""

from __future__ import annotations

import dataclasses

from benchmarks.soaks.invariant import require
from benchmarks.soaks.records import Placed, Records, digest

REMOVING = 8
"""One in so many records of a writer removes its register."""


def removes_register(number: int) -> bool:
    """Return whether the record `number` removes the register of its writer."""
    return number % REMOVING == REMOVING - 1


@dataclasses.dataclass
class Ledger:
    """Knowledge of a journal's writers."""

    journal: str
    acknowledged: dict[int, Placed] = dataclasses.field(default_factory=dict)
    """Records of appends, by begin."""
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
        self.acknowledged[begin] = Placed(begin, end, name)
        self.head = max(self.head, end)


class ContentCheck:
    """Checks content of a journal in order, and tells which registers it leads to.

    Args:
        ledger: The journal.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._records = Records(ledger.journal)
        self._last: dict[str, int] = {}
        self._seen: dict[int, Placed] = {}

    @property
    def offset(self) -> int:
        """Offset behind the last whole record."""
        return self._records.offset

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
        for placed, content in self._records.feed(chunk):
            where = f"{self._ledger.journal} at {placed.begin}"
            require(placed.digest in self._ledger.attempted, f"{where}: torn or foreign bytes")
            writer, text, _ = content[8:].decode().split(" ", 2)
            number, last = int(text), self._last.get(writer, -1)
            # An append whose acknowledgement was lost is sent again, and may be there twice.
            require(number in (last, last + 1), f"{where}: {writer} {number} behind {last}")
            self._last[writer] = number
            self._seen[placed.begin] = placed

    def finish(self, head: int, acknowledged: dict[int, Placed]) -> None:
        """Require that the content ends at `head`, and has all that was `acknowledged`.

        What was seen so far is forgotten then, other than its effect.
        """
        journal = self._ledger.journal
        require(self._records.end == self.offset, f"{journal}: half an append before {head}")
        require(self.offset == head, f"{journal}: read up to {self.offset} of {head}")
        for begin, expected in acknowledged.items():
            found = self._seen.get(begin)
            require(found == expected, f"{journal}: acknowledged append at {begin} is lost")
        self._seen.clear()
