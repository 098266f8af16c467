"""Rate limits of append streams.

A journal earns allowance at its maximum rate, for up to ten seconds, and each chunk of an append
spends allowance. The client begins with the minimum rate of one second, earns the bytes that it
sends, spends the minimum rate over time, and is cut off when nothing is left. Time is an argument,
in milliseconds of any monotonic clock.

Only time in which the broker could read is charged to the client. A broker on a starved machine
neither reads nor runs its timers. So a wait is checked at intervals, and the delay of each check is
subtracted from its interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

BANK_SECONDS = 10
QUANTUM_MILLIS = 50
"""Interval at which a waiting append is checked, in milliseconds."""
LOOK_MILLIS = 100
"""Interval of checks of a wait, in milliseconds."""


@dataclass(slots=True)
class FlowBalance:
    """Allowance of a journal, which carries over from one append to the next."""

    balance: int = 0
    last_millis: int = 0


class FlowControl:
    """Flow of one append stream.

    Args:
        journal: Allowance of the journal; updated in place.
        max_rate: Bytes per second which the journal accepts, or zero if it isn't limited.
        min_rate: Bytes per second which the client must sustain, or zero for none.
        now_millis: Current time.
    """

    __slots__ = (
        "_since",
        "charge",
        "delayed_chunks",
        "journal",
        "max_rate",
        "min_rate",
        "spent",
        "total_chunks",
        "waited_millis",
    )

    def __init__(
        self, journal: FlowBalance, *, max_rate: int, min_rate: int, now_millis: int
    ) -> None:
        self.journal: FlowBalance = journal
        self.max_rate: int = max_rate
        self.min_rate: int = min_rate
        self.charge: int = 0
        self.total_chunks: int = 0
        self.delayed_chunks: int = 0
        self.spent: int = 0
        self.waited_millis: float = 0.0
        """Time of the present or last wait which counts."""
        self._since = 0.0
        if journal.last_millis == 0:
            journal.balance = max_rate
            journal.last_millis = now_millis
        else:
            self.skip(now_millis)
            # The limit may have been lowered since the last append.
            journal.balance = min(journal.balance, max_rate * BANK_SECONDS)
        self.spent = min_rate

    def begin_wait(self, now_millis: float) -> None:
        """Begin to wait for the client. The time before wasn't the client's."""
        self.skip(int(now_millis))
        self.waited_millis = 0.0
        self._since = now_millis

    def look(self, due_millis: float, now_millis: float) -> bool:
        """Account for the wait since the last check; return whether the client is silent too long.

        Args:
            due_millis: Planned time of the check; after `now_millis` if the wait ends before.
            now_millis: Current time.
        """
        late = max(0.0, now_millis - due_millis)
        self.waited_millis += max(0.0, min(now_millis, due_millis) - self._since - late)
        self._since = now_millis
        return self.waited_millis >= self.patience_millis()

    def end_wait(self, due_millis: float, now_millis: float) -> bool:
        """Account for a wait that ends by a message; return False if the client is too slow."""
        self.look(due_millis, now_millis)
        return self.tick(int(now_millis), int(self.waited_millis))

    def tick(self, now_millis: int, waited_millis: int) -> bool:
        """Account for passed time; return False if the client is too slow.

        Args:
            now_millis: Current time.
            waited_millis: Part of the passed time to charge to the client.
        """
        elapsed = now_millis - self.journal.last_millis
        if elapsed < 0:
            return True
        if elapsed == 0 and self.charge == 0:
            return self.spent > 0 or self.min_rate == 0
        self._credit(elapsed)
        charged = min(waited_millis, elapsed)
        self.spent -= min(self.min_rate * charged // 1000, self.spent)
        self.journal.last_millis = now_millis
        self._debit()
        return self.spent > 0 or self.min_rate == 0

    def skip(self, now_millis: int) -> None:
        """Account for time of the broker, which isn't charged to the client."""
        elapsed = now_millis - self.journal.last_millis
        if elapsed > 0:
            self._credit(elapsed)
            self.journal.last_millis = now_millis

    def chunk(self, length: int) -> None:
        """Charge a received chunk of `length` bytes, which may pass once `charge` is zero."""
        assert self.charge == 0, "the previous chunk is still held"
        self.charge = length
        self._debit()
        if self.charge:
            self.delayed_chunks += 1
        self.total_chunks += 1

    def lift(self) -> None:
        """Lift the maximum rate for the rest of the stream."""
        self.max_rate = 0
        self._debit()

    def patience_millis(self) -> float:
        """Return milliseconds to wait for a silent client; infinity if it may be silent."""
        if self.min_rate == 0:
            return math.inf
        return -(-self.spent * 1000 // self.min_rate) + QUANTUM_MILLIS

    def hold_millis(self) -> int:
        """Return how long to hold the present chunk before the next tick, in milliseconds."""
        if self.charge == 0:
            return 0
        needed = -(-self.charge * 1000 // max(self.max_rate, 1))
        return max(1, min(-(-needed // QUANTUM_MILLIS) * QUANTUM_MILLIS, 1000))

    def _credit(self, elapsed_millis: int) -> None:
        self.journal.balance = min(
            self.journal.balance + self.max_rate * elapsed_millis // 1000,
            self.max_rate * BANK_SECONDS,
        )

    def _debit(self) -> None:
        paid = min(self.journal.balance, self.charge)
        self.journal.balance -= paid
        self.charge -= paid
        self.spent = min(self.spent + paid, self.min_rate)
        if self.max_rate == 0:
            self.spent = min(self.spent + self.charge, self.min_rate)
            self.charge = 0


def effective_max_rate(journal_rate: int, broker_rate: int) -> int:
    """Return the maximum rate of a journal under the limit of its broker.

    A journal rate of zero is no limit, whatever the broker's limit.
    """
    return min(journal_rate, broker_rate) if broker_rate else journal_rate
