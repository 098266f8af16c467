"""Plans of batches: from options and listings to partitions."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gazette_aio.aio.threads import in_thread
from gazette_aio.spark.planning.clock_probes import narrow_ranges
from gazette_aio.spark.planning.journal_ranges import (
    check_names,
    join_last,
    plan_ranges,
    skip_older,
    split_range,
)
from gazette_aio.spark.planning.listing import list_journals
from gazette_aio.spark.planning.summaries import plan_ranges_of_splits
from gazette_aio.spark.planning.tasks import (
    pack,
    plan_committed_tasks,
    plan_split_tasks,
    plan_tasks,
    size_partitions,
)
from gazette_aio.spark.rows.formats import isolation_of
from gazette_aio.spark.rows.records import RowDecoder, RowLayout

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyarrow import Schema

    from gazette_aio.client import JournalClient
    from gazette_aio.spark.options import SourceOptions
    from gazette_aio.spark.planning.journal_ranges import JournalInfo, JournalRange, Split
    from gazette_aio.spark.planning.tasks import PartitionSizes
    from gazette_aio.spark.reading.task import Partition

_logger = logging.getLogger(__name__)


async def plan_batch(
    client: JournalClient, options: SourceOptions, schema: Schema
) -> list[Partition]:
    """Return the partitions of a batch; without content there are none.

    Args:
        client: Client to use.
        options: Options of the source.
        schema: Exact Arrow schema of the rows.

    Raises:
        ConfigurationError: Journals don't exist, or options and schema don't fit them.
        DataLossError: Content is lost which the plan of committed messages needs.
        GazetteError: As `list_journals()`.

    Cancellation: safe.
    """
    journals = await _list(client, options)
    layout = RowLayout(options, schema)
    await in_thread(check_journals, layout, journals)
    ranges = plan_ranges(journals, options.starting, options.ending)
    acks_ends = {planned.journal.name: planned.end for planned in ranges}
    for at, planned in enumerate(ranges):
        if mod_time := _begin_mod_time(options, planned.journal.name):
            ranges[at] = skip_older(planned, mod_time)
    ranges = await narrow_ranges(client, ranges, options, layout.clocks_of)
    plain, committed = _by_isolation(options, ranges)
    sizes = size_partitions(
        [*plain, *committed],
        max_split_bytes=options.max_split_bytes,
        min_partitions=options.min_partitions,
    )
    labels = {column.label for column in layout.columns.labels}
    tasks = plan_tasks(plain, max_split_bytes=sizes.finer, labels=labels)
    if options.min_partitions is None:
        # What's cut is read twice. As it's unknown whether more tasks would run at once, committed
        # content is cut only if it's too large for a task.
        sizes = sizes._replace(limit=options.max_split_bytes)
    whole, cut = _cut(committed, sizes)
    tasks += plan_committed_tasks(whole, acks_ends=acks_ends, labels=labels)
    if cut:
        size = sum(split.size for splits in cut for split in splits[:-1])
        _logger.info("summarizing %d bytes of %d journals", size, len(cut))
    plans = await plan_ranges_of_splits(client, cut, options, acks_ends)
    for splits, plan in zip(cut, plans, strict=True):
        acks_end = acks_ends[splits[0].journal.name]
        tasks += plan_split_tasks(splits, plan, acks_end=acks_end, labels=labels)
    return pack(tasks, max_split_bytes=options.max_split_bytes, min_partitions=sizes.least)


def check_journals(layout: RowLayout, journals: Iterable[JournalInfo]) -> None:
    """Check that all journals can be read as rows of the schema.

    Raises:
        ConfigurationError: A journal can't.
    """
    for journal in journals:
        RowDecoder(layout, journal.name, journal.labels, journal.content_type)


async def _list(client: JournalClient, options: SourceOptions) -> list[JournalInfo]:
    begin_mod_time = 0
    if options.starting == "earliest" and options.ending == "latest":
        begin_mod_time = _least_mod_time(options)
    journals = await list_journals(client, options, fragments=True, begin_mod_time=begin_mod_time)
    names = {journal.name for journal in journals}
    check_names(options.starting, names, "startingOffsets")
    check_names(options.ending, names, "endingOffsets")
    if isinstance(options.starting_timestamp_ms, Mapping):
        check_names(options.starting_timestamp_ms, names, "startingTimestamp")
    return journals


def _begin_mod_time(options: SourceOptions, journal: str) -> int:
    """Return the time in seconds before which a journal's fragments have no rows; or 0."""
    return max(int((options.starting_ms(journal) or 0) / 1000 - options.max_clock_skew), 0)


def _least_mod_time(options: SourceOptions) -> int:
    """Return the time in seconds before which fragments of no journal have rows; or 0."""
    # A name in none of the options: journals which they don't name begin at their earliest offset.
    return _begin_mod_time(options, "")


def _by_isolation(
    options: SourceOptions, ranges: Iterable[JournalRange]
) -> tuple[list[JournalRange], list[JournalRange]]:
    """Return the ranges of all messages, and the ranges of committed messages."""
    plain: list[JournalRange] = []
    committed: list[JournalRange] = []
    for planned in ranges:
        if planned.begin < planned.end:
            isolation = isolation_of(options, planned.journal.content_type)
            (committed if isolation == "read-committed" else plain).append(planned)
    return plain, committed


def _cut(
    ranges: Sequence[JournalRange], sizes: PartitionSizes
) -> tuple[list[JournalRange], list[list[Split]]]:
    """Return the ranges of one task each, and the splits of each other range."""
    whole: list[JournalRange] = []
    cut: list[list[Split]] = []
    for planned in ranges:
        if len(split_range(planned, sizes.limit)) > 1:
            # All splits but the last are read twice.
            cut.append(join_last(split_range(planned, sizes.finer), sizes.limit))
        else:
            whole.append(planned)
    return whole, cut
