"""How far a batch of a streaming query goes, and what of its journals is lost.

Theory of operation. `plan_batch()` compares where a query is with a listing of its journals. Each
journal goes on towards its write head, or the target of an AvailableNow run. A limit of bytes is
split over journals in proportion to what they lag behind, so that all of them catch up at the same
time; each goes on by a byte at least, or by as much as its framing needs to be cut. What has
expired is passed at once, and counts for nothing.

Journals which are gone, were created anew, or fell behind, are losses. They're returned rather than
raised, as a heads-up: `raise_losses()` makes errors of them if they aren't tolerated. The offsets
are those of a query which tolerates them. It keeps its place in journals which are gone, reads new
ones from their first byte, and goes on at the write head of those which fell behind.

`check_batch()` is for the batch which is about to be read, be it planned now or before a restart.
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
_EXPIRED: Final = "has lost its oldest fragments"


class Target(NamedTuple):
    """Where an AvailableNow run ends in a journal."""

    head: int
    revision: int = 0
    """Revision at which the journal was created; or 0 if that isn't known."""


class Loss(NamedTuple):
    """Content of a journal which can't be read any more."""

    journal: str
    reason: str
    begin: int
    end: int
    """Equal to `begin`, if it isn't known how much is lost."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing of the journal, as it was, can be read any more in this run."""
        return self.reason == _GONE


class BatchEnd(NamedTuple):
    """Where a batch ends."""

    offsets: Offsets
    """Its end, with states as of its begin: see `Offsets.end_at()`."""
    losses: list[Loss]
    """What's lost, in the order of journals' names."""


def available_now(journals: Iterable[JournalInfo]) -> dict[str, Target]:
    """Return the targets of an AvailableNow run."""
    return {one.name: Target(one.head, one.create_revision) for one in journals}


def regressed(start: Offsets, journals: Iterable[JournalInfo]) -> list[str]:
    """Return journals whose write heads are behind what was read of them.

    A replica which hasn't heard of the last append yet says so. Ask again, by an empty append,
    before the journals are taken for new ones.
    """
    return [one.name for one in journals if one.head < start.journals.get(one.name, 0)]


def plan_batch(
    start: Offsets,
    journals: Iterable[JournalInfo],
    *,
    max_bytes: int | None = None,
    targets: Mapping[str, Target] | None = None,
    seen: Mapping[str, int] | None = None,
) -> BatchEnd:
    """Return where a batch ends.

    Args:
        start: Where it begins.
        journals: All journals of the query, with fragments of those which can't be cut anywhere if
            there's a limit. Without them, they're read up to their heads.
        max_bytes: Limit of the bytes of the batch. It's exceeded by what journals need to go on.
        targets: Where the run ends, if it does. Other journals are ignored.
        seen: Write heads which were seen earlier. A journal which is gone is a loss only if its
            head was beyond what was read.
    """
    seen = seen or {}
    losses: list[Loss] = []
    ranges: list[JournalRange] = []
    ends, revisions = dict(start.journals), dict(start.revisions)
    base, states = dict(start.journals), dict(start.states or {})
    gone = set(start.journals)
    for journal in sorted(journals, key=lambda one: one.name):
        name, revision = journal.name, journal.create_revision
        target = Target(journal.head, revision) if targets is None else targets.get(name)
        is_other = target is not None and _differ(target.revision, revision)
        if not is_other:
            gone.discard(name)
        if target is None or is_other:
            continue
        begin = start.journals.get(name, 0)
        loss = _find_loss(start, journal, seen.get(name, 0))
        if loss is not None:
            losses.append(loss)
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
        last = max(seen.get(name, 0), (targets or {}).get(name, Target(0)).head)
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
    """Return journals which were created anew between positions, in the order of their names."""
    return [
        Loss(name, _RECREATED, offset, offset)
        for name, offset in sorted(start.journals.items())
        if _differ(start.revisions.get(name, 0), end.revisions.get(name, 0))
    ]


def split_limit(lags: Sequence[int], limit: int | None) -> list[int]:
    """Return how many bytes each journal goes on: in proportion to its lag, and one at least.

    Args:
        lags: Bytes by which each journal lags.
        limit: Bytes of all of them; or None, if there's no limit.
    """
    total = sum(lags)
    if limit is None or total <= limit:
        return list(lags)
    return [min(lag, max(lag * limit // total, 1)) for lag in lags]


def check_batch(
    ranges: Iterable[BatchRange], journals: Mapping[str, JournalInfo]
) -> tuple[list[JournalRange], list[Loss]]:
    """Return what can be read of a batch, and what can't.

    Args:
        ranges: What is to be read, from `batch_ranges()`.
        journals: Journals by name, with fragments if the begins of ranges are to be checked.
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
    """Raise an error if anything is lost.

    Raises:
        DataLossError: Of the first loss. It tells how many there are.
    """
    if not losses:
        return
    journal, reason, begin, end = losses[0]
    others = f" ({len(losses) - 1} more journals)" if len(losses) > 1 else ""
    missing = ((begin, end),) if begin < end else ()
    what = f"[{begin}, {end}) can't be read" if missing else f"it was read up to {begin}"
    raise DataLossError(
        f"DATA_LOSS: journal {journal} {reason}: {what}{others}. "
        "Set failOnDataLoss=false to go on without",
        journal=journal,
        offset=begin,
        missing=missing,
    )


def _differ(revision: int, other: int) -> bool:
    """Return whether revisions, which may be unknown, are of two journals."""
    return 0 not in (revision, other) and revision != other


def _find_loss(start: Offsets, journal: JournalInfo, seen: int) -> Loss | None:
    """Return what of a listed journal was to be read, and is lost."""
    name, head = journal.name, journal.head
    begin = start.journals.get(name)
    if begin is None:
        return None
    revision = journal.create_revision or start.revisions.get(name, 0)
    if is_recreated(start, name, revision, head):
        return Loss(name, _RECREATED, begin, max(seen, begin))
    return Loss(name, _BEHIND, head, begin) if head < begin else None


def _truncate(state: RangeState, head: int) -> RangeState:
    """Return a state without pending messages which begin at `head` or behind."""
    kept = {
        producer: bounds if bounds.begin < head else ProducerBounds(bounds.min, bounds.min, -1)
        for producer, bounds in state.producers.items()
    }
    return replace(state, offset=min(state.offset, head), producers=kept)
