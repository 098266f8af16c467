"""Plan by which each split of a range delivers the committed messages of its own bytes.

See `gazette_aio.message.ranges.committed` for how the plan is made.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gazette_aio.message.ranges.states import RangeState
from gazette_aio.message.ranges.transfer import DROPPED, apply, begun, verdict
from gazette_aio.message.sequencing.columns import by_producer
from gazette_aio.message.sequencing.plan import ReplaySpan
from gazette_aio.message.sequencing.rules import ACK, ProducerBounds
from gazette_aio.message.sequencing.segments import decide
from gazette_aio.protocol.errors import SequencerStateError, ValidationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gazette_aio.message.ranges.summary import RangeSummary
    from gazette_aio.message.sequencing.columns import Indices, UuidColumns
    from gazette_aio.message.sequencing.rules import Bounds


class Tail(NamedTuple):
    """Messages of a producer that are pending at the end of a split."""

    begin: int
    """Offset of the first such message, or a lower bound; -1 if there is none."""
    commit: int
    """Clock up to which they commit, or DROPPED."""


class ProducerPlan(NamedTuple):
    """State of a producer at the begin of a split, and the fate of its pending messages."""

    bounds: ProducerBounds
    """State when the split begins."""
    head: int
    """Clock up to which the split's first acknowledgement commits; or DROPPED, if there is none, or
    a message outside of transactions discards the messages pending before it."""
    tail: Tail


class SplitPlan(NamedTuple):
    """Plan by which a split decides on the messages of its own bytes: see `CommittedSplit`.

    As a pickle, it takes some 70 bytes per producer.
    """

    begin: int
    """Offset of the first message; -1 if there is none."""
    end: int
    """Offset after the last message; or -1."""
    producers: dict[int, ProducerPlan]
    """Plans of producers, by ID as a big-endian number."""


@dataclass(frozen=True, slots=True)
class RangePlan:
    """Plan by which consecutive splits deliver the committed messages of their range."""

    splits: list[SplitPlan]
    """Plan of each split, in the order given."""
    entering: list[ReplaySpan]
    """Messages before the range that it commits; none if the range begins without a state."""
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
    # By producer, the splits whose tails are undecided. -1 stands for content before the first.
    undecided = {producer: [-1] for producer, bounds in states.items() if bounds.begin != -1}
    entering: list[ReplaySpan] = []
    floor = offset = state.offset

    def decide(producer: int, commit: int) -> None:
        for at in undecided.pop(producer, ()):
            if at != -1:
                plan = plans[at][producer]
                plans[at][producer] = plan._replace(tail=Tail(plan.tail.begin, commit))
            elif commit != DROPPED:
                low, _, begin = state.producers[producer]
                span = ReplaySpan(producer, begin, state.offset, low, commit, ends_above=True)
                entering.append(span)

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
            plans[at][producer] = ProducerPlan(
                before, commit or DROPPED, Tail(after.begin, DROPPED)
            )
            if after.begin != -1:
                undecided.setdefault(producer, []).append(at)
    if ahead is not None and ahead.end != -1:
        if ahead.begin < floor:
            raise ValidationError(f"the summary ahead begins at {ahead.begin}, before {floor}")
        for producer, commit in _verdicts(ahead, {p: states[p] for p in undecided}):
            decide(producer, commit)
    splits = [
        SplitPlan(summary.begin, summary.end, producers)
        for summary, producers in zip(summaries, plans, strict=True)
    ]
    entering.sort(key=lambda span: span.begin)
    return RangePlan(splits, entering, RangeState(offset, states))


def _verdicts(ahead: RangeSummary, pending: dict[int, ProducerBounds]) -> list[tuple[int, int]]:
    """Return the producers whose pending messages are decided by `ahead`, and the verdicts."""
    found = [
        (producer, verdict(bounds, ahead.transfers[producer]))
        for producer, bounds in pending.items()
        if producer in ahead.transfers
    ]
    return [(producer, commit) for producer, commit in found if commit is not None]


@dataclass(slots=True)
class _Chunk:
    mask: NDArray[np.bool_]
    """Whether each row is delivered."""
    undecided: int = 0
    """Number of producers with undecided messages."""


class _Pending(NamedTuple):
    """Messages of one producer that are pending when their chunk ends."""

    chunk: _Chunk
    rows: Indices
    clocks: NDArray[np.uint64]

    def decide(self, commit: int) -> None:
        self.chunk.mask[self.rows[self.clocks <= np.uint64(commit)]] = True


class CommittedSplit:
    """Decides which messages of a split are delivered, in the order of the journal.

    `decide()` takes the UUIDs of the split's messages, chunk by chunk, and returns the mask of a
    chunk's delivered rows after all of them are decided. A reader either retains its chunks until
    then, or drops them, keeps the masks (a byte per message), and reads the split again.

    Theory of operation. Messages that are pending when their chunk ends are decided at once if the
    plan has their fate: before the first acknowledgement of their producer within the split, and
    after its last one. A later chunk decides the others. So undecided messages are of transactions
    that begin and end within the split, except a producer's first one. They take some 25 bytes per
    message.

    Args:
        plan: Plan of the split.
    """

    def __init__(self, plan: SplitPlan) -> None:
        self._plan = plan
        self._offset = -1  # After the last message given.
        self._plans = plan.producers
        self._bounds: dict[int, Bounds] = {p: of.bounds for p, of in plan.producers.items()}
        # Verdict of the split's first acknowledgement of each producer, until it's read.
        self._heads = {
            producer: plan.head for producer, plan in plan.producers.items() if plan.head
        }
        self._chunks: deque[_Chunk] = deque()
        self._pending: dict[int, list[_Pending]] = {}

    @property
    def undecided(self) -> int:
        """Number of the latest chunks without a returned mask."""
        return len(self._chunks)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} producers={len(self._plans)} undecided={self.undecided} "
            f"pending={len(self._pending)}>"
        )

    def decide(self, columns: UuidColumns) -> list[NDArray[np.bool_]]:
        """Take the next chunk, and return masks of the next chunks that are now decided.

        Returns:
            Per chunk, in the order given, whether each row is delivered. Acknowledgements aren't.

        Raises:
            SequencerStateError: The messages aren't those of the plan.
        """
        self._check(columns)
        decision = decide(columns, self._bounds, set())
        if not decision.bounds.keys() <= self._plans.keys():
            raise self._wrong_content()
        if columns.rows:
            self._offset = int(columns.end[-1])
        chunk = _Chunk(np.zeros(columns.rows, np.bool_))
        chunk.mask[decision.rows] = True
        chunk.mask &= columns.flags != ACK
        self._chunks.append(chunk)
        if self._pending:
            for producers, _, limits in decision.closings:
                for producer, limit in zip(producers.tolist(), limits.tolist(), strict=True):
                    for pending in self._pending.pop(producer, ()):
                        pending.decide(limit)
                        pending.chunk.undecided -= 1
        if self._heads:
            is_ack = (columns.flags == ACK) & (columns.clock != 0)
            for producer in set(columns.producer[is_ack].tolist()):
                self._heads.pop(producer, None)
        self._bounds.update(decision.bounds)
        if decision.pending.size:
            self._defer(chunk, columns, np.sort(decision.pending))
        masks: list[NDArray[np.bool_]] = []
        while self._chunks and not self._chunks[0].undecided:
            masks.append(self._chunks.popleft().mask)
        return masks

    def finish(self) -> None:
        """Declare the end of the split.

        Raises:
            SequencerStateError: The messages weren't those of the plan.
        """
        if self._chunks or self._offset != self._plan.end:
            raise self._wrong_content()

    def _check(self, columns: UuidColumns) -> None:
        """Raise SequencerStateError if messages aren't the next ones of the split."""
        if not columns.rows:
            return
        begin, end, _ = self._plan
        first = int(columns.begin[0])
        is_next = first >= self._offset if self._offset != -1 else first == begin
        if not is_next or int(columns.end[-1]) > end:
            raise self._wrong_content()

    def _wrong_content(self) -> SequencerStateError:
        begin, end, _ = self._plan
        return SequencerStateError(
            f"content of the split [{begin}, {end}) isn't what its plan was made of"
        )

    def _defer(self, chunk: _Chunk, columns: UuidColumns, rows: Indices) -> None:
        """Decide messages that are pending when their chunk ends, or remember them."""
        rows = rows[by_producer(columns.producer[rows])]
        producers = columns.producer[rows]
        changes = np.flatnonzero(producers[1:] != producers[:-1]) + 1
        for part in np.split(rows, changes):
            producer = int(columns.producer[part[0]])
            tail = self._plans[producer].tail
            pending = _Pending(chunk, part, columns.clock[part])
            if tail.begin != -1 and columns.begin[part[0]] >= tail.begin:
                pending.decide(tail.commit)
            elif producer in self._heads:
                pending.decide(self._heads[producer])
            else:
                chunk.undecided += 1
                self._pending.setdefault(producer, []).append(pending)
