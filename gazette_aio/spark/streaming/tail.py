"""States of producers at the ends of batches, which are found by reading what's ahead of them.

The tasks of a batch deliver what is committed within it, given the states of producers where it
begins. Those where it ends are the begin of the next batch, so they're computed when it's planned:
by the one process which plans all batches of a query, which reads the UUIDs of all messages once.

Theory of operation. A limited batch ends in the middle of what was read. The rows which follow are
held on to, and the next batch goes on with them. As it's likely to be as large as the last one, the
rows of it are read while the tasks of that one run, up to a limit. They're a cache: states
themselves come with the positions which Spark keeps, so a new process goes on from there.

Invariant: a batch ends where a record does, so that it and its state are of the same messages. If
nothing but bad or lost content comes, it ends where it's wanted to. Newline delimited JSON can be
cut there by readers, and other framings are wanted to end where fragments do.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np

from gazette_aio.message.ranges.committed import RangeState, advance
from gazette_aio.message.sequencing.columns import UuidColumns
from gazette_aio.spark.planning.journal_ranges import split_range
from gazette_aio.spark.reading.bounded import map_bounded
from gazette_aio.spark.streaming.progress import split_limit

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable

    from gazette_aio.spark.planning.journal_ranges import JournalInfo, JournalRange

SCANS_AT_ONCE: Final = 8
"""Journals which are read at the same time. Each holds some chunks of content."""

AHEAD_BYTES: Final = 8 << 20
"""Bytes behind the begin of a limited batch up to which a journal is read, if it has as many."""

AHEAD_ROWS: Final = 1 << 21
"""Rows which are held ahead of the next batch, of all journals: 72 MB. Others are read again."""

_THREAD_ROWS: Final = 1 << 14
"""Rows from which on they're sequenced in a thread: they may take more than 3 ms."""

_UNLIMITED: Final = 1 << 63


class Scan(Protocol):
    """Reads UUIDs of the messages whose first bytes are in `[begin, end)`, in order."""

    def __call__(
        self, journal: JournalInfo, begin: int, end: int, *, is_aligned: bool
    ) -> AsyncGenerator[UuidColumns]:
        """Return the columns, in chunks. A record is looked for at `begin` unless it's aligned."""
        ...


class Move(NamedTuple):
    """A journal to sequence."""

    range: JournalRange
    """From where it goes on, and where it's wanted to end."""
    state: RangeState
    """State where it goes on."""


class _Ahead(NamedTuple):
    """Messages which were read ahead: all of those from `begin` through the last of them."""

    begin: int
    revision: int
    chunks: deque[UuidColumns]

    @property
    def end(self) -> int:
        """Offset up to which content was scanned."""
        return int(self.chunks[-1].end[-1]) if self.chunks else self.begin

    @property
    def rows(self) -> int:
        """Number of messages."""
        return sum(chunk.rows for chunk in self.chunks)


class Tail:
    """Sequences journals of a query from batch to batch.

    Args:
        scan: Reads UUIDs of a journal.
        is_complete: Returns whether a record ends at the write head of a journal. It's asked if no
            message does.
    """

    def __init__(self, scan: Scan, is_complete: Callable[[JournalInfo], Awaitable[bool]]) -> None:
        self._scan = scan
        self._is_complete = is_complete
        self._ahead: dict[str, _Ahead] = {}
        self.room = AHEAD_ROWS
        """Number of further rows which may be held ahead."""

    async def advance(
        self, moves: Iterable[Move], max_rows: int | None = None
    ) -> dict[str, RangeState]:
        """Return the state of each journal where its batch ends, which is the state's offset.

        Args:
            moves: The journals.
            max_rows: Limit of the messages of the batch, acknowledgements included. It's split over
                journals in proportion to their bytes. Each goes on by one message at least.

        Cancellation: safe.

        Raises:
            DataLossError: Content is lost.
            GazetteError: It can't be read.
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
        """Read what the next batch is likely to sequence, until it's known or enough is held.

        Args:
            ranges: From where the last batch ended, to where the next one may end.

        Cancellation: safe — what was read is kept.

        Raises:
            DataLossError: Content is lost.
            GazetteError: It can't be read.
        """
        await map_bounded(self._read_ahead, ranges, limit=SCANS_AT_ONCE)

    def keep(self, names: Iterable[str]) -> None:
        """Forget what was read of all other journals."""
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
        """Return a scan of a part of a range, whose end may be behind that."""
        (split,) = split_range(planned._replace(begin=begin, end=end), _UNLIMITED)
        return self._scan(planned.journal, begin, end, is_aligned=split.is_aligned)

    async def _advance(self, move: Move, max_rows: int) -> RangeState:
        (journal, begin, wanted), state = move
        passed = _Passed(state, wanted, max_rows)
        ahead = self._take_ahead(journal, begin)
        scanned, chunks = ahead.end, ahead.chunks
        rest = UuidColumns.empty()
        while chunks and not rest.rows and passed.rows_left:
            rest = await passed.take(chunks.popleft())
        if not (chunks or rest.rows) and scanned < wanted and passed.rows_left:
            # What's limited is likely to go on a little later, and files are costly to open.
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
            offset = begin  # Its last record goes on behind the head.
        following = _Ahead(offset, journal.create_revision, chunks)
        if 0 < following.rows <= self.room:
            self._ahead[journal.name] = following
            self.room -= following.rows
        return replace(state, offset=offset)

    def __repr__(self) -> str:
        count = sum(bool(ahead.chunks) for ahead in self._ahead.values())
        rows = sum(ahead.rows for ahead in self._ahead.values())
        return f"<Tail, {rows} messages of {count} journals ahead>"


def _ended(journal: JournalInfo, wanted: int) -> JournalInfo:
    """Return a journal whose head is where a record has to end for a batch to end at `wanted`."""
    return journal if journal.is_divisible else replace(journal, head=wanted)


class _Passed:
    """What is sequenced of a batch."""

    def __init__(self, state: RangeState, wanted: int, max_rows: int) -> None:
        self.state = state
        """State behind it."""
        self.rows = 0
        """Number of messages."""
        self.rows_left = max_rows
        """Number of messages which may follow."""
        self._wanted = wanted

    async def take(self, columns: UuidColumns) -> UuidColumns:
        """Sequence those rows which belong to the batch, and return the others behind them."""
        rows = min(int(np.searchsorted(columns.begin, self._wanted)), self.rows_left)
        taken = columns.slice(0, rows)
        if rows < _THREAD_ROWS:
            self.state = advance(self.state, taken)
        else:
            self.state = await asyncio.to_thread(advance, self.state, taken)
        self.rows += rows
        self.rows_left -= rows
        return columns.slice(rows)
