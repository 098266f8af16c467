"""Ends of batches of a streaming query, and losses of journals.

Theory of operation. `plan_batch()` compares the positions of a query with a listing of its
journals. Each journal advances towards its write head, or the target of an AvailableNow run. A
limit of bytes is split over journals in proportion to their lags, so that all journals catch up at
the same time; each advances by at least a byte, or by as much as its framing needs to be cut.
Expired content is skipped at once, and doesn't count.

Journals which were deleted or recreated, or whose write heads decreased, are losses. `plan_batch()`
returns them, and `raise_losses()` raises them if options don't allow losses. The offsets are those
of a query which allows losses: it keeps its position in deleted journals, reads recreated journals
from their first byte, and continues at decreased write heads.

The write head of a journal without content is 0: after all of it expired, or while a broker lists
its store for the first time. Only content which isn't read yet may then be lost. The position
stays, since the journal continues from its real write head.

`check_batch()` checks the batch to be read, which was planned now or before a restart.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from gazette_aio.message.ranges.committed import ProducerBounds, RangeState
from gazette_aio.protocol.errors import DataLossError
from gazette_aio.spark.planning.journal_ranges import JournalRange, cut_range
from gazette_aio.spark.streaming.offsets import Offsets, is_recreated

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gazette_aio.spark.planning.journal_ranges import JournalInfo
    from gazette_aio.spark.streaming.offsets import BatchRange

_GONE: Final = "is gone"
_RECREATED: Final = "was created anew"
_BEHIND: Final = "fell behind"
_EMPTY: Final = "has no content any more"
_EXPIRED: Final = "has lost its oldest fragments"


class RunTarget(NamedTuple):
    """End of an AvailableNow run in a journal."""

    head: int
    revision: int = 0
    """Revision at which the journal was created; or 0 if it's unknown."""


class Loss(NamedTuple):
    """Content of a journal which is lost."""

    journal: str
    reason: str
    begin: int
    end: int
    """Equal to `begin` if the amount is unknown."""

    @property
    def is_whole(self) -> bool:
        """Whether the journal is lost for the rest of this run."""
        return self.reason == _GONE


class BatchEnd(NamedTuple):
    """End of a batch."""

    offsets: Offsets
    """End of the batch, with states of its begin; see `Offsets.end_at()`."""
    losses: list[Loss]
    """Losses in the order of journals' names."""


def available_now(journals: Iterable[JournalInfo]) -> dict[str, RunTarget]:
    """Return the targets of an AvailableNow run."""
    return {one.name: RunTarget(one.head, one.create_revision) for one in journals}


def regressed(start: Offsets, journals: Iterable[JournalInfo]) -> list[str]:
    """Return journals whose write heads are before the offsets already read.

    A replica which doesn't know the last append yet reports such a head: probe again before
    treating the journal as recreated.
    """
    return [
        one.name
        for one in journals
        if one.head < start.journals.get(one.name, 0)
        and not (_is_empty(start, one) and _was_read(start, one.name))
    ]


def plan_batch(
    start: Offsets,
    journals: Iterable[JournalInfo],
    *,
    max_bytes: int | None = None,
    targets: Mapping[str, RunTarget] | None = None,
    seen: Mapping[str, int] | None = None,
) -> BatchEnd:
    """Return the end of a batch.

    Args:
        start: Begin of the batch.
        journals: All journals of the query. With a limit, journals which can't be cut anywhere need
            fragments; without fragments they are read up to their heads.
        max_bytes: Soft limit of the bytes: each journal advances by at least a byte or fragment.
        targets: Targets of an AvailableNow run. Other journals are ignored.
        seen: Earlier write heads. A deleted journal is a loss only if its head was beyond the
            offset already read.
    """
    seen = seen or {}
    losses: list[Loss] = []
    ranges: list[JournalRange] = []
    ends, revisions = dict(start.journals), dict(start.revisions)
    base, states = dict(start.journals), dict(start.states or {})
    gone = set(start.journals)
    for journal in sorted(journals, key=lambda one: one.name):
        name, revision = journal.name, journal.create_revision
        target = RunTarget(journal.head, revision) if targets is None else targets.get(name)
        is_other = target is not None and _differ(target.revision, revision)
        if not is_other:
            gone.discard(name)
        if target is None or is_other:
            continue
        begin = start.journals.get(name, 0)
        loss = _find_loss(start, journal, seen.get(name, 0))
        if loss is not None:
            losses.append(loss)
        if loss is not None and loss.reason != _EMPTY:
            state = states.pop(name, None)
            begin = ends[name] = 0 if loss.reason == _RECREATED else journal.head
            base.pop(name)
            if loss.reason != _RECREATED:
                base[name] = begin
                if state is not None:
                    states[name] = _truncate(state, begin)
        if revision and name in ends:
            revisions[name] = revision
        stop = max(min(journal.head, target.head), begin)
        ranges.append(JournalRange(journal, max(begin, min(journal.earliest, stop)), stop))
    for name in sorted(gone):
        last = max(seen.get(name, 0), (targets or {}).get(name, RunTarget(0)).head)
        if last > start.journals[name]:
            losses.append(Loss(name, _GONE, start.journals[name], last))
    shares = split_limit([planned.end - planned.begin for planned in ranges], max_bytes)
    for planned, share in zip(ranges, shares, strict=True):
        name = planned.journal.name
        if planned.end > ends.get(name, 0):
            ends[name] = cut_range(planned, planned.begin + share).end
            if planned.journal.create_revision:
                revisions[name] = planned.journal.create_revision
    end = Offsets(
        ends,
        revisions,
        None if start.states is None else states,
        base if start.is_initial else None,
    )
    return BatchEnd(end, sorted(losses))


