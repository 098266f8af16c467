"""Plans the batches of a streaming query: what each reads, and where it ends.

A planner lives as long as a run of the query, in one process. What it knows besides the positions
which Spark keeps is a cache, or a help to tell a loss: write heads which it saw, what was read
ahead, where an AvailableNow run ends, and the listing that the next tasks are planned by.

It asks brokers for little: for a listing of each batch, see `StreamListing`; and if messages are
sequenced, it reads what's new. Where a limit ended the batch before the write heads, that goes on
while the tasks of the batch run.
"""

from __future__ import annotations

import logging
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import gazette_aio.protocol as pb
from gazette_aio.aio.task import OwnedTask
from gazette_aio.message.ranges.committed import RangeState
from gazette_aio.spark.connecting import spark_client
from gazette_aio.spark.planning.journal_ranges import JournalRange, check_names
from gazette_aio.spark.planning.tasks import (
    pack,
    plan_committed_tasks,
    plan_tasks,
    size_partitions,
)
from gazette_aio.spark.reading.bounded import is_old, map_bounded
from gazette_aio.spark.reading.scanning import scan_uuids
from gazette_aio.spark.rows.formats import isolation_of
from gazette_aio.spark.streaming.line_ends import is_complete, last_end
from gazette_aio.spark.streaming.listing import StreamListing
from gazette_aio.spark.streaming.offsets import Offsets, batch_ranges, settle
from gazette_aio.spark.streaming.progress import (
    Target,
    available_now,
    check_batch,
    plan_batch,
    raise_losses,
)
from gazette_aio.spark.streaming.tail import Move, Tail
from gazette_aio.spark.types import classify

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence

    from pyarrow import Schema

    from gazette_aio.message.sequencing.columns import UuidColumns
    from gazette_aio.spark.options import SourceOptions
    from gazette_aio.spark.planning.journal_ranges import JournalInfo
    from gazette_aio.spark.planning.tasks import Partition
    from gazette_aio.spark.streaming.offsets import BatchRange
    from gazette_aio.spark.streaming.progress import Loss

_logger = logging.getLogger(__name__)


class _Planned(NamedTuple):
    """The listing of a batch whose tasks weren't planned yet."""

    start: Mapping[str, Any]
    end: Mapping[str, Any]
    journals: dict[str, JournalInfo]


