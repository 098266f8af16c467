"""Summaries of the splits of journals: the effect of each split on the states of producers.

Summaries are computed by reading the UUIDs of the splits. The process caches summaries of persisted
content, which doesn't change: Spark reuses workers which plan.

The last split of a range isn't summarized, except for as much of its begin as decides which pending
messages before it commit.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import aclosing
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

from gazette_aio.aio.threads import in_thread
from gazette_aio.message.ranges.committed import RangeState, RangeSummary, plan_splits, summarize
from gazette_aio.spark.planning.journal_ranges import JournalRange, clip_fragments
from gazette_aio.spark.reading.bounded import map_bounded
from gazette_aio.spark.reading.pieces import STEP_BYTES
from gazette_aio.spark.reading.scanning import scan_uuids

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from gazette_aio.client import JournalClient
    from gazette_aio.message.ranges.committed import RangePlan
    from gazette_aio.spark.options import SourceOptions
    from gazette_aio.spark.planning.journal_ranges import Split

SPLITS_AT_ONCE: Final = 4
"""Greatest number of splits which are read concurrently."""

MAX_PRODUCERS: Final = 1 << 16
"""Greatest number of producers in cached summaries, of some 400 bytes each."""

AHEAD_STEP_BYTES: Final = 1 << 20
"""Bytes of a last split which are read before checking whether pending messages are decided."""

_Key: TypeAlias = "Hashable"


async def plan_ranges_of_splits(
    client: JournalClient,
    ranges: Sequence[Sequence[Split]],
    options: SourceOptions,
    acks_ends: Mapping[str, int] | None = None,
) -> list[RangePlan]:
    """Return the plan of each range, which covers all splits but the last.

    Args:
        client: Client to use.
        ranges: The splits of each range, one or more, whose fragments were listed. No producers are
            known at the begin of a range.
        options: Options of the source.
        acks_ends: Offsets before which messages of the ranges may commit, by journal; by default
            the ends of the ranges.

    Raises:
        DataLossError: Content is lost, and `failOnDataLoss` is true.
        GazetteError: As `scan_uuids()`.

    Cancellation: aborts — reads end; complete summaries stay cached.
    """
    known = iter(
        await summarize_splits(client, [each for splits in ranges for each in splits[:-1]], options)
    )
    found = [(splits, list(islice(known, len(splits) - 1))) for splits in ranges]

    async def plan_of(item: tuple[Sequence[Split], list[RangeSummary]]) -> RangePlan:
        splits, summaries = item
        state = RangeState(splits[0].begin)
        plan = await in_thread(plan_splits, state, summaries)
        if plan.is_decided(RangeSummary()):
            return plan
        last = splits[-1]
        last = last._replace(end=max(last.end, (acks_ends or {}).get(last.journal.name, 0)))
        ahead = await _summary_of(client, last, options, until=plan.is_decided)
        return await in_thread(plan_splits, state, summaries, ahead)

    return await map_bounded(plan_of, found, limit=SPLITS_AT_ONCE)


async def summarize_splits(
    client: JournalClient, splits: Sequence[Split], options: SourceOptions
) -> list[RangeSummary]:
    """Return the summary of each split.

    Args:
        client: Client to use.
        splits: Splits of any journals whose fragments were listed.
        options: Options of the source.

    Raises:
        DataLossError: Content is lost, and `failOnDataLoss` is true.
        GazetteError: As `scan_uuids()`.

    Cancellation: aborts — reads end; complete summaries stay cached.
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
    """Return the summary of a split, or of its begin as soon as `until` is true."""
    key = _key_of(split, options)
    if key is not None and (known := SUMMARIES.get(key)) is not None:
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
            summary = await in_thread(summarize, columns, summary)
            if until is not None and until(summary):
                return summary
    if key is not None:
        SUMMARIES.put(key, summary)
    return summary


def _key_of(split: Split, options: SourceOptions) -> _Key | None:
    """Return the cache key of a split's summary, or None if the content may change."""
    journal, begin, end = split[:3]
    # Content skipped as lost may reappear.
    if not (options.fail_on_data_loss and journal.create_revision):
        return None
    if not _is_persisted(JournalRange(journal, begin, end)):
        return None
    how = (journal.content_type, options.format, options.uuid, options.message_type)
    # Secret: the connection is part of the key, so that other users don't learn the content.
    return (options.connection, journal.name, journal.create_revision, begin, end, *how)


def _is_persisted(planned: JournalRange) -> bool:
    """Return whether persisted fragments cover a range."""
    persisted = [each for each in planned.journal.fragments or () if each.mod_time]
    covered = planned.begin
    for fragment in clip_fragments(persisted):
        if fragment.begin > covered or covered >= planned.end:
            break
        covered = max(covered, fragment.end)
    return covered >= planned.end


class SummaryCache:
    """Cache of the most recently used summaries. Thread-safe.

    Args:
        limit: Greatest number of producers in all summaries.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._found: OrderedDict[_Key, RangeSummary] = OrderedDict()
        self.producers: int = 0
        """Number of producers in all summaries."""

    def get(self, key: _Key) -> RangeSummary | None:
        """Return the summary of a key, which becomes the latest, or None."""
        with self._lock:
            if (found := self._found.get(key)) is not None:
                self._found.move_to_end(key)
            return found

    def put(self, key: _Key, summary: RangeSummary) -> None:
        """Store a summary, and drop the oldest beyond the limit."""
        with self._lock:
            if (former := self._found.pop(key, None)) is not None:
                self.producers -= _weight(former)
            self._found[key] = summary
            self.producers += _weight(summary)
            while self.producers > self._limit:
                _, oldest = self._found.popitem(last=False)
                self.producers -= _weight(oldest)

    def clear(self) -> None:
        """Drop all summaries."""
        with self._lock:
            self._found.clear()
            self.producers = 0


def _weight(summary: RangeSummary) -> int:
    return 1 + len(summary.transfers)


SUMMARIES: Final = SummaryCache(MAX_PRODUCERS)
"""Summaries of this process."""
