"""The rule, applied to whole columns of rows at once.

Theory of operation. Rows are grouped into *segments*, one per producer, with rows in the order they
were read. A segment is *plain* if its clocks increase, from the upper bound of its producer on:
then there's no duplicate and no rollback, and each acknowledgement commits all pending rows.
Terminators (rows other than CONTINUE) cut a plain segment into *blocks*: a terminator, and the rows
it commits or discards. Other segments are either made plain by leaving out rows without effect, or
are decided row by row.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress
from operator import add
from typing import TYPE_CHECKING

import numpy as np

from gazette_aio.message.sequencing.columns import ascending, by_producer
from gazette_aio.message.sequencing.rules import ACK, CONTINUE, OUTSIDE, unseen
from gazette_aio.message.sequencing.transitions import Closings, Decision, Remarks, decide_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from gazette_aio.message.sequencing.columns import Indices, UuidColumns
    from gazette_aio.message.sequencing.rules import Bounds

FEW_ROWS = 320
"""Batches of fewer rows are decided row by row, which then is faster."""
LONG_SEGMENT = 64
"""Segments of fewer rows are decided row by row if they aren't plain."""

_ZERO, _ONE = np.uint64(0), np.uint64(1)


def decide(batch: UuidColumns, known: Mapping[int, Bounds], missing: set[int]) -> Decision:
    """Decide a batch, up to and including the first acknowledgement that needs a replay.

    Args:
        batch: The rows.
        known: Bounds of producers before the batch.
        missing: Producers with open spans that weren't fully retained.
    """
    if batch.rows >= FEW_ROWS and missing:
        replayed = first_commit(batch, known, missing)
        if replayed != -1:
            batch = batch.slice(0, replayed + 1)
    if batch.rows < FEW_ROWS:
        return decide_rows(batch, known, missing)
    flags = batch.flags
    unknown = 0
    if flags.max() > ACK:
        stray = flags > ACK
        unknown = int(np.count_nonzero(stray & (batch.clock != _ZERO)))
        flags = np.where(stray, np.uint16(OUTSIDE), flags)
    decision = _decide_columns(batch._replace(flags=flags), known, missing)
    decision.remarks = decision.remarks._replace(unknown_flags=unknown)
    return decision


def first_commit(batch: UuidColumns, known: Mapping[int, Bounds], producers: set[int]) -> int:
    """Return the first row that commits rows pending before the batch, or -1.

    Args:
        batch: The rows.
        known: Bounds of the producers before the batch.
        producers: Producers whose pending rows are considered.
    """
    closed: set[int] = set()
    start, size = 0, FEW_ROWS * 4
    while start < batch.rows:
        # Windows grow, so that an early commit costs little of a large batch.
        window = batch.slice(start, start + size)
        terminators = np.flatnonzero((window.flags != CONTINUE) & (window.clock != _ZERO))
        of: list[int] = window.producer[terminators].tolist()
        pending = producers.intersection(of) - closed
        if pending:
            for row, producer in zip(terminators.tolist(), of, strict=True):
                if producer not in pending or producer in closed:
                    continue
                is_ack = window.flags[row] == ACK
                above = int(window.clock[row]) > known[producer][0]
                if is_ack and above:
                    return start + row
                if is_ack or above:
                    closed.add(producer)
        start, size = start + size, size * 2
    return -1


@dataclass(slots=True)
class _Segments:
    """Rows with clocks, grouped by producer, and the bounds of each producer."""

    rows: Indices
    """Rows of the batch, ascending within each segment."""
    clock: NDArray[np.uint64]
    flags: NDArray[np.uint16]
    starts: Indices
    """Start of each segment, within the columns."""
    stops: Indices
    producers: list[int]
    low: NDArray[np.uint64]
    high: NDArray[np.uint64]
    begin: Indices

    def select(self, kept: NDArray[np.bool_]) -> _Segments:
        """Return only the rows that are `kept`, and the segments that have any."""
        counts = np.add.reduceat(kept, self.starts, dtype=np.int64)
        left = counts > 0
        stops = np.cumsum(counts[left])
        return _Segments(
            self.rows[kept],
            self.clock[kept],
            self.flags[kept],
            stops - counts[left],
            stops,
            list(compress(self.producers, left.tolist())),
            self.low[left],
            self.high[left],
            self.begin[left],
        )


