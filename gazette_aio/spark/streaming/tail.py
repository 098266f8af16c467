"""States of producers at the ends of batches, computed by reading the UUIDs of each batch.

The tasks of a batch deliver the messages committed in it, given the states of producers at its
begin. The states at its end are the begin of the next batch. They are computed at planning, by the
process which plans all batches of a query, and which reads the UUIDs of all messages once.

Theory of operation. A limited batch ends inside the scanned content. The remaining rows are kept
for the next batch. As the next batch is likely to be as large, its rows are read while the tasks of
this batch run, up to a limit. The rows are a cache: states are part of the positions which Spark
keeps, and a new process continues from them.

Invariant: a batch ends where a record ends, so that its range and its state cover the same
messages. If there is only bad or lost content, the batch ends at its wanted end: readers can cut
lines there, and the wanted ends of other framings are ends of fragments.
"""

from __future__ import annotations

from collections import deque
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np

from gazette_aio.aio.threads import in_thread
from gazette_aio.message.columns.uuids import UuidColumns
from gazette_aio.message.ranges.committed import RangeState, advance
from gazette_aio.message.uuid import ACK_TXN
from gazette_aio.spark.planning.journal_ranges import split_range
from gazette_aio.spark.reading.bounded import map_bounded
from gazette_aio.spark.streaming.progress import split_limit

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable

    from gazette_aio.spark.planning.journal_ranges import JournalInfo, JournalRange

SCANS_AT_ONCE: Final = 8
"""Greatest number of journals which are read concurrently, each with some chunks of content."""

AHEAD_BYTES: Final = 8 << 20
"""Bytes from the begin of a limited batch up to which a journal is read, if it has them."""

AHEAD_ROWS: Final = 1 << 21
"""Greatest number of rows kept for the next batch, of all journals: 72 MB."""

_THREAD_ROWS: Final = 1 << 14
"""Number of rows from which a thread sequences them, because that may take more than 3 ms."""

_UNLIMITED: Final = 1 << 63
_ACK: Final = np.uint16(ACK_TXN)


class Scan(Protocol):
    """Reads UUIDs of the messages whose first bytes are in `[begin, end)`, in order."""

    def __call__(
        self, journal: JournalInfo, begin: int, end: int, *, is_aligned: bool
    ) -> AsyncGenerator[UuidColumns]:
        """Yield the columns in chunks. Without `is_aligned`, the first record is searched for."""
        ...


class Move(NamedTuple):
    """A journal to sequence."""

    range: JournalRange
    """Begin and wanted end."""
    state: RangeState
    """State at the begin."""


class _Ahead(NamedTuple):
    """Messages which were read ahead: all messages from `begin` on, without gaps."""

    begin: int
    revision: int
    chunks: deque[UuidColumns]

    @property
    def end(self) -> int:
        """Offset up to which content is scanned."""
        return int(self.chunks[-1].end[-1]) if self.chunks else self.begin

    @property
    def rows(self) -> int:
        """Number of messages."""
        return sum(chunk.rows for chunk in self.chunks)

    @property
    def messages(self) -> int:
        """Number of messages without acknowledgements."""
        return sum(int(np.count_nonzero(chunk.flags != _ACK)) for chunk in self.chunks)


