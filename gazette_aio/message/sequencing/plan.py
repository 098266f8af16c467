"""What a ColumnarSequencer says of a batch: which of its rows commit, and what to read again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gazette_aio.message.envelopes.envelope import Envelope
from gazette_aio.message.sequencing.producer import check_replayed
from gazette_aio.message.uuid import Flags, ProducerID

if TYPE_CHECKING:
    from gazette_aio.message.sequencing.columns import Indices, UuidColumns

NO_ROWS: Indices = np.empty(0, np.int64)


@dataclass(slots=True)
class ReplaySpan:
    """Content which must be read again to deliver a commit whose rows weren't retained."""

    producer: int
    """The producer which commits, as a big-endian number."""
    begin: int
    """Offset to read from."""
    end: int
    """Offset to read up to: where the acknowledgement begins."""
    min: int
    """Rows with clocks up to this are done."""
    max: int
    """Clock of the acknowledgement: rows with larger ones are rolled back."""
    tail: Indices = field(default_factory=NO_ROWS.copy, compare=False)
    """Table rows which follow what's read again: the acknowledgement, and maybe rows before it."""


@dataclass(slots=True, eq=False)
class CommitPlan:
    """What becomes of a batch. All indices are of rows of the table."""

    table: UuidColumns
    """Rows which were carried until now, and the consumed ones of the batch behind them."""
    rows: Indices
    """Committed rows in the order of their delivery."""
    terminators: Indices
    """The row which commits each of `rows`: an acknowledgement, or the row itself."""
    carry: Indices
    """Rows to keep for the next batch, ascending."""
    consumed: int
    """Rows of the batch which this is of: all of them, unless a replay ends it."""
    replay: ReplaySpan | None
    """The commit which follows `rows`. Its acknowledgement is the last row consumed."""


class Replay:
    """Filters content which is read again for the rows of one commit.

    Where reading fails, it may start over at `begin` once all rows kept so far were delivered.

    Args:
        span: What to read again.
        journal: Journal of the rows.
    """

    def __init__(self, span: ReplaySpan, journal: str) -> None:
        self.journal = journal
        self.begin = span.begin
        """Offset to read from. Each row which is kept raises it."""
        self.end = span.end
        """Offset to read up to."""
        self._producer = np.uint64(span.producer)
        self._min = np.uint64(span.min)
        self._max = np.uint64(span.max)

    def __repr__(self) -> str:
        name, producer = type(self).__name__, int(self._producer)
        return f"<{name} of {producer:012x} in {self.journal} [{self.begin}, {self.end})>"

    def keep(self, columns: UuidColumns) -> Indices:
        """Return which rows that were read again belong to the commit.

        Raises:
            ReplayError: If a row isn't of the range to read. None of the rows was kept.
        """
        kept = self._filter(columns)
        self._check(columns, kept)
        return self._keep(columns, kept)

    def tail(self, columns: UuidColumns) -> Indices:
        """Return which rows of the span's tail belong to the commit."""
        return self._keep(columns, self._filter(columns))

    def _filter(self, columns: UuidColumns) -> Indices:
        clock = columns.clock
        # Invariant: no zero clock is above `min`: such rows were delivered when first read.
        wanted = columns.producer == self._producer
        wanted &= clock > self._min
        wanted &= clock <= self._max
        rows: Indices = np.flatnonzero(wanted)
        clocks = clock[rows]
        increasing = clocks[1:] > np.maximum.accumulate(clocks)[:-1]
        if not increasing.all():
            rows = np.concatenate((rows[:1], rows[1:][increasing]))
        return rows

    def _check(self, columns: UuidColumns, kept: Indices) -> None:
        # Each kept row raises the bound of those behind it.
        floors = np.full(columns.rows + 1, self.begin, np.int64)
        floors[kept + 1] = columns.begin[kept]
        floors = np.maximum.accumulate(floors)[:-1]
        wrong = np.flatnonzero((columns.begin < floors) | (columns.end > self.end))
        if wrong.size:
            row = int(wrong[0])
            envelope = _envelope(self.journal, columns, row)
            check_replayed(envelope, self.journal, int(floors[row]), self.end)

    def _keep(self, columns: UuidColumns, kept: Indices) -> Indices:
        if kept.size:
            self._min, self.begin = columns.clock[kept[-1]], int(columns.begin[kept[-1]])
        return kept


def _envelope(journal: str, columns: UuidColumns, row: int) -> Envelope[None]:
    return Envelope(
        journal,
        int(columns.begin[row]),
        int(columns.end[row]),
        int(columns.clock[row]),
        Flags(int(columns.flags[row])),
        ProducerID(int(columns.producer[row]).to_bytes(6, "big")),
        None,
    )
