"""Planner of the batches of a streaming query: their ends and their tasks.

A planner lives as long as a run of the query, in one process. Its state, besides the positions
which Spark keeps, is a cache, or helps to detect losses: write heads, content which was read ahead,
the targets of an AvailableNow run, and the listing for the next tasks.

A batch takes one listing, see `StreamListing`; if messages are sequenced, their UUIDs are read too.
Where a limit ended the batch before the write heads, reading continues while the tasks run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import gazette_aio.protocol as pb
from gazette_aio.aio.task import OwnedTask
from gazette_aio.message.ranges.committed import RangeState
from gazette_aio.message.uuid import clock_as_ns
from gazette_aio.spark.connecting import spark_client
from gazette_aio.spark.planning.journal_ranges import JournalRange, check_names
from gazette_aio.spark.planning.tasks import pack, plan_committed_tasks, plan_tasks, size_partitions
from gazette_aio.spark.reading.bounded import is_old, map_bounded
from gazette_aio.spark.reading.scanning import scan_uuids
from gazette_aio.spark.rows.formats import isolation_of
from gazette_aio.spark.streaming.line_ends import is_complete, last_end
from gazette_aio.spark.streaming.listing import StreamListing
from gazette_aio.spark.streaming.minimum import BatchMinimum, unread, unread_bytes
from gazette_aio.spark.streaming.offsets import Offsets, batch_ranges, end_text
from gazette_aio.spark.streaming.progress import (
    RunTarget,
    available_now,
    check_batch,
    plan_batch,
    raise_losses,
)
from gazette_aio.spark.streaming.reports import WriteHeads
from gazette_aio.spark.streaming.tail import Move, QueryTail
from gazette_aio.spark.types import classify

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

    from pyarrow import Schema

    from gazette_aio.message.columns.uuids import UuidColumns
    from gazette_aio.spark.options import SourceOptions
    from gazette_aio.spark.planning.journal_ranges import JournalInfo
    from gazette_aio.spark.reading.task import Partition
    from gazette_aio.spark.streaming.offsets import BatchRange
    from gazette_aio.spark.streaming.progress import Loss

_logger = logging.getLogger(__name__)


class _Planned(NamedTuple):
    """Listing of a batch whose tasks aren't planned yet."""

    start: Mapping[str, Any]
    end: Mapping[str, Any]
    journals: dict[str, JournalInfo]


