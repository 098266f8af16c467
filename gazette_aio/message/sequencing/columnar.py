"""Sequencer that decides the commit order of messages a batch of columns at a time.

A ColumnarSequencer commits the same messages as a Sequencer of unbounded ring, in the same order,
and has the same checkpoints. It takes the columns of rows and returns indices. Its caller holds the
payloads of the batch's rows, and of the pending rows that are carried to the next batch.

Spans that take too many bytes are evicted as a whole, the largest first. The producer is then
*missing* rows, as after a restore with an open span: its acknowledgement needs a replay.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gazette_aio.message.sequencing.checkpoint import ProducerState
from gazette_aio.message.sequencing.columns import GrowingColumns, ascending
from gazette_aio.message.sequencing.plan import CommitPlan
from gazette_aio.message.sequencing.producer import stale_below, warn_of_stale
from gazette_aio.message.sequencing.segments import decide
from gazette_aio.message.sequencing.transitions import Closings
from gazette_aio.message.uuid import ProducerID

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_aio.message.sequencing.columns import Indices, UuidColumns
    from gazette_aio.message.sequencing.rules import Bounds
    from gazette_aio.message.sequencing.transitions import Decision

_logger = logging.getLogger(__name__)

_IDLE = (0, 0, -1)
_REMARKS = (
    "messages have unexpected flags",
    "acknowledgements are older than the last ones: exactly-once semantics are lost",
    "messages outside of transactions discard pending ones of their producers",
)


@dataclass(slots=True)
class _Before:
    """The last plan, and the former state of the producers that it touches."""

    plan: CommitPlan
    carried: int
    """Number of rows of the plan's table that were carried."""
    offset: int
    touched: dict[int, Bounds]
    """Bounds of producers after the plan."""
    bounds: dict[int, Bounds]
    missing: set[int]


