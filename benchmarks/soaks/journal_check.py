"""Check of a journal: records that its writers sent, and that its readers must find.

Each record tells its length, its writer, and a number which the writer counts from zero. A writer
is either exact, so that its records are there once and in order; or they are there at least once:
a batch of them whose acknowledgement was lost is there again, as a whole and right after what the
journal has of its writer so far. In either case what was acknowledged is at the offsets which were
told, and no record goes before one with a lower number for the first time.

Readers which come by may be ahead of acknowledgements, or behind them.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from benchmarks.soaks.invariant import require
from benchmarks.soaks.records import Placed, Records, digest, record

if TYPE_CHECKING:
    import random

_KEPT = 20_000
"""Records whose place is remembered, for those who read again."""


class Writer:
    """What one writer has sent to a journal.

    Args:
        name: Name, which is unique in its journal.
        is_exact: Whether each of its records is to be there once.
    """

    def __init__(self, name: str, *, is_exact: bool) -> None:
        self.name = name
        self.is_exact = is_exact
        self.sent: list[bytes] = []
        """Digests of its records, by number."""
        self.read = 0
        """Numbers below this one were read."""
        self.repeated = 0
        """Records which were read again."""

    def next_record(self, rng: random.Random) -> bytes:
        """Return the content of a record which is about to be sent."""
        content = record(self.name, len(self.sent), rng)
        self.sent.append(digest(content))
        return content


class JournalCheck:
    """What a journal must be.

    Args:
        journal: Its name.
    """

    def __init__(self, journal: str) -> None:
        self.journal = journal
        self.writers: dict[str, Writer] = {}
        self.acknowledged = 0
        """Number of acknowledged appends."""
        self.head = 0
        """End of the last of them."""
        self.places: deque[Placed] = deque(maxlen=_KEPT)
        """Records which were read last."""
        self._records = Records(journal)
        self._unread: dict[int, Placed] = {}
        self._unclaimed: dict[int, Placed] = {}

    @property
    def offset(self) -> int:
        """Offset up to which it was read."""
        return self._records.end

    @property
    def repeated(self) -> int:
        """Number of records which were read more than once."""
        return sum(writer.repeated for writer in self.writers.values())

    def add_writer(self, name: str, *, is_exact: bool) -> Writer:
        """Add one which is going to write."""
        writer = self.writers[name] = Writer(name, is_exact=is_exact)
        return writer

    def acknowledge(self, begin: int, end: int, name: bytes) -> None:
        """Note where a record was committed, once."""
        placed = Placed(begin, end, name)
        self.acknowledged += 1
        self.head = max(self.head, end)
        if end > self._records.offset:
            require(begin not in self._unread, f"{self.journal}: two appends at {begin}")
            self._unread[begin] = placed
        else:
            self._claim(placed, self._unclaimed.pop(begin, None))

    def feed(self, chunk: bytes) -> None:
        """Take what its reader read next."""
        for placed, content in self._records.feed(chunk):
            self._place(placed, content)
            self.places.append(placed)
            if (claimed := self._unread.pop(placed.begin, None)) is not None:
                self._claim(claimed, placed)
            else:
                self._unclaimed[placed.begin] = placed

    def finish(self) -> None:
        """Require that all was read which was acknowledged, and nothing else of exact writers."""
        where = f"{self.journal} up to {self.offset}"
        require(not self._unread, f"{where}: {len(self._unread)} acknowledged appends are lost")
        require(self.offset == self._records.offset, f"{where}: half a record at the end")
        for writer in self.writers.values():
            missing = len(writer.sent) - writer.read
            require(not missing, f"{where}: {missing} records of {writer.name} are missing")

    def _claim(self, claimed: Placed, found: Placed | None) -> None:
        where = f"{self.journal} [{claimed.begin}, {claimed.end})"
        require(found is not None, f"{where}: an acknowledged append isn't there")
        require(found == claimed, f"{where}: something else than what was acknowledged: {found}")

    def _place(self, placed: Placed, content: bytes) -> None:
        where = f"{self.journal} at {placed.begin}"
        name, text, _ = content[8:].decode().split(" ", 2)
        number, writer = int(text), self.writers.get(name)
        require(writer is not None, f"{where}: unknown writer {name}")
        assert writer is not None
        require(number <= writer.read, f"{where}: {name} {number}, expected {writer.read}")
        require(number < len(writer.sent), f"{where}: {name} {number} was never sent")
        require(writer.sent[number] == placed.digest, f"{where}: {name} {number} is torn")
        if number == writer.read:
            writer.read += 1
        else:
            require(not writer.is_exact, f"{where}: {name} {number} is there twice")
            writer.repeated += 1


class CommittedCheck:
    """What a reader of committed messages must get: each message of a publisher once, in order.

    Messages have a publisher, and a number which counts those that it committed to a journal.
    """

    def __init__(self) -> None:
        self.committed: dict[tuple[str, str], int] = {}
        """Messages which were committed, by journal and publisher."""
        self.read: dict[tuple[str, str], int] = {}

    def commit(self, counts: dict[tuple[str, str], int]) -> None:
        """Note the messages of one transaction."""
        for key, count in counts.items():
            self.committed[key] = self.committed.get(key, 0) + count

    def feed(self, journal: str, publisher: str, number: int) -> None:
        """Take a message which was read."""
        key = journal, publisher
        expected = self.read.get(key, 0)
        require(number == expected, f"{journal}: {publisher} {number}, expected {expected}")
        self.read[key] = expected + 1

    @property
    def is_complete(self) -> bool:
        """Whether all that was committed was read."""
        return self.read == self.committed