class QueryTail:
    """Sequences journals of a query from batch to batch.

    Args:
        scan: Reads UUIDs of a journal.
        is_complete: Returns whether a record ends at the write head of a journal. Called if no
            message ends there.
    """

    def __init__(self, scan: Scan, is_complete: Callable[[JournalInfo], Awaitable[bool]]) -> None:
        self._scan = scan
        self._is_complete = is_complete
        self._ahead: dict[str, _Ahead] = {}
        self.room: int = AHEAD_ROWS
        """Number of further rows which may be kept."""

    async def advance(
        self, moves: Iterable[Move], max_rows: int | None = None
    ) -> dict[str, RangeState]:
        """Return the state of each journal at the end of its batch, which is the state's offset.

        Args:
            moves: The journals.
            max_rows: Limit of the messages of the batch, including acknowledgements. The limit is
                split over journals in proportion to their bytes; each advances by at least one
                message.

        Raises:
            DataLossError: Content is lost.
            GazetteError: Content can't be read.

        Cancellation: safe.
        """
        listed = list(moves)
        lags = [move.range.end - move.range.begin for move in listed]
        shares = split_limit(lags, max_rows)

        async def move_on(number: int) -> RangeState:
            return await self._advance(
                listed[number], _UNLIMITED if max_rows is None else shares[number]
            )

        states = await map_bounded(move_on, range(len(listed)), limit=SCANS_AT_ONCE)
        return {move.range.journal.name: state for move, state in zip(listed, states, strict=True)}

    async def read_ahead(self, ranges: Iterable[JournalRange]) -> None:
        """Read the content which the next batch is likely to sequence, up to the limit of rows.

        Args:
            ranges: Ranges from the end of the last batch to the likely end of the next.

        Raises:
            DataLossError: Content is lost.
            GazetteError: Content can't be read.

        Cancellation: safe — rows which were read are kept.
        """
        await map_bounded(self._read_ahead, ranges, limit=SCANS_AT_ONCE)

    async def count(self, ranges: Iterable[JournalRange], least: int) -> int:
        """Return the number of messages of ranges, without acknowledgements.

        The messages are read ahead, and kept. If not all can be kept, the result is at least
        `least`.

        Args:
            ranges: Ranges from the end of the last batch to the write heads.
            least: Number of messages which suffices.

        Raises:
            DataLossError: Content is lost.
            GazetteError: Content can't be read.

        Cancellation: safe — rows which were read are kept.
        """
        listed = [planned for planned in ranges if planned.begin < planned.end]
        await self.read_ahead(listed)
        found = sum(self._ahead[planned.journal.name].messages for planned in listed)
        return max(found, least if self.room <= 0 else 0)

    def unread(self, journal: JournalInfo, begin: int) -> tuple[int | None, int | None]:
        """Return what is known of a journal's unread messages, without reading.

        Args:
            journal: The journal.
            begin: Offset up to which the journal is read.

        Returns:
            Their number without acknowledgements, and the clock of the first of them; each None if
            it's unknown.
        """
        ahead = self._ahead.get(journal.name)
        if ahead is None or ahead[:2] != (begin, journal.create_revision):
            return None, None
        clocks = (chunk.clock[chunk.clock != 0] for chunk in ahead.chunks)
        first = next((int(found[0]) for found in clocks if len(found)), None)
        return (ahead.messages if ahead.end >= journal.head else None), first

    def keep(self, names: Iterable[str]) -> None:
        """Drop the rows of all other journals."""
        for name in self._ahead.keys() - set(names):
            self.room += self._ahead.pop(name).rows

    async def _read_ahead(self, planned: JournalRange) -> None:
        journal, begin, end = planned
        ahead = self._take_ahead(journal, begin)
        self._ahead[journal.name] = ahead
        self.room -= ahead.rows
        if ahead.end >= end or self.room <= 0:
            return
        async with aclosing(self._chunks(planned, ahead.end, end)) as chunks:
            async for columns in chunks:
                ahead.chunks.append(columns)
                self.room -= columns.rows
                if self.room <= 0:
                    break

    def _take_ahead(self, journal: JournalInfo, begin: int) -> _Ahead:
        ahead = self._ahead.pop(journal.name, None)
        if ahead is not None:
            self.room += ahead.rows
            if ahead[:2] == (begin, journal.create_revision):
                return ahead
        return _Ahead(begin, journal.create_revision, deque())

    def _chunks(self, planned: JournalRange, begin: int, end: int) -> AsyncGenerator[UuidColumns]:
        """Return a scan of a part of a range; its end may be after the range."""
        (split,) = split_range(planned._replace(begin=begin, end=end), _UNLIMITED)
        return self._scan(planned.journal, begin, end, is_aligned=split.is_aligned)

    async def _advance(self, move: Move, max_rows: int) -> RangeState:
        (journal, begin, wanted), state = move
        passed = _Passed(state, wanted, max_rows)
        ahead = self._take_ahead(journal, begin)
        scanned, chunks = ahead.end, ahead.chunks
        rest = UuidColumns.of([])
        while chunks and not rest.rows and passed.rows_left:
            rest = await passed.take(chunks.popleft())
        if not (chunks or rest.rows) and scanned < wanted and passed.rows_left:
            # A limited journal likely continues soon, and opening files is costly.
            limit = max(wanted, begin + AHEAD_BYTES) if journal.is_divisible else wanted
            scan = self._chunks(move.range, scanned, min(limit, journal.head))
            async with aclosing(scan):
                async for columns in scan:
                    rest = await passed.take(columns)
                    if rest.rows or not passed.rows_left:
                        break
        if rest.rows:
            chunks.appendleft(rest)
        state = passed.state
        if passed.rows:
            offset = state.offset
        elif chunks or await self._is_complete(_ended(journal, wanted)):
            offset = wanted
        else:
            offset = begin  # The last record extends beyond the head.
        following = _Ahead(offset, journal.create_revision, chunks)
        if 0 < following.rows <= self.room:
            self._ahead[journal.name] = following
            self.room -= following.rows
        return replace(state, offset=offset)

    def __repr__(self) -> str:
        count = sum(bool(ahead.chunks) for ahead in self._ahead.values())
        rows = sum(ahead.rows for ahead in self._ahead.values())
        return f"<QueryTail, {rows} messages of {count} journals ahead>"


def _ended(journal: JournalInfo, wanted: int) -> JournalInfo:
    """Return a journal whose head is the offset at which a record must end."""
    return journal if journal.is_divisible else replace(journal, head=wanted)


class _Passed:
    """Messages of a batch which are sequenced so far."""

    def __init__(self, state: RangeState, wanted: int, max_rows: int) -> None:
        self.state = state
        """State after the messages."""
        self.rows = 0
        """Number of messages."""
        self.rows_left = max_rows
        """Number of further messages within the limit."""
        self._wanted = wanted

    async def take(self, columns: UuidColumns) -> UuidColumns:
        """Sequence the rows which belong to the batch, and return the remaining rows."""
        rows = min(int(np.searchsorted(columns.begin, self._wanted)), self.rows_left)
        taken = columns.slice(0, rows)
        if rows < _THREAD_ROWS:
            self.state = advance(self.state, taken)
        else:
            self.state = await in_thread(advance, self.state, taken)
        self.rows += rows
        self.rows_left -= rows
        return columns.slice(rows)