class ColumnarSequencer:
    """Sequences messages of one journal into their committed order.

    Args:
        journal: Name of the journal.
        offset: Offset through which content was read.
        producers: States of the journal's producers, as of a checkpoint.
        max_pending_bytes: Limit of the bytes of pending rows that are carried between batches, if
            any.
    """

    def __init__(
        self,
        journal: str,
        *,
        offset: int = 0,
        producers: Iterable[ProducerState] = (),
        max_pending_bytes: int | None = None,
    ) -> None:
        self.journal = journal
        self._offset = offset
        self._max_pending_bytes = max_pending_bytes
        self._bounds: dict[int, Bounds] = {}
        # Producers with open spans that weren't fully retained: none of their rows are carried.
        self._missing: set[int] = set()
        # Producers whose spans began since the last checkpoint, and haven't ended.
        self._pending: set[int] = set()
        # Forgotten producers with rows in the carry.
        self._forgotten: list[int] = []
        self._carry = GrowingColumns()
        self._carry_bytes = 0
        self._before: _Before | None = None
        for state in producers:
            producer = int.from_bytes(state.producer)
            self._bounds[producer] = state.bounds
            if state.begin != -1:
                self._missing.add(producer)

    @property
    def offset(self) -> int:
        """Offset after the last processed row."""
        return self._offset

    @property
    def has_pending(self) -> bool:
        """Whether a span began since the last checkpoint, and hasn't ended."""
        return bool(self._pending)

    @property
    def pending_bytes(self) -> int:
        """Bytes of the rows that are carried to the next batch."""
        return self._carry_bytes

    @property
    def pending_rows(self) -> int:
        """Number of the rows that are carried to the next batch."""
        return self._carry.columns.rows

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} of {self.journal} offset={self._offset} "
            f"producers={len(self._bounds)} pending_rows={self.pending_rows} "
            f"pending_bytes={self.pending_bytes}>"
        )

    def producer_state(self, producer: bytes) -> ProducerState | None:
        """Return the state of a producer, or None if it's unknown."""
        number = int.from_bytes(producer)
        bounds = self._bounds.get(number)
        return None if bounds is None else self._states({number: bounds})[0]

    def process(self, batch: UuidColumns) -> CommitPlan:
        """Process the next rows of the journal, up to the first commit by a replay.

        Returns:
            The rows that commit, and the rows to carry. Process the rest of the batch, if any,
            next.
        """
        carried, offset = self._carry.columns.rows, self._offset
        decision = decide(batch, self._bounds, self._missing)
        for rows, text in zip(decision.remarks, _REMARKS, strict=True):
            if rows:
                extra = {"journal": self.journal, "begin": int(batch.begin[0]), "rows": rows}
                _logger.error(text, extra=extra)
        touched = decision.bounds
        bounds = {p: self._bounds[p] for p in touched if p in self._bounds}
        missing = self._missing.intersection(touched)
        self._bounds.update(touched)
        self._missing.difference_update(decision.finished)
        self._pending.difference_update(decision.finished)
        self._pending.update(decision.began)
        if decision.consumed:
            self._offset = int(batch.end[decision.consumed - 1])
        plan = self._plan(batch, decision)
        self._before = _Before(plan, carried, offset, touched, bounds, missing)
        return plan

    def _plan(self, batch: UuidColumns, decision: Decision) -> CommitPlan:
        carry = self._carry.columns
        held = carry.rows
        rows, terminators = decision.rows + held, decision.terminators + held
        kept = np.arange(held)
        closings = decision.closings
        if self._forgotten:
            closings = [*closings, Closings.of([(p, 0, 0) for p in self._forgotten])]
            self._forgotten = []
        if closings and held:
            kept, committed, by = _close(carry, closings)
            delivery = ascending(by, batch.rows)
            committed, by = committed[delivery], by[delivery]
            if committed.size:
                # An acknowledgement isn't delivered after a row of its own clock.
                equal = carry.clock[committed] == batch.clock[by]
                if equal.any():
                    delivered = ~np.isin(rows, by[equal] + held)
                    rows, terminators = rows[delivered], terminators[delivered]
                rows = np.concatenate((committed, rows))
                terminators = np.concatenate((by + held, terminators))
        delivery = np.argsort(terminators, kind="stable")
        rows, terminators = rows[delivery], terminators[delivery]
        batch = batch.slice(0, decision.consumed)
        table = self._carry.append(batch)
        pending = np.sort(decision.pending) + held
        kept = np.concatenate((kept, pending))
        if kept.size < table.rows:
            self._carry.replace(table.take(kept))
        self._count_bytes()
        if self._max_pending_bytes is not None:
            left = self.evict(self._max_pending_bytes)
            if left is not None:
                kept = kept[left]
        replay = decision.replay
        if replay is not None:
            replay.tail = np.array([table.rows - 1], np.int64)
        return CommitPlan(table, rows, terminators, kept, decision.consumed, replay)

    def _count_bytes(self) -> None:
        carry = self._carry.columns
        self._carry_bytes = int((carry.end - carry.begin).sum())

    def evict(self, max_bytes: int) -> Indices | None:
        """Evict pending rows until they take at most `max_bytes`: whole spans, the largest first.

        Returns:
            Indices of the carried rows that are left, ascending; or None if all are left.
        """
        if self._carry_bytes <= max_bytes:
            return None
        carry = self._carry.columns
        producers, of = np.unique(carry.producer, return_inverse=True)
        sizes = np.bincount(of, weights=carry.end - carry.begin).astype(np.int64)
        order = np.argsort(-sizes, kind="stable")
        after = self._carry_bytes - np.cumsum(sizes[order])
        evicted = order[: int(np.count_nonzero(after > max_bytes)) + 1]
        lost = np.zeros(producers.size, np.bool_)
        lost[evicted] = True
        self._missing.update(producers[evicted].tolist())
        self._missing.difference_update(self._forgotten)
        left = np.flatnonzero(~lost[of])
        self._carry.replace(carry.take(left))
        self._count_bytes()
        return left

    def checkpoint(
        self,
        prune_horizon_ns: int = 0,
        *,
        delivered: int | None = None,
        replayed: tuple[int, int] | None = None,
    ) -> tuple[int, list[ProducerState]]:
        """Return the offset read through, and states of producers, as of a delivered row.

        Afterwards, `has_pending` ignores spans that were processed up to there.

        Args:
            prune_horizon_ns: Forget producers whose largest clock is older by this than the newest
                acknowledgement, in nanoseconds. Zero keeps all.
            delivered: How many of the last plan's rows were delivered. By default the whole plan
                was processed, including its replay.
            replayed: Clock and begin of the last delivered row of the plan's replay, if any. All
                rows of the plan were delivered then.
        """
        before = self._before
        if delivered is None or before is None:
            offset, bounds, busy, kept = self._offset, dict(self._bounds), None, set[int]()
            self._pending.clear()
        else:
            offset, past, busy = _as_of(before, delivered, replayed)
            bounds = {p: b for p, b in self._bounds.items() if p not in before.touched}
            bounds.update(past)
            kept = set(before.touched)
            self._pending = {
                p
                for p in self._pending.intersection(kept)
                if self._bounds[p][2] != past.get(p, _IDLE)[2]
            }
        if prune_horizon_ns > 0:
            for producer in self._stale(bounds, prune_horizon_ns):
                if producer == busy:
                    continue
                warn_of_stale(self.journal, producer.to_bytes(6), bounds.pop(producer)[2])
                if producer not in kept:
                    self._forget(producer)
        return offset, self._states(bounds)

    def _states(self, bounds: dict[int, Bounds]) -> list[ProducerState]:
        journal = self.journal
        return [
            ProducerState.of(journal, ProducerID(producer.to_bytes(6)), known)
            for producer, known in bounds.items()
        ]

    def _stale(self, bounds: dict[int, Bounds], horizon_ns: int) -> list[int]:
        """Return the stale producers."""
        newest = max((low for low, _, _ in bounds.values()), default=0)
        bound = stale_below(newest, horizon_ns)
        return [producer for producer, (_, high, _) in bounds.items() if high < bound]

    def _forget(self, producer: int) -> None:
        _, _, begin = self._bounds.pop(producer)
        self._pending.discard(producer)
        if begin != -1 and producer not in self._missing:
            self._forgotten.append(producer)
        self._missing.discard(producer)