def find_recreated(start: Offsets, end: Offsets) -> list[Loss]:
    """Return journals which were recreated between positions, in the order of their names."""
    return [
        Loss(name, _RECREATED, offset, offset)
        for name, offset in sorted(start.journals.items())
        if _differ(start.revisions.get(name, 0), end.revisions.get(name, 0))
    ]


def split_limit(lags: Sequence[int], limit: int | None) -> list[int]:
    """Return the number of bytes by which each journal advances: in proportion, at least one.

    Args:
        lags: Bytes by which each journal lags.
        limit: Limit of all bytes; None for no limit.
    """
    total = sum(lags)
    if limit is None or total <= limit:
        return list(lags)
    return [min(lag, max(lag * limit // total, 1)) for lag in lags]


def check_batch(
    ranges: Iterable[BatchRange], journals: Mapping[str, JournalInfo]
) -> tuple[list[JournalRange], list[Loss]]:
    """Return the readable ranges of a batch, and its losses.

    Args:
        ranges: Ranges of the batch, from `batch_ranges()`.
        journals: Journals by name, with fragments to check the begins of ranges.
    """
    found: list[JournalRange] = []
    losses: list[Loss] = []
    for name, begin, end, revision, is_new, _ in ranges:
        journal = journals.get(name)
        if journal is None:
            losses.append(Loss(name, _GONE, begin, end))
            continue
        if _differ(revision, journal.create_revision):
            losses.append(Loss(name, _RECREATED, begin, end))
            continue
        first = max(begin, min(journal.earliest, end))
        if first > begin and not is_new:
            losses.append(Loss(name, _EXPIRED, begin, first))
        if first < end:
            found.append(JournalRange(journal, first, end))
    return found, losses


def raise_losses(losses: Sequence[Loss]) -> None:
    """Raise an error if there are losses.

    Raises:
        DataLossError: Content is lost. The error describes the first loss, and has their number.
    """
    if not losses:
        return
    journal, reason, begin, end = losses[0]
    others = f" ({len(losses) - 1} more journals)" if len(losses) > 1 else ""
    missing = ((begin, end),) if begin < end else ()
    what = f"[{begin}, {end}) can't be read" if missing else f"it was read up to {begin}"
    raise DataLossError(
        f"DATA_LOSS: journal {journal} {reason}: {what}{others}. "
        "Set failOnDataLoss=false to continue without it",
        journal=journal,
        offset=begin,
        missing=missing,
    )


def _differ(revision: int, other: int) -> bool:
    """Return whether two revisions are known and differ."""
    return 0 not in (revision, other) and revision != other


def _find_loss(start: Offsets, journal: JournalInfo, seen: int) -> Loss | None:
    """Return the loss of a listed journal, if any."""
    name, head = journal.name, journal.head
    begin = start.journals.get(name)
    if begin is None:
        return None
    revision = journal.create_revision or start.revisions.get(name, 0)
    if is_recreated(start, name, revision, head):
        return Loss(name, _RECREATED, begin, max(seen, begin))
    if _is_empty(start, journal):
        was_read = _was_read(start, name)
        return Loss(name, _EMPTY, begin, seen) if seen > begin and not was_read else None
    return Loss(name, _BEHIND, head, begin) if head < begin else None


def _is_empty(start: Offsets, journal: JournalInfo) -> bool:
    """Return whether a journal has no content, and isn't known to be recreated."""
    return not journal.head and bool(start.revisions.get(journal.name))


def _was_read(start: Offsets, name: str) -> bool:
    """Return whether a journal was read up to the write head of the last batch."""
    return start.heads.get(name, 0) <= start.journals[name]


def _truncate(state: RangeState, head: int) -> RangeState:
    """Return a state without pending messages which begin at `head` or later."""
    kept = {
        producer: bounds if bounds.begin < head else ProducerBounds(bounds.min, bounds.min, -1)
        for producer, bounds in state.producers.items()
    }
    return replace(state, offset=min(state.offset, head), producers=kept)