class StreamPlanner:
    """Plans batches of a query.

    Its methods are called one at a time. Positions are JSON of `Offsets`, as Spark passes them.

    Args:
        options: What's read.
        schema: Exact Arrow schema of the rows.
        cores: Partitions to make at least, of what's not too small for so many.
    """

    def __init__(self, options: SourceOptions, schema: Schema, *, cores: int = 1) -> None:
        self._options = options
        columns = classify(
            schema,
            partition_columns=options.partition_columns,
            corrupt_column=options.corrupt_column,
        )
        self._labels = {column.label for column in columns.labels}
        self._cores = cores
        self._sequences = options.isolation != "read-uncommitted" and (
            options.isolation is not None or options.format != "raw"
        )
        self._listing = StreamListing(options, schema)
        self._tail = Tail(self._scan, self._is_complete)
        self._initial: Offsets | None = None
        self._journals: dict[str, JournalInfo] | None = None
        self._targets: dict[str, Target] | None = None
        self._seen: dict[str, int] = {}
        self._lost: set[str] = set()  # Journals which are gone, and of which that was told.
        self._planned: _Planned | None = None
        self._ahead = OwnedTask()

    async def aclose(self) -> None:
        """End what's read ahead. Idempotent: it may be used again.

        Cancellation: safe — call again.
        """
        await self._ahead.aclose()

    async def initial(self) -> Offsets:
        """Return where the query begins: always the same.

        Cancellation: safe.

        Raises:
            ConfigurationError: A journal which is named isn't there, rows can't be made of one, or
                an offset is out of bounds.
            GazetteError: Brokers can't tell.
        """
        if self._initial is None:
            journals = await self._listing.initial()
            starting = self._options.starting
            check_names(starting, journals.keys(), "startingOffsets")
            self._initial = Offsets.initial(journals.values(), starting, committed=self._sequences)
            self._note(journals)
        return self._initial

    async def fix_targets(self) -> None:
        """Have the run end at the present write heads.

        Cancellation: safe.

        Raises:
            GazetteError: Brokers can't tell.
        """
        journals = await self._listing.look(fragments=False)
        self._targets = available_now(journals.values())
        self._note(journals)

    async def end(
        self,
        given: Mapping[str, Any],
        *,
        max_bytes: int | None = None,
        max_rows: int | None = None,
    ) -> Mapping[str, Any]:
        """Return where a batch ends: the very object which is given, if nothing is new.

        Args:
            given: Where it begins.
            max_bytes: Limit of its bytes. It's exceeded by what journals need to go on.
            max_rows: Limit of its messages, of journals whose messages are sequenced.

        Cancellation: safe.

        Raises:
            DataLossError: What was to be read is lost.
            ConfigurationError: It can't go on from there with these options.
            GazetteError: Brokers can't tell, or journals can't be read.
        """
        await self.aclose()
        start = await self._parse_start(given)
        journals = await self._listing.ahead_of(start)
        await self._listing.add_fragments(
            start, journals, self._targets, cuts=max_bytes is not None
        )
        known = {name: head for name, head in start.heads.items() if name not in self._lost}
        end, losses = plan_batch(
            start,
            journals.values(),
            max_bytes=max_bytes,
            targets=self._targets,
            seen=known | self._seen,
        )
        self._tell(losses)
        self._note(journals)
        for name in [loss.journal for loss in losses if loss.is_whole]:
            self._lost.add(name)
            self._seen.pop(name, None)
            if self._targets is not None:
                self._targets.pop(name, None)
        self._tail.keep(journals)
        ranges = batch_ranges(start, end)
        committed = self._committed(ranges, journals)
        names = {one.journal for one in committed}
        plain = [one for one in ranges if one.journal not in names]
        end = await self._end_at_lines(plain, end, journals)
        if self._sequences:
            states = await self._sequence(committed, journals, max_rows)
            end = end.end_at(states, int(self._options.producer_horizon * 1e9))
        end = replace(
            end, heads={name: journals[name].head for name in end.journals.keys() & journals.keys()}
        )
        found = settle(start, end, given)
        self._planned = _Planned(given, found, journals)
        return found

    async def partitions(
        self, given_start: Mapping[str, Any], given_end: Mapping[str, Any]
    ) -> list[Partition]:
        """Return what the tasks of a batch read.

        Args:
            given_start: Where it begins, as Spark has it.
            given_end: Where it ends.

        Cancellation: safe.

        Raises:
            DataLossError: What was to be read is lost.
            ConfigurationError: It can't go on from there with these options.
            GazetteError: Brokers can't tell.
        """
        await self.aclose()
        start = await self._parse_start(given_start)
        end = await self._parse_end(given_end, start)
        ranges = batch_ranges(start, end)
        if not ranges:
            return []
        planned, self._planned = self._planned, None
        if planned is not None and (planned.start, planned.end) == (given_start, given_end):
            journals = planned.journals
        else:
            names = {one.journal for one in ranges}
            # Race: a replica which is behind may not know of what the last line goes on with.
            journals = {
                name: replace(journal, head=max(journal.head, end.heads.get(name, 0)))
                for name, journal in (await self._listing.look(names, fragments=True)).items()
            }
        found = self._check(ranges, journals)
        self._listing.note_read(ranges)
        if following := self._following(found):
            self._ahead.start(self._read_ahead(following), "spark-read-ahead")
        return self._pack(found, ranges)

    def latest(self) -> dict[str, Any] | None:
        """Return the write heads as of the last listing, as positions; or None before the first."""
        if self._journals is None:
            return None
        listed = self._journals.values()
        return Offsets(
            {one.name: one.head for one in listed},
            {one.name: one.create_revision for one in listed if one.create_revision},
        ).to_json()

    def __repr__(self) -> str:
        return f"<StreamPlanner of {len(self._journals or ())} journals, {self._tail!r}>"

    async def _parse_start(self, given: Mapping[str, Any]) -> Offsets:
        return Offsets.parse(given).sequence(committed=self._sequences)

    async def _parse_end(self, given: Mapping[str, Any], start: Offsets) -> Offsets:
        del start
        return Offsets.parse(given).sequence(committed=self._sequences)

    def _note(self, journals: Mapping[str, JournalInfo]) -> None:
        self._journals = dict(journals)
        self._seen |= {name: journal.head for name, journal in journals.items()}
        self._lost -= journals.keys()

    def _tell(self, losses: Sequence[Loss]) -> None:
        if self._options.fail_on_data_loss:
            raise_losses(losses)
        for loss in losses:
            _logger.warning(
                "journal %s %s: [%d, %d) isn't read",
                *loss,
                extra={"journal": loss.journal, "begin": loss.begin, "end": loss.end},
            )

    def _check(
        self, ranges: Sequence[BatchRange], journals: Mapping[str, JournalInfo]
    ) -> list[JournalRange]:
        """Return what can be read of a batch."""
        known = dict(journals)
        for one in ranges:
            journal = known.get(one.journal)
            if journal is None or one.is_new or one.begin >= journal.earliest:
                continue
            first = min(journal.fragments or (), default=None)
            if first is not None and not is_old(pb.Fragment(mod_time=first.mod_time)):
                # Race: what was before it may be about to be listed. Who reads it waits for that.
                known[one.journal] = replace(journal, fragments=None)
        found, losses = check_batch(ranges, known)
        self._tell(losses)
        return found

    def _committed(
        self, ranges: Iterable[BatchRange], journals: Mapping[str, JournalInfo]
    ) -> list[BatchRange]:
        return [one for one in ranges if self._is_committed(journals[one.journal])]

    def _is_committed(self, journal: JournalInfo) -> bool:
        return isolation_of(self._options, journal.content_type) == "read-committed"

    async def _sequence(
        self,
        ranges: Sequence[BatchRange],
        journals: Mapping[str, JournalInfo],
        max_rows: int | None = None,
    ) -> dict[str, RangeState]:
        """Return the states where a batch ends."""
        found = self._check(ranges, journals)
        states = {one.journal: one.state or RangeState(one.begin) for one in ranges}
        moves = [Move(planned, states[planned.journal.name]) for planned in found]
        moved = await self._tail.advance(moves, max_rows)
        # What is left of the others is behind their first content.
        gone = {
            one.journal: replace(states[one.journal], offset=one.end)
            for one in ranges
            if one.journal not in moved
        }
        return gone | moved

    def _following(self, found: Iterable[JournalRange]) -> list[JournalRange]:
        """Return what's likely to be sequenced next, if the limit of batches stays the same."""
        following: list[JournalRange] = []
        for journal, begin, end in found:
            head = journal.head
            if self._targets is not None:
                head = min(head, self._targets.get(journal.name, Target(0)).head)
            # Others are cut where fragments end.
            if end < head and journal.is_divisible and self._is_committed(journal):
                following.append(JournalRange(journal, end, min(head, 2 * end - begin)))
        return following

    async def _read_ahead(self, following: Sequence[JournalRange]) -> None:
        try:
            await self._tail.read_ahead(following)
        except pb.GazetteError as error:
            # The next batch meets it again, if it matters.
            _logger.debug("reading ahead: %s", error)

    async def _scan(
        self, journal: JournalInfo, begin: int, end: int, *, is_aligned: bool
    ) -> AsyncGenerator[UuidColumns]:
        client = await spark_client(self._options.connection)
        options = self._options
        if journal.fragments is None and options.io == "auto":
            # It was appended since the last batch, so it's likely to be with a broker still.
            options = replace(options, io="broker")
        scan = scan_uuids(
            client,
            journal.name,
            journal.content_type,
            begin,
            end,
            options,
            is_aligned=is_aligned,
            head=journal.head,
        )
        async with aclosing(scan) as chunks:
            async for columns in chunks:
                yield columns

    async def _end_at_lines(
        self, ranges: Iterable[BatchRange], end: Offsets, journals: Mapping[str, JournalInfo]
    ) -> Offsets:
        """Return the end of a batch without lines of ranges which aren't complete at the heads."""
        client = await spark_client(self._options.connection)

        async def end_of(planned: JournalRange) -> tuple[str, int]:
            return planned.journal.name, await last_end(client, planned, self._options)

        listed = [JournalRange(journals[one.journal], one.begin, one.end) for one in ranges]
        ends = await map_bounded(end_of, [near for one in listed for near in self._near_head(one)])
        return replace(end, journals=end.journals | dict(ends)) if ends else end

    def _near_head(self, planned: JournalRange) -> list[JournalRange]:
        """Return a range whose last record may go on behind the head, or the target of the run."""
        journal, _, end = planned
        if journal.is_divisible:
            return [planned]  # However far behind: who knows how long a line is.
        target = (self._targets or {}).get(journal.name, Target(journal.head))
        is_near = end in {journal.head, target.head}
        return [planned._replace(journal=replace(journal, head=end))] if is_near else []

    async def _is_complete(self, journal: JournalInfo) -> bool:
        client = await spark_client(self._options.connection)
        return await is_complete(client, journal, self._options)

    def _pack(self, found: Sequence[JournalRange], ranges: Sequence[BatchRange]) -> list[Partition]:
        committed = [one for one in found if self._is_committed(one.journal)]
        plain = [one for one in found if not self._is_committed(one.journal)]
        least, limit = size_partitions(
            found,
            cores=self._cores,
            max_split_bytes=self._options.max_split_bytes,
            min_partitions=self._options.min_partitions,
        )
        states = {one.journal: one.state for one in ranges if one.state is not None}
        tasks = plan_tasks(plain, max_split_bytes=limit, labels=self._labels)
        tasks += plan_committed_tasks(committed, states, labels=self._labels)
        return pack(tasks, max_split_bytes=self._options.max_split_bytes, min_partitions=least)
