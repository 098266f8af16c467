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

*Splits of one range*, such as those of a batch job, which are all read concurrently. First,
`summarize()` returns each split's effect on any state of each producer (see `ranges.transfer` for
why the summary is small, and exact). A planner collects all summaries, and `plan_splits()` gives
each split the states at its begin, and the fate of the messages that are pending at its end: the
first acknowledgement after the split commits them up to a clock, or a message outside of
transactions drops them. Then `CommittedSplit` delivers the messages of its own bytes, in the order
of their commits; those that commit after the split come last. Summaries of immutable content, such
as fragments, are computed once.

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

Pending messages are retained up to a limit. Beyond it, they are read again when they commit.

Source: the transitions of Gazette's message sequencer; both ways are this package's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gazette_aio.message.core.rules import ProducerBounds
from gazette_aio.message.envelopes.content import JournalContent
from gazette_aio.protocol.errors import SequencerStateError

try:
    from gazette_aio.message.ranges.splits import RangePlan, SplitPlan, plan_splits
    from gazette_aio.message.ranges.states import RangeState, prune
    from gazette_aio.message.ranges.summary import RangeSummary, advance, summarize
except ImportError as _error:
    raise ImportError(
        "gazette_aio.message.ranges.committed needs numpy: pip install 'gazette-aio[arrow]'"
    ) from _error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gazette_aio.message.envelopes.content import Found
    from gazette_aio.message.envelopes.origin import JournalFormat

__all__ = [
    "CommittedRange",
    "CommittedSplit",
    "ProducerBounds",
    "RangePlan",
    "RangeState",
    "RangeSummary",
    "SplitPlan",
    "advance",
    "plan_splits",
    "prune",
    "summarize",
]


class CommittedRange(JournalContent):
    """Content of a range, from which its committed messages are read.

    Feed the content from the state's offset on. Replays need content before the range, once for
    each producer with pending messages there. The messages are those that a Sequencer that retains
    everything delivers, even of producers whose clocks go back.

    Args:
        journal_format: Format of the journal.
        state: State at the range's begin.
        options: As for JournalContent. Without `entering`, messages before the range that it
            commits aren't delivered.
    """

    def __init__(
        self, journal_format: JournalFormat[Any], state: RangeState, **options: Any
    ) -> None:
        states = [
            (producer.to_bytes(6), low, high, begin)
            for producer, (low, high, begin) in sorted(state.producers.items())
        ]
        super().__init__(journal_format, state.offset, states=states, **options)

    @property
    def state(self) -> RangeState:
        """State after the messages that were delivered."""
        offset, states = self.core.checkpoint()
        return RangeState(
            offset, {int.from_bytes(p): ProducerBounds(*bounds) for p, *bounds in states}
        )

    def commit(self, clocks: Mapping[int, int]) -> Found:
        """Commit pending messages up to clocks of their producers, as acknowledgements would.

        Returns:
            As `read()`, which returns the rest.
        """
        commits = [(producer.to_bytes(6), clock) for producer, clock in sorted(clocks.items())]
        found = self.core.commit(commits) if commits else None
        return self._translate(found) if isinstance(found, tuple) else found


class CommittedSplit(CommittedRange):
    """Content of a split, from which the committed messages of its own bytes are read.

    Messages that commit after the split follow once its end is declared.

    Args:
        journal_format: Format of the journal.
        plan: Plan of the split.
        begin: Begin of the split.
        options: As for JournalContent.
    """

    def __init__(
        self, journal_format: JournalFormat[Any], plan: SplitPlan, begin: int, **options: Any
    ) -> None:
        before = {producer: of.before for producer, of in plan.producers.items()}
        super().__init__(journal_format, RangeState(begin, before), entering=False, **options)
        self._plan = plan
        self._has_ended = False

    def end(self) -> None:
        """Declare the end of the split."""
        super().end()
        self._has_ended = True

    def read(self, limit_bytes: int) -> Found:
        """Process about so much content, as `JournalContent.read()` does.

        Raises:
            SequencerStateError: The content isn't what the plan was made of.
        """
        found = super().read(limit_bytes)
        if found is not None or not self._has_ended or self.replay is not None:
            return found
        self._has_ended = False
        self.core.settle_all()
        self._check()
        return self.commit({p: of.commit for p, of in self._plan.producers.items() if of.commit})

    def _check(self) -> None:
        """Raise SequencerStateError unless the state is that of the plan at the split's end."""
        begin, end = self.begun, self._plan.end
        offset, producers = self.state.offset, self.state.producers
        expected = {p: of.after for p, of in self._plan.producers.items()}
        if (
            offset != (begin if end == -1 else end)
            or producers.keys() != expected.keys()
            or any(_differ(bounds, expected[p]) for p, bounds in producers.items())
        ):
            raise SequencerStateError(
                f"content of the split at {begin} isn't what its plan was made of"
            )


def _differ(one: ProducerBounds, two: ProducerBounds) -> bool:
    """Return whether bounds differ, apart from lower bounds of first pending messages."""
    return one[:2] != two[:2] or (one.begin == -1) != (two.begin == -1)
