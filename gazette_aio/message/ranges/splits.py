"""Plan by which each split of a range delivers the committed messages of its own bytes.

See `gazette_aio.message.ranges.committed` for how the plan is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from gazette_aio.message.ranges.states import RangeState
from gazette_aio.message.ranges.transfer import DROPPED, apply, begun, verdict
from gazette_aio.protocol.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_aio.message.core.rules import ProducerBounds
    from gazette_aio.message.ranges.summary import RangeSummary


class ProducerPlan(NamedTuple):
    """States of a producer at the ends of a split, and the fate of its pending messages."""

    before: ProducerBounds
    """State when the split begins."""
    after: ProducerBounds
    """State when the split ends. The offset of the first pending message may be a lower bound."""
    commit: int = DROPPED
    """Clock up to which messages that are pending at the end commit, or DROPPED."""


class SplitPlan(NamedTuple):
    """Plan by which a split delivers the messages of its own bytes: see `CommittedSplit`.

    As a pickle, it takes some 80 bytes per producer.
    """

    end: int
    """Offset after the last message; -1 if there is none."""
    producers: dict[int, ProducerPlan]
    """Plans of producers, by ID as a big-endian number."""


@dataclass(frozen=True, slots=True)
class RangePlan:
    """Plan by which consecutive splits deliver the committed messages of their range."""

    splits: list[SplitPlan]
    """Plan of each split, in the order given."""
    entering: dict[int, int]
    """Clocks up to which the range commits messages before it, by producer.

    There are none if the range begins without a state.
    """
    state: RangeState
    """State at the end of the range. Messages pending there are delivered if `ahead` commits them.

    Offsets of first pending messages may be lower bounds (see `ranges.transfer`). A commit after
    the range then reads again, and leaves out, some duplicates before these messages.
    """

    def is_decided(self, ahead: RangeSummary) -> bool:
        """Return whether the content directly after the range decides on all its pending messages.

        If so, further content changes no decision.
        """
        pending = {p: b for p, b in self.state.producers.items() if b.begin != -1}
        return len(_verdicts(ahead, pending)) == len(pending)


def plan_splits(
    state: RangeState, summaries: Sequence[RangeSummary], ahead: RangeSummary | None = None
) -> RangePlan:
    """Return the plan by which splits deliver the committed messages of a range.

    Args:
        state: State at the begin of the first split.
        summaries: Summaries of consecutive splits.
        ahead: Summary of the content directly after the last split, or of the begin of that
            content. Messages of the range that it commits are delivered as well.

    Raises:
        ValidationError: The summaries aren't in the order of their offsets.
    """
    states = dict(state.producers)
    plans: list[dict[int, ProducerPlan]] = [{} for _ in summaries]
    # By producer, the splits with undecided messages. -1 stands for content before the first.
    undecided = {producer: [-1] for producer, bounds in states.items() if bounds.begin != -1}
    entering: dict[int, int] = {}
    floor = offset = state.offset

    def decide(producer: int, commit: int) -> None:
        for at in undecided.pop(producer, ()):
            if at != -1:
                plans[at][producer] = plans[at][producer]._replace(commit=commit)
            elif commit != DROPPED:
                entering[producer] = commit

    for at, summary in enumerate(summaries):
        if summary.end == -1:
            continue
        # A torn record may extend into the next split, which begins after the record.
        if summary.begin < floor:
            raise ValidationError(f"split begins at {summary.begin}, before {floor}")
        floor, offset = summary.begin, max(offset, summary.end)
        for producer, transfer in summary.transfers.items():
            before = begun(states.get(producer), transfer)
            commit = verdict(before, transfer)
            if commit is not None:
                decide(producer, commit)
            after, _ = apply(before, transfer)
            states[producer] = after
            plans[at][producer] = ProducerPlan(before, after)
            if after.begin != -1:
                undecided.setdefault(producer, []).append(at)
    if ahead is not None and ahead.end != -1:
        if ahead.begin < floor:
            raise ValidationError(f"the summary ahead begins at {ahead.begin}, before {floor}")
        for producer, commit in _verdicts(ahead, {p: states[p] for p in undecided}):
            decide(producer, commit)
    splits = [
        SplitPlan(summary.end, producers)
        for summary, producers in zip(summaries, plans, strict=True)
    ]
    return RangePlan(splits, entering, RangeState(offset, states))


def _verdicts(ahead: RangeSummary, pending: dict[int, ProducerBounds]) -> list[tuple[int, int]]:
    """Return the producers whose pending messages are decided by `ahead`, and the verdicts."""
    found = [
        (producer, verdict(bounds, ahead.transfers[producer]))
        for producer, bounds in pending.items()
        if producer in ahead.transfers
    ]
    return [(producer, commit) for producer, commit in found if commit is not None]