def _segments(batch: UuidColumns, rows: Indices, known: Mapping[int, Bounds]) -> _Segments:
    rows = rows[by_producer(batch.producer[rows])]
    producer = batch.producer[rows]
    starts = np.concatenate(
        (np.zeros(1, np.int64), np.flatnonzero(producer[1:] != producer[:-1]) + 1)
    )
    clock = batch.clock[rows]
    producers: list[int] = producer[starts].tolist()
    bounds = [known.get(p) for p in producers]
    firsts: list[int] = clock[starts].tolist()
    low, high, begin = zip(
        *[b or unseen(c) for b, c in zip(bounds, firsts, strict=True)], strict=True
    )
    return _Segments(
        rows,
        clock,
        batch.flags[rows],
        starts,
        np.append(starts[1:], rows.size),
        producers,
        np.array(low, np.uint64),
        np.array(high, np.uint64),
        np.array(begin, np.int64),
    )


def _decide_columns(batch: UuidColumns, known: Mapping[int, Bounds], missing: set[int]) -> Decision:
    tracked = batch.clock != _ZERO
    if tracked.all():
        zeros, rows = np.empty(0, np.int64), np.arange(batch.rows)
    else:
        zeros, rows = np.flatnonzero(~tracked), np.flatnonzero(tracked)
    decision = Decision({}, batch.rows)
    if rows.size:
        segments = _segments(batch, rows, known)
        strays = _leave_plain(segments, missing, decision)
        if strays is not None:
            segments, scalar_rows = strays
        else:
            scalar_rows = zeros[:0]
        if segments.rows.size:
            _decide_plain(batch, segments, decision)
        if scalar_rows.size:
            scalar_rows.sort()
            _merge(decision, decide_rows(batch.take(scalar_rows), known, missing), scalar_rows)
    if zeros.size:
        decision.rows = np.concatenate((zeros, decision.rows))
        decision.terminators = np.concatenate((zeros, decision.terminators))
    return decision


def _leave_plain(
    segments: _Segments, missing: set[int], decision: Decision
) -> tuple[_Segments, Indices] | None:
    """Return plain segments, and rows of other segments; or None if all segments are plain."""
    clock, starts = segments.clock, segments.starts
    previous = np.empty_like(clock)
    previous[1:] = clock[:-1]
    previous[starts] = segments.high
    fresh = clock > previous
    producers = segments.producers
    lossy = not missing.isdisjoint(producers)
    if not lossy and fresh.all():
        return None
    sizes = segments.stops - starts
    plain = np.logical_and.reduceat(fresh, starts)
    left = np.zeros(plain.size, np.bool_)
    if lossy:
        missed = np.array([p in missing for p in producers], np.bool_)
        closes = np.logical_or.reduceat(segments.flags != CONTINUE, starts)
        # No rows are retained of a span that lacks rows already.
        left = missed & ~closes
        high = np.maximum(np.maximum.reduceat(clock, starts), segments.high)
        decision.bounds.update(_bounds_of(segments, segments.low, high, segments.begin, left))
        plain &= ~missed
    kept = np.repeat(plain, sizes)
    by_rows = ~plain & ~left
    for k in np.flatnonzero(by_rows & (sizes >= LONG_SEGMENT)).tolist():
        producer, part = producers[k], slice(int(starts[k]), int(segments.stops[k]))
        if producer not in missing:
            low, high, begin = segments.low[k], segments.high[k], segments.begin[k]
            bounds = int(low), int(high), int(begin)
            harmless = _without_stale(clock[part], segments.flags[part], bounds)
            if harmless is not None:
                decision.bounds[producer] = bounds
                kept[part], by_rows[k] = harmless, False
    return segments.select(kept), segments.rows[np.repeat(by_rows, sizes)]


def _without_stale(
    clock: NDArray[np.uint64], flags: NDArray[np.uint16], bounds: Bounds
) -> NDArray[np.bool_] | None:
    """Return which rows of a segment are left without stale ones; None if stale rows have effects.

    Rows are stale if their clocks aren't larger than all before. Stale CONTINUE rows are
    duplicates, as are other stale rows that are done, if acknowledgements find nothing pending.
    """
    low, high = np.uint64(bounds[0]), np.uint64(bounds[1])
    reached = np.empty_like(clock)
    reached[0] = high
    reached[1:] = np.maximum(np.maximum.accumulate(clock)[:-1], high)
    fresh = clock > reached
    done = np.empty_like(clock)
    done[0] = low
    ends = np.where(fresh & (flags != CONTINUE), clock, _ZERO)
    done[1:] = np.maximum(np.maximum.accumulate(ends)[:-1], low)
    harmless = fresh | (flags == CONTINUE)
    harmless |= (flags == OUTSIDE) & (clock <= done)
    harmless |= (flags == ACK) & (clock == done) & (reached == done)
    return fresh if harmless.all() else None


