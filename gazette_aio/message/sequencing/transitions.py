"""The rule, applied to the rows of a batch one after the other.

It's for small batches, and for rows outside of the plain order that whole columns require. Rows are
of columns of one journal, and are committed, retained and dropped by index.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gazette_aio.message.sequencing.plan import NO_ROWS, ReplaySpan
from gazette_aio.message.sequencing.rules import ACK, CONTINUE, LiveBounds, unseen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from gazette_aio.message.sequencing.columns import Indices, UuidColumns
    from gazette_aio.message.sequencing.rules import Bounds


class Remarks(NamedTuple):
    """Numbers of rows that indicate misbehaving producers."""

    unknown_flags: int = 0
    old_acks: int = 0
    mixed: int = 0


class Closings(NamedTuple):
    """Ends of spans that were open before a batch: at most one row of each producer."""

    producer: NDArray[np.uint64]
    terminator: Indices
    """Rows of the batch."""
    limit: NDArray[np.uint64]
    """Rows of the span up to this clock commit; none if it's zero."""

    @classmethod
    def of(cls, closings: list[tuple[int, int, int]]) -> Closings:
        """Return the columns of `closings`."""
        return cls(
            np.array([c[0] for c in closings], np.uint64),
            np.array([c[1] for c in closings], np.int64),
            np.array([c[2] for c in closings], np.uint64),
        )


@dataclass(slots=True)
class Decision:
    """Decision on the rows of a batch, regardless of carried rows."""

    bounds: dict[int, Bounds]
    """Bounds of the batch's producers after it."""
    consumed: int
    """Rows up to and including the first acknowledgement that needs a replay."""
    rows: Indices = field(default_factory=NO_ROWS.copy)
    """Committed rows. Those of one terminator are together, and in order."""
    terminators: Indices = field(default_factory=NO_ROWS.copy)
    """The row that commits each of `rows`."""
    pending: Indices = field(default_factory=NO_ROWS.copy)
    """Rows to retain, in any order."""
    closings: list[Closings] = field(default_factory=list["Closings"])
    finished: list[int] = field(default_factory=list[int])
    """Producers whose spans ended."""
    began: list[int] = field(default_factory=list[int])
    """Producers with open spans that begin in the batch."""
    replay: ReplaySpan | None = None
    """The commit by the last consumed row, of a span whose rows weren't all retained."""
    remarks: Remarks = Remarks()  # noqa: RUF009 - a tuple.


class _Track(LiveBounds):
    """Bounds of a producer, and its pending rows of the batch."""

    __slots__ = ("carried", "closed", "missing", "rows")

    def __init__(self, bounds: Bounds, *, missing: bool) -> None:
        # Hot: a call of the base class would cost small batches a few percent.
        self.min, self.max, self.begin = bounds
        self.missing = missing
        self.carried = self.begin != -1 and not missing
        self.closed = False
        self.rows: list[int] = []

    def close(self, clock: int) -> None:
        """Mark messages up to `clock` done, and none pending."""
        self.min = self.max = clock
        self.begin = -1
        self.missing = self.carried = False
        self.closed = True
        self.rows = []


def decide_rows(  # noqa: C901 - hot: a call would cost each row more than its branches do.
    batch: UuidColumns, known: Mapping[int, Bounds], missing: set[int]
) -> Decision:
    """Decide rows one after the other.

    Args:
        batch: The rows.
        known: Bounds of producers before the batch.
        missing: Producers with open spans that weren't fully retained.
    """
    tracks: dict[int, _Track] = {}
    clocks: list[int] = batch.clock.tolist()
    producers: list[int] = batch.producer.tolist()
    committed: list[int] = []
    terminators: list[int] = []
    closings: list[tuple[int, int, int]] = []
    unknown_flags = old_acks = mixed = 0
    replay: ReplaySpan | None = None
    row = -1
    columns = zip(producers, clocks, batch.flags.tolist(), batch.begin.tolist(), strict=True)
    for row, (producer, clock, flags, begin) in enumerate(columns):
        if clock == 0:
            committed.append(row)
            terminators.append(row)
            continue
        track = tracks.get(producer)
        if track is None:
            bounds = known.get(producer) or unseen(clock)
            track = tracks[producer] = _Track(bounds, missing=producer in missing)
        if flags == CONTINUE:
            if clock > track.max:
                track.max = clock
                if track.begin == -1:
                    track.begin = begin
                if not track.missing:
                    track.rows.append(row)
            continue
        limit = 0
        if flags != ACK:
            unknown_flags += flags > ACK
            if clock <= track.min:
                continue
            mixed += track.begin != -1
            committed.append(row)
            terminators.append(row)
        elif clock <= track.min:
            old_acks += clock < track.min
        elif track.missing:
            replay = ReplaySpan(producer, track.begin, begin, track.min, clock)
        else:
            limit = clock
            rows = track.rows
            if clock <= track.max:
                rows = [r for r in rows if clocks[r] <= clock]
            committed.extend(rows)
            # An acknowledgement isn't delivered after a row of its own clock.
            if not rows or clocks[rows[-1]] != clock:
                committed.append(row)
            terminators.extend([row] * (len(committed) - len(terminators)))
        if track.carried:
            closings.append((producer, row, limit))
        track.close(clock)
        if replay is not None:
            break
    return Decision(
        {producer: (t.min, t.max, t.begin) for producer, t in tracks.items()},
        row + 1,
        np.array(committed, np.int64),
        np.array(terminators, np.int64),
        np.array([r for t in tracks.values() for r in t.rows], np.int64),
        [Closings.of(closings)] if closings else [],
        [producer for producer, t in tracks.items() if t.closed],
        [
            producer
            for producer, t in tracks.items()
            if t.begin != -1 and (t.closed or producer not in known or known[producer][2] == -1)
        ],
        replay,
        Remarks(unknown_flags, old_acks, mixed),
    )
