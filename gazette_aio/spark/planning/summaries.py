"""Summaries of the splits of journals: what each does to the states of their producers.

They're computed by reading the splits, of which nothing but UUIDs is kept. Those of persisted
content are remembered by the process, as it doesn't change: workers which plan are used again.

The last split of a range isn't summarized, but for as much of its begin as decides on what's
pending before it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from contextlib import aclosing
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

from gazette_aio.message.ranges.committed import RangeState, RangeSummary, plan_splits, summarize
from gazette_aio.spark.planning.journal_ranges import JournalRange, clip_fragments
from gazette_aio.spark.reading.bounded import map_bounded
from gazette_aio.spark.reading.pieces import STEP_BYTES
from gazette_aio.spark.reading.scanning import scan_uuids

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from gazette_aio.client import JournalClient
    from gazette_aio.message.ranges.committed import RangePlan
    from gazette_aio.spark.options import SourceOptions
    from gazette_aio.spark.planning.journal_ranges import Split

SPLITS_AT_ONCE: Final = 4
"""Splits which are read at the same time."""

MAX_PRODUCERS: Final = 1 << 16
"""Most producers of which the summaries are remembered, of some 400 bytes each."""

AHEAD_STEP_BYTES: Final = 1 << 20
"""Bytes of a last split which are read at once, to see whether they decide on what's pending."""

_Key: TypeAlias = "Hashable"


async def plan_ranges_of_splits(
    client: JournalClient, ranges: Sequence[Sequence[Split]], options: SourceOptions
) -> list[RangePlan]:
    """Return the plan of each range, which is of all of its splits but the last one.

    Args:
        client: Client to use.
        ranges: The splits of each range, one or more, whose fragments were listed. No producers are
            known at the begin of the first one.
        options: How journals are read, and where their UUIDs are.

    Cancellation: aborts — reads which are under way end. Summaries which are complete are kept.

    Raises:
        DataLossError: Content is lost, and that's an error by options.
        GazetteError: As `scan_uuids()`.
    """
    known = iter(
        await summarize_splits(client, [each for splits in ranges for each in splits[:-1]], options)
    )
    found = [(splits, list(islice(known, len(splits) - 1))) for splits in ranges]

    async def plan_of(item: tuple[Sequence[Split], list[RangeSummary]]) -> RangePlan:
        splits, summaries = item
        state = RangeState(splits[0].begin)
        plan = await asyncio.to_thread(plan_splits, state, summaries)
        if plan.is_decided(RangeSummary()):
            return plan
        ahead = await _summary_of(client, splits[-1], options, until=plan.is_decided)
        return await asyncio.to_thread(plan_splits, state, summaries, ahead)

    return await map_bounded(plan_of, found, limit=SPLITS_AT_ONCE)


async def summarize_splits(
    client: JournalClient, splits: Sequence[Split], options: SourceOptions
) -> list[RangeSummary]:
    """Return the summary of each split.

    Args:
        client: Client to use.
        splits: The splits, of any journals, whose fragments were listed.
        options: How journals are read, and where their UUIDs are.

    Cancellation: aborts — reads which are under way end. Summaries which are complete are kept.

    Raises:
        DataLossError: Content is lost, and that's an error by options.
        GazetteError: As `scan_uuids()`.
    """
    return await map_bounded(
        lambda split: _summary_of(client, split, options), splits, limit=SPLITS_AT_ONCE
    )


async def _summary_of(
    client: JournalClient,
    split: Split,
    options: SourceOptions,
    until: Callable[[RangeSummary], bool] | None = None,
) -> RangeSummary:
    """Return the summary of a split; or that of its begin, as soon as it's enough."""
    key = _key_of(split, options)
    if key is not None and (known := _remembered.get(key)) is not None:
        return known
    journal, summary = split.journal, RangeSummary()
    scanned = scan_uuids(
        client,
        journal.name,
        journal.content_type,
        split.begin,
        split.end,
        options,
        is_aligned=split.is_aligned,
        head=journal.head,
        step_bytes=STEP_BYTES if until is None else AHEAD_STEP_BYTES,
    )
    async with aclosing(scanned) as batches:
        async for columns in batches:
            summary = await asyncio.to_thread(summarize, columns, summary)
            if until is not None and until(summary):
                return summary
    if key is not None:
        _remembered.put(key, summary)
    return summary


def _key_of(split: Split, options: SourceOptions) -> _Key | None:
    """Return by what the summary of a split is remembered, or None if its content may change."""
    journal, begin, end = split[:3]
    # What's skipped as lost may turn up again.
    if not (options.fail_on_data_loss and journal.create_revision):
        return None
    if not _is_persisted(JournalRange(journal, begin, end)):
        return None
    how = (journal.content_type, options.format, options.uuid, options.message_type)
    # What one learns who may read the journal, another who may not must not be told.
    return (options.connection, journal.name, journal.create_revision, begin, end, *how)


def _is_persisted(planned: JournalRange) -> bool:
    """Return whether fragments which are persisted hold all of a range."""
    persisted = [each for each in planned.journal.fragments or () if each.mod_time]
    covered = planned.begin
    for fragment in clip_fragments(persisted):
        if fragment.begin > covered or covered >= planned.end:
            break
        covered = max(covered, fragment.end)
    return covered >= planned.end


class _Summaries:
    """Summaries which were used last. Any thread may use it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._found: OrderedDict[_Key, RangeSummary] = OrderedDict()
        self._producers = 0

    def get(self, key: _Key) -> RangeSummary | None:
        with self._lock:
            if (found := self._found.get(key)) is not None:
                self._found.move_to_end(key)
            return found

    def put(self, key: _Key, summary: RangeSummary) -> None:
        with self._lock:
            if (former := self._found.pop(key, None)) is not None:
                self._producers -= _weight(former)
            self._found[key] = summary
            self._producers += _weight(summary)
            while self._producers > self._limit:
                _, oldest = self._found.popitem(last=False)
                self._producers -= _weight(oldest)

    def clear(self) -> None:
        with self._lock:
            self._found.clear()
            self._producers = 0


def _weight(summary: RangeSummary) -> int:
    return 1 + len(summary.transfers)


_remembered: Final = _Summaries(MAX_PRODUCERS)