def _close(carry: UuidColumns, closings: list[Closings]) -> tuple[Indices, Indices, Indices]:
    """Return carried rows that stay, those that commit, and the batch's rows that commit them."""
    producer = np.concatenate([c.producer for c in closings])
    order = np.argsort(producer)
    producer = producer[order]
    terminator = np.concatenate([c.terminator for c in closings])[order]
    limit = np.concatenate([c.limit for c in closings])[order]
    at = np.minimum(np.searchsorted(producer, carry.producer), producer.size - 1)
    closed = producer[at] == carry.producer
    rows = np.flatnonzero(closed)
    of = at[rows]
    commit = carry.clock[rows] <= limit[of]
    return np.flatnonzero(~closed), rows[commit], terminator[of[commit]]


def _as_of(
    before: _Before, delivered: int, replayed: tuple[int, int] | None
) -> tuple[int, dict[int, Bounds], int | None]:
    """Return the offset, bounds of producers, and the producer of a partly delivered commit.

    They're as of the moment after the delivered rows of the last plan.
    """
    plan = before.plan
    batch = plan.table.slice(before.carried)
    stop, busy, commit = 0, None, _IDLE
    if replayed is not None:
        assert plan.replay is not None, "the plan has no replay"
        stop, busy = plan.consumed - 1, plan.replay.producer
        commit = (replayed[0], plan.replay.max, replayed[1])
    elif delivered:
        row, by = int(plan.rows[delivered - 1]), int(plan.terminators[delivered - 1])
        stop = by - before.carried + 1
        if delivered < plan.rows.size and plan.terminators[delivered] == by:
            # The rest of the commit remains: its last row is read again after a restart.
            stop -= 1
            producer, clock, begin = plan.table.producer, plan.table.clock, plan.table.begin
            busy = int(producer[by])
            commit = (int(clock[row]), int(clock[by]), int(begin[row]))
    done = decide(batch.slice(0, stop), before.bounds, before.missing)
    bounds = {**before.bounds, **done.bounds}
    if busy is not None:
        bounds[busy] = commit
    return int(batch.end[stop - 1]) if stop else before.offset, bounds, busy
