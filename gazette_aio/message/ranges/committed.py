"""Committed messages of ranges of a journal, read in parallel.

A Sequencer delivers exactly the committed messages of a journal which it reads from the start. Here
is how readers of parts of a journal deliver the same, each its share, given nothing but a small
state. All of it is pure: readers get content, pass its UUIDs as columns, and deliver the rows which
they're told to. It takes numpy: `pip install gazette-aio[arrow]`.

Theory of operation. What a Sequencer knows at an offset is the state of each producer: the clock up
to which messages are done, the largest pending clock, and the offset of the first pending message.
It's a pure function of the bytes before the offset, takes some 35 bytes per producer as JSON, and
follows from UUIDs alone: see `advance()`. There are two ways to make use of that.

*Ranges one after the other*, as those of micro-batches. The states at the ends of ranges are known
when they're planned, or handed on from reader to reader. `CommittedRange` goes on from the state at
a range's begin, and delivers what the Sequencer delivers within the range, in its order. A message
is delivered by the range which holds its acknowledgement. Where that commits messages before the
range, they're read again: once for each producer which was pending.

*Splits of one range*, as those of a batch job, which are all read at the same time. Each split is
read twice. First, `summarize()` tells what it does to the state of each producer, whatever that is
(see `columnar.transfer` for why that's small, and exact). A planner goes through all summaries, and
`plan_splits()` gives each split the states at its begin, and what becomes of the messages which are
pending at its end: the first acknowledgement behind it says up to which clock they commit, or a
message outside of transactions drops them. Then `CommittedSplit` decides on the messages of its own
bytes. A message is delivered by the split which holds it, in the order of the journal, and nothing
is read twice beyond that. Summaries of content which can't change, as that of fragments, are
computed once.

What the splits of a range deliver is the set of messages which the Sequencer delivers as of the
range's end, given the state at its begin. If that has pending messages, then those before the range
which it commits are to be delivered as well: see `RangePlan.entering`.

The last part of a range needn't be summarized. Only as much of its begin is, as decides on what's
pending before it: see `RangePlan.is_decided()`. The others are planned with that as what's ahead of
them, and it's read by a `CommittedRange` which leaves the messages before it to them.

A reader without a state at the begin knows nothing of what's before, as a consumer which starts at
such an offset. Of a transaction which began before, it delivers the messages behind the offset, and
not those before. It takes the first message it sees of a producer for a new one, even if that's a
duplicate.

Source: the transitions of Gazette's message sequencer; both ways are this package's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_aio.message.ranges.splits import (
    CommittedSplit,
    RangePlan,
    SplitPlan,
    plan_splits,
)
from gazette_aio.message.ranges.states import RangeState, advance, prune
from gazette_aio.message.ranges.summary import RangeSummary, summarize
from gazette_aio.message.sequencing.columnar import ColumnarSequencer
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
    """Sequences a range of a journal, going on from the state at its begin.

    It's a ColumnarSequencer whose replays are of what's before the range only: `[begin, offset)`,
    once for each producer which had pending messages there. What's pending within the range is
    carried. All that's delivered is what a Sequencer delivers which retains everything, even of
    producers whose clocks go back.

    Args:
        journal: Name of the journal.
        state: State at the range's begin.
        entering: Whether messages before the range which it commits are delivered, by replays.
            Otherwise, all it delivers are messages of its own.
        max_pending_bytes: Limit of the bytes of pending rows which are carried between batches, if
            there's one. Beyond it, replays are of the range as well.
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
        # Producers with messages before the range which are pending still, and to be delivered.
        self._entering = {
            producer: bounds
            for producer, bounds in state.producers.items()
            if entering and bounds.begin != -1
        }
        # Their bounds, if they're left to others.
        self._left = {} if entering else state.producers
        # Nothing of the range is missing: what's before it is added to the replays.
        self._missing.clear()

    @property
    def state(self) -> RangeState:
        """State behind what was processed."""
        known = self._bounds.items()
        return RangeState(self._offset, {p: ProducerBounds._make(bounds) for p, bounds in known})

    def process(self, batch: UuidColumns) -> CommitPlan:
        """Process the rows which follow, up to the first commit by a replay.

        Returns:
            What commits, and what's to be carried. The rest of the batch, if any, is to be
            processed next.
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
            # Others deliver what's before the range. Rows up to its largest clock are duplicates.
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
