"""Committed messages of ranges of a journal, read in parallel.

A Sequencer that reads a journal from its start delivers exactly the committed messages. Here,
readers of parts of a journal deliver the same messages, each reader its share, given only a small
state. All of it is pure: readers pass the UUIDs of content as columns, and deliver the rows that
are returned. It requires numpy: `pip install gazette-aio[arrow]`.

Theory of operation. A Sequencer's state at an offset is the state of each producer: the clock up to
which messages are done, the largest pending clock, and the offset of the first pending message. The
state is a pure function of the bytes before the offset, takes some 35 bytes per producer as JSON,
and follows from UUIDs alone: see `advance()`. There are two ways to use the state.

*Consecutive ranges*, such as those of micro-batches. The states at the ends of ranges are known
when the ranges are planned, or passed from reader to reader. `CommittedRange` resumes from the
state at a range's begin, and delivers what the Sequencer delivers within the range, in its order.
The range that holds an acknowledgement delivers the messages that it commits. Committed messages
before the range are read again: once for each producer that was pending.

*Splits of one range*, such as those of a batch job, which are all read concurrently. Each split is
read twice. First, `summarize()` returns the split's effect on any state of each producer (see
`ranges.transfer` for why the summary is small, and exact). A planner collects all summaries, and
`plan_splits()` gives each split the states at its begin, and the fate of the messages that are
pending at its end: the first acknowledgement after the split commits them up to a clock, or a
message outside of transactions drops them. Then `CommittedSplit` decides on the messages of its own
bytes. The split that holds a message delivers it, in the order of the journal, and nothing is read
a third time. Summaries of immutable content, such as fragments, are computed once.

The splits of a range deliver the set of messages that the Sequencer delivers as of the range's end,
given the state at its begin. If that state has pending messages, those before the range that the
range commits must be delivered as well: see `RangePlan.entering`.

The last part of a range needs no full summary. It's summarized only until it decides on all
messages pending before it: see `RangePlan.is_decided()`. The other splits are planned with this
summary as `ahead`. A `CommittedRange` reads the last part, and leaves the messages before it to the
splits.

A reader without a state at the begin knows nothing of earlier content, like a consumer that starts
at this offset. Of a transaction that began earlier, it delivers only the messages after the offset.
It takes the first message of a producer for a new one, even if the message is a duplicate.

Source: the transitions of Gazette's message sequencer; both ways are this package's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    from gazette_aio.message.sequencing.columnar import ColumnarSequencer
except ImportError as _error:
    raise ImportError(
        "gazette_aio.message.ranges.committed needs numpy: pip install 'gazette-aio[arrow]'"
    ) from _error

from gazette_aio.message.ranges.splits import (
    CommittedSplit,
    RangePlan,
    SplitPlan,
    plan_splits,
)
from gazette_aio.message.ranges.states import RangeState, advance, prune
from gazette_aio.message.ranges.summary import RangeSummary, summarize
from gazette_aio.message.sequencing.plan import CommitPlan, ReplayFilter, ReplaySpan
from gazette_aio.message.sequencing.rules import ProducerBounds
from gazette_aio.message.sequencing.segments import first_commit

if TYPE_CHECKING:
    from gazette_aio.message.sequencing.columns import UuidColumns

__all__ = [
    "CommittedRange",
    "CommittedSplit",
    "ProducerBounds",
    "RangePlan",
    "RangeState",
    "RangeSummary",
    "ReplayFilter",
    "ReplaySpan",
    "SplitPlan",
    "advance",
    "plan_splits",
    "prune",
    "summarize",
]


class CommittedRange(ColumnarSequencer):
    """Sequences a range of a journal, starting from the state at its begin.

    It's a ColumnarSequencer that replays only content before the range: `[begin, offset)`, once for
    each producer with pending messages there. Pending messages within the range are carried. It
    delivers the messages that a Sequencer that retains everything delivers, even of producers whose
    clocks go back.

    Args:
        journal: Name of the journal.
        state: State at the range's begin.
        entering: Whether replays deliver messages before the range that it commits. Otherwise, only
            messages of the range are delivered.
        max_pending_bytes: Limit of the bytes of pending rows that are carried between batches, if
            any. Beyond it, the range is replayed as well.
    """

    def __init__(
        self,
        journal: str,
        state: RangeState,
        *,
        entering: bool = True,
        max_pending_bytes: int | None = None,
    ) -> None:
        super().__init__(
            journal,
            offset=state.offset,
            producers=state.to_producers(journal),
            max_pending_bytes=max_pending_bytes,
        )
        self._start = state.offset
        # Producers with messages before the range that are still pending, and to be delivered.
        self._entering = {
            producer: bounds
            for producer, bounds in state.producers.items()
            if entering and bounds.begin != -1
        }
        # Bounds of these producers, if other readers deliver their messages.
        self._left = {} if entering else state.producers
        # No row of the range is missing: earlier messages are added to the replays.
        self._missing.clear()

    @property
    def state(self) -> RangeState:
        """State after the processed messages."""
        known = self._bounds.items()
        return RangeState(self._offset, {p: ProducerBounds._make(bounds) for p, bounds in known})

    def process(self, batch: UuidColumns) -> CommitPlan:
        """Process the next rows, up to the first commit by a replay.

        Returns:
            The rows that commit, and the rows to carry. Process the rest of the batch, if any,
            next.
        """
        entering = self._entering
        commit = first_commit(batch, entering, set(entering)) if entering else -1
        plan = super().process(batch if commit == -1 else batch.slice(0, commit + 1))
        span = plan.replay
        if span is None and commit != -1:
            table = plan.table
            by = table.rows - 1
            producer = int(table.producer[by])
            low, _, begin = entering[producer]
            with_ack = plan.terminators == by
            span = plan.replay = ReplaySpan(
                producer, begin, self._start, low, int(table.clock[by]), tail=plan.rows[with_ack]
            )
            plan.rows, plan.terminators = plan.rows[~with_ack], plan.terminators[~with_ack]
        elif span is not None and self._left and span.begin < self._start:
            # Others deliver messages before the range: rows up to its largest clock are duplicates.
            span.begin, span.min = self._start, self._left[span.producer].max
        if span is not None:
            span.ends_above = True
        for producer in entering.keys() & set(batch.producer[: plan.consumed].tolist()):
            if self._bounds[producer][2] != entering[producer].begin:
                del entering[producer]
        return plan

    def _forget(self, producer: int) -> None:
        super()._forget(producer)
        self._entering.pop(producer, None)
