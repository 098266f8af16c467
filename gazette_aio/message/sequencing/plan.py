"""Plans of a ColumnarSequencer: the rows of a batch that commit, and rows to read again."""

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
    """Content to read again for a commit whose rows weren't all retained."""

    producer: int
    """Committing producer, as a big-endian number."""
    begin: int
    """Offset to read from."""
    end: int
    """Offset to read up to: the begin of the acknowledgement."""
    min: int
    """Rows with clocks up to this are done."""
    max: int
    """Clock of the acknowledgement: rows with larger ones are rolled back."""
    ends_above: bool = False
    """Whether a row of the producer with a clock above `max` ends the commit.

    Later rows were duplicates when they were first read: their clocks were pending. A Sequencer
    that doesn't retain them delivers them nevertheless, and this span must deliver the same rows.
    """
    tail: Indices = field(default_factory=NO_ROWS.copy, compare=False)
    """Table rows that follow the replay: the acknowledgement, and maybe rows before it."""


@dataclass(slots=True, eq=False)
class CommitPlan:
    """Outcome of a batch. All indices are of rows of the table."""

    table: UuidColumns
    """Rows that were carried until now, followed by the consumed rows of the batch."""
    rows: Indices
    """Committed rows in delivery order."""
    terminators: Indices
    """The row that commits each of `rows`: an acknowledgement, or the row itself."""
    carry: Indices
    """Rows to keep for the next batch, ascending."""
    consumed: int
    """Number of rows of the batch in this plan: all of them, unless a replay ends it."""
    replay: ReplaySpan | None
    """The commit that follows `rows`. Its acknowledgement is the last consumed row."""


class ReplayFilter:
    """Filter of replayed content for the rows of one commit.

    If reading fails, it may restart at `begin` once all rows kept so far are delivered.

    Args:
        span: Content to read again.
        journal: Journal of the rows.
    """

    def __init__(self, span: ReplaySpan, journal: str) -> None:
        self.journal = journal
        self.begin: int = span.begin
        """Offset to read from. Each kept row raises it."""
        self.end: int = span.end
        """Offset to read up to."""
        self._producer = np.uint64(span.producer)
        self._min = np.uint64(span.min)
        self._max = np.uint64(span.max)
        self._ends_above = span.ends_above
        self._ended = False

    def __repr__(self) -> str:
        name, producer = type(self).__name__, int(self._producer)
        return f"<{name} of {producer:012x} in {self.journal} [{self.begin}, {self.end})>"

    def keep(self, columns: UuidColumns) -> Indices:
        """Return the replayed rows that belong to the commit.

        Raises:
            ReplayError: A row isn't in the range to read. None of the rows was kept.
        """
        kept, ended = self._filter(columns)
        self._check(columns, kept)
        self._ended |= ended
        return self._keep(columns, kept)

    def tail(self, columns: UuidColumns) -> Indices:
        """Return the rows of the span's tail that belong to the commit."""
        self._ended = False
        return self._keep(columns, self._filter(columns)[0])

    def _filter(self, columns: UuidColumns) -> tuple[Indices, bool]:
        """Return the rows that belong to the commit, and whether it ends among them."""
        clock, stop = columns.clock, columns.rows
        own = columns.producer == self._producer
        if self._ended:
            stop = 0
        elif self._ends_above and (above := own & (clock > self._max)).any():
            stop = int(above.argmax())
        # Invariant: no zero clock is above `min`: such rows were delivered when first read.
        wanted = own & (clock > self._min) & (clock <= self._max)
        rows: Indices = np.flatnonzero(wanted[:stop])
        clocks = clock[rows]
        increasing = clocks[1:] > np.maximum.accumulate(clocks)[:-1]
        if not increasing.all():
            rows = np.concatenate((rows[:1], rows[1:][increasing]))
        return rows, stop < columns.rows

    def _check(self, columns: UuidColumns, kept: Indices) -> None:
        # Each kept row raises the bound of later rows.
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