def _decide_plain(batch: UuidColumns, segments: _Segments, decision: Decision) -> None:
    rows, clock, flags = segments.rows, segments.clock, segments.flags
    starts, stops = segments.starts, segments.stops
    terminators = np.flatnonzero(flags != CONTINUE)
    is_ack = flags[terminators] == ACK
    # Per segment: its terminators are those numbered [first, behind).
    first = np.searchsorted(terminators, starts)
    behind = np.searchsorted(terminators, stops)
    closes = behind > first
    opens = starts.copy()
    opens[closes] = terminators[behind[closes] - 1] + 1

    if terminators.size:
        blocks = np.empty(terminators.size, np.int64)
        blocks[1:] = terminators[:-1] + 1
        blocks[first[closes]] = starts[closes]
        mixed = ~is_ack & (blocks < terminators)
        mixed[first[closes]] |= ~is_ack[first[closes]] & (segments.begin[closes] != -1)
        decision.remarks = Remarks(mixed=int(np.count_nonzero(mixed)))
        blocks = np.where(is_ack, blocks, terminators)
        delivery = ascending(rows[terminators], batch.rows)
        ends = terminators[delivery]
        blocks = blocks[delivery]
        sizes = ends - blocks + 1
        decision.rows = rows[_ranges(blocks, sizes)]
        decision.terminators = np.repeat(rows[ends], sizes)

    was_open = segments.begin != -1
    ended = closes & was_open
    if ended.any():
        at = terminators[first[ended]]
        limit = np.where(flags[at] == ACK, clock[at], _ZERO)
        producer = batch.producer[rows[at]]
        decision.closings.append(Closings(producer, rows[at], limit))

    is_open = opens < stops
    decision.pending = rows[_ranges(opens[is_open], (stops - opens)[is_open])]
    low = segments.low.copy()
    low[closes] = clock[opens[closes] - 1]
    begin = np.where(closes, np.int64(-1), segments.begin)
    begins = is_open & (begin == -1)
    begin[begins] = batch.begin[rows[opens[begins]]]
    high = clock[stops - 1]
    producers = segments.producers
    decision.bounds.update(_bounds_of(segments, low, high, begin))
    decision.finished += compress(producers, closes.tolist())
    decision.began += compress(producers, begins.tolist())


def _bounds_of(
    segments: _Segments,
    low: NDArray[np.uint64],
    high: NDArray[np.uint64],
    begin: Indices,
    wanted: NDArray[np.bool_] | None = None,
) -> Iterable[tuple[int, Bounds]]:
    """Return the producers of the wanted segments, by default all, with new bounds."""
    bounds = zip(low.tolist(), high.tolist(), begin.tolist(), strict=True)
    found = zip(segments.producers, bounds, strict=True)
    return found if wanted is None else compress(found, wanted.tolist())


def _ranges(starts: Indices, sizes: Indices) -> Indices:
    """Return consecutive numbers from each of `starts`, as many as the matching size."""
    before = np.cumsum(sizes) - sizes
    total = int(before[-1] + sizes[-1]) if sizes.size else 0
    return np.repeat(starts - before, sizes) + np.arange(total)


def _merge(decision: Decision, other: Decision, rows: Indices) -> None:
    """Add the decision on the given rows of the batch."""
    decision.bounds.update(other.bounds)
    decision.rows = np.concatenate((decision.rows, rows[other.rows]))
    decision.terminators = np.concatenate((decision.terminators, rows[other.terminators]))
    decision.pending = np.concatenate((decision.pending, rows[other.pending]))
    decision.closings += [c._replace(terminator=rows[c.terminator]) for c in other.closings]
    decision.finished += other.finished
    decision.began += other.began
    decision.replay = other.replay
    decision.remarks = Remarks(*map(add, decision.remarks, other.remarks))