class StreamPlanner:
    """Plans batches of a query.

    Methods must be called one at a time. Positions are JSON of `Offsets`, as Spark passes them.

    Args:
        options: Options of the source.
        schema: Exact Arrow schema of the rows.
        clock: Returns the time in seconds since 1970.
    """

    def __init__(
        self,
        options: SourceOptions,
        schema: Schema,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._options = options
        self._clock = clock
        self._minimum = BatchMinimum.of(options)
        self._last_ms: int | None = None  # Time of the last batch of this run.
        columns = classify(
            schema,
            partition_columns=options.partition_columns,
            corrupt_column=options.corrupt_column,
        )
        self._labels = {column.label for column in columns.labels}
        self._sequences = options.isolation != "read-uncommitted" and (
            options.isolation is not None or options.format != "raw"
        )
        self._listing = StreamListing(options, schema)
        self._tail = QueryTail(self._scan, self._is_complete)
        self._initial: Offsets | None = None
        self._journals: dict[str, JournalInfo] | None = None
        self._targets: dict[str, RunTarget] | None = None
        self._seen: dict[str, int] = {}
        self._lost: set[str] = set()  # Deleted journals whose loss was reported.
        self._planned: _Planned | None = None
        self._ends: Mapping[str, int] = {}  # Offsets up to which journals are read.
        self._ahead = OwnedTask()

    async def aclose(self) -> None:
        """End reading ahead. Idempotent; the planner can be used again.

        Cancellation: safe — call again.
        """
        await self._ahead.aclose()

    async def initial(self) -> Offsets:
        """Return the begin of the query: always the same.

        Raises:
            ConfigurationError: A named journal doesn't exist, a journal doesn't fit the schema, or
                an offset is out of bounds.
            GazetteError: An RPC failed.

        Cancellation: safe.
        """
        if self._initial is None:
            journals = await self._listing.initial()
            starting = self._options.starting
            check_names(starting, journals.keys(), "startingOffsets")
            if isinstance(times := self._options.starting_timestamp_ms, Mapping):
                check_names(times, journals.keys(), "startingTimestamp")
            self._initial = Offsets.initial(journals.values(), starting, committed=self._sequences)
            self._note(journals)
        return self._initial

    async def fix_targets(self) -> None:
        """End the run at the current write heads.

        Raises:
            GazetteError: An RPC failed.

        Cancellation: safe.
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
        waits: bool = True,
    ) -> Mapping[str, Any]:
        """Return the end of a batch: the object `given` if there's no new content, or too little.

        Losses of deleted journals are found when a batch begins, not while it waits.

        Args:
            given: Begin of the batch.
            max_bytes: Soft limit of the bytes: each journal advances by at least a message or
                fragment.
            max_rows: Limit of the messages of journals whose messages are sequenced.
            waits: Whether the batch waits for its least size.

        Raises:
            DataLossError: Content is lost.
            ConfigurationError: The query can't continue from `given` with these options.
            GazetteError: An RPC failed, or journals can't be read.

        Cancellation: safe.
        """
        await self.aclose()
        start = await self._parse_start(given)
        journals = await self._listing.ahead_of(start)
        now_ms = int(self._clock() * 1000)
        targets = self._targets
        if waits and await self._must_wait(start, journals, now_ms):
            if not start.is_initial:
                self._note(journals)
                self._ends = start.journals
                return given
            # The begin of the query is kept at once, by a batch without content.
            targets = {name: RunTarget(offset) for name, offset in start.journals.items()}
        await self._listing.add_fragments(start, journals, targets, cuts=max_bytes is not None)
        known = {name: head for name, head in start.heads.items() if name not in self._lost}
        end, losses = plan_batch(
            start,
            journals.values(),
            max_bytes=max_bytes,
            targets=targets,
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
            end,
            heads={name: journals[name].head for name in end.journals.keys() & journals.keys()},
            time_ms=None if self._minimum is None else now_ms,
        )
        found = end_text(start, end, given)
        self._ends = end.journals
        if found is not given:
            self._last_ms = now_ms
        self._planned = _Planned(given, found, journals)
        return found

    async def partitions(
        self, given_start: Mapping[str, Any], given_end: Mapping[str, Any]
    ) -> list[Partition]:
        """Return the partitions of a batch.

        Args:
            given_start: Begin of the batch which Spark passed.
            given_end: End of the batch.

        Raises:
            DataLossError: Content is lost.
            ConfigurationError: The query can't continue from `given_start` with these options.
            GazetteError: An RPC failed.

        Cancellation: safe.
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
            # Race: a lagging replica may not know the rest of the last line.
            journals = {
                name: replace(journal, head=max(journal.head, end.heads.get(name, 0)))
                for name, journal in (await self._listing.look(names, fragments=True)).items()
            }
        found = self._check(ranges, journals)
        self._listing.note_read(ranges)
        if following := self._following(found):
            self._ahead.start(self._read_ahead(following), "spark-read-ahead")
        return self._pack(found, ranges)

    async def latest(self) -> dict[str, Any] | None:
        """Return the write heads of the last listing, see `reports`; or None before the first.

        Cancellation: safe.
        """
        # Race: this is a coroutine since the event loop may be reading ahead.
        if self._journals is None:
            return None
        listed = self._journals.values()
        unread = {one.name: self._tail.unread(one, self._ends.get(one.name, 0)) for one in listed}
        heads = WriteHeads(
            Offsets(
                {one.name: one.head for one in listed},
                {one.name: one.create_revision for one in listed if one.create_revision},
            ),
            source=f"gazette {self._options.selection}",
            time_ms=int(self._clock() * 1000),
            rows={name: rows for name, (rows, _) in unread.items() if rows is not None},
            oldest_ms={
                name: max(clock_as_ns(clock) // 1_000_000, 0)
                for name, (_, clock) in unread.items()
                if clock is not None
            },
        )
        return heads.to_json()

    def __repr__(self) -> str:
        return f"<StreamPlanner of {len(self._journals or ())} journals, {self._tail!r}>"

    async def _parse_start(self, given: Mapping[str, Any]) -> Offsets:
        return Offsets.parse(given).sequence(committed=self._sequences)

    async def _parse_end(self, given: Mapping[str, Any], start: Offsets) -> Offsets:
        del start
        return Offsets.parse(given).sequence(committed=self._sequences)

    async def _must_wait(
        self, start: Offsets, journals: dict[str, JournalInfo], now_ms: int
    ) -> bool:
        """Return whether there is new content, but too little of it to begin a batch."""
        minimum = self._minimum
        if minimum is None or self._targets is not None:
            return False
        last_ms = self._last_ms if start.time_ms is None else start.time_ms
        if minimum.is_overdue(now_ms, now_ms if start.is_initial else last_ms):
            return False
        available = unread_bytes(start, journals.values())
        if not available:
            return False
        if minimum.unit == "rows":
            await self._listing.add_fragments(start, journals, None, cuts=False)
            ranges = [
                JournalRange(journal, *unread(start, journal))
                for journal in journals.values()
                if self._is_committed(journal)
            ]
            available = await self._tail.count(ranges, minimum.least)
        return minimum.must_wait(available)

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
        """Return the readable ranges of a batch."""
        known = dict(journals)
        for one in ranges:
            journal = known.get(one.journal)
            if journal is None or one.is_new or one.begin >= journal.earliest:
                continue
            first = min(journal.fragments or (), default=None)
            if first is not None and not is_old(pb.Fragment(mod_time=first.mod_time)):
                # Race: earlier fragments may be listed soon. The reader waits for them.
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
        """Return the states at the end of a batch."""
        found = self._check(ranges, journals)
        states = {one.journal: one.state or RangeState(one.begin) for one in ranges}
        moves = [Move(planned, states[planned.journal.name]) for planned in found]
        moved = await self._tail.advance(moves, max_rows)
        # The other ranges end before their first existing content.
        gone = {
            one.journal: replace(states[one.journal], offset=one.end)
            for one in ranges
            if one.journal not in moved
        }
        return gone | moved

    def _following(self, found: Iterable[JournalRange]) -> list[JournalRange]:
        """Return the ranges which are likely to be sequenced next, with the same limit."""
        following: list[JournalRange] = []
        for journal, begin, end in found:
            head = journal.head
            if self._targets is not None:
                head = min(head, self._targets.get(journal.name, RunTarget(0)).head)
            # Other journals are cut where fragments end.
            if end < head and journal.is_divisible and self._is_committed(journal):
                following.append(JournalRange(journal, end, min(head, 2 * end - begin)))
        return following

    async def _read_ahead(self, following: Sequence[JournalRange]) -> None:
        try:
            await self._tail.read_ahead(following)
        except pb.GazetteError as error:
            # The next batch raises the error again, if it persists.
            _logger.debug("reading ahead: %s", error)

    async def _scan(
        self, journal: JournalInfo, begin: int, end: int, *, is_aligned: bool
    ) -> AsyncGenerator[UuidColumns]:
        client = await spark_client(self._options.connection)
        options = self._options
        if journal.fragments is None and options.io == "auto":
            # The content was appended since the last batch, so a broker likely has it.
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
        """Return the end of a batch without incomplete lines at the heads."""
        client = await spark_client(self._options.connection)

        async def end_of(planned: JournalRange) -> tuple[str, int]:
            return planned.journal.name, await last_end(client, planned, self._options)

        listed = [JournalRange(journals[one.journal], one.begin, one.end) for one in ranges]
        ends = await map_bounded(end_of, [near for one in listed for near in self._near_head(one)])
        return replace(end, journals=end.journals | dict(ends)) if ends else end

    def _near_head(self, planned: JournalRange) -> list[JournalRange]:
        """Return the range if its last record may extend beyond the head or the run's target."""
        journal, _, end = planned
        if journal.is_divisible:
            return [planned]  # The length of a line is unknown.
        target = (self._targets or {}).get(journal.name, RunTarget(journal.head))
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
            max_split_bytes=self._options.max_split_bytes,
            min_partitions=self._options.min_partitions,
        )
        states = {one.journal: one.state for one in ranges if one.state is not None}
        tasks = plan_tasks(plain, max_split_bytes=limit, labels=self._labels)
        tasks += plan_committed_tasks(committed, states, labels=self._labels)
        return pack(tasks, max_split_bytes=self._options.max_split_bytes, min_partitions=least)
