"""Pump of one of several journals: a task which reads ahead.

    ┌─────────► waits for a slot ◄──────────────┐
    │                 │                         │ others wait, and it had its turn
    │                 ▼                         │
    │         catches up, holding ──────────────┘
    │           the slot
    │                 │ write head, or nothing comes
    │ behind again    ▼
    └───────────── tails, holding none

A journal which is behind its write head is read while it holds one of a limited number of slots,
so that only as many RPCs bring content at once; one which is tailed costs next to nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Generic

import gazette_aio.protocol as pb
from gazette_aio.aio.task import OwnedTask
from gazette_aio.message.reading.journal_input import Arrival, ArrivalKind, C, JournalInput
from gazette_aio.protocol.errors import (
    JournalNotFoundError,
    NotAllowedError,
    OffsetNotYetAvailableError,
    SuspendedError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gazette_aio.client import RetryReader
    from gazette_aio.message.reading.budget import FIFOBudget

_logger = logging.getLogger(__name__)

CATCH_UP_JOURNALS = 16
"""Journals behind their write heads which are read at once."""

_CHUNK_BYTES = 128 << 10  # What brokers send at once.
TURN_BYTES = 4 << 20
"""Content after which a journal hands its slot to those who wait for one."""
TURN_SECONDS = 4.0
"""Waiting for content, after which it hands it on as well."""
STALLED_SECONDS = 1.0
"""Time without content after which a journal holds no slot any more."""
LEAVING_SECONDS = 0.5
"""Time of tailing, or without content, until a journal that leaves isn't read."""
PARKED_SECONDS = 30.0
"""Time until a journal which can't be read is tried again."""


@dataclass(frozen=True, slots=True)
class PumpRoom:
    """What pumps share.

    Args:
        slots: Slots of journals which catch up.
        held: Bytes of chunks which wait to be handed out.
        ready: Called when a pump has something to hand out.
    """

    slots: FIFOBudget
    held: FIFOBudget
    ready: Callable[[JournalPump[Any]], None]


class _Next(Enum):
    CATCH_UP = auto()
    TAIL = auto()
    PARK = auto()
    LEAVE = auto()


class JournalPump(Generic[C]):
    """Reads one journal ahead, within what there's room for.

    Args:
        source: What to read.
        room: What it shares with others.
        block: Whether to wait for new content at the write head.
        selected: Whether the journal was selected by its labels. If it can't be read it's left
            alone then, rather than being an error.
    """

    def __init__(
        self, source: JournalInput[C], room: PumpRoom, *, block: bool, selected: bool
    ) -> None:
        self.source = source
        self.arrivals: deque[Arrival[C]] = deque()
        """What wasn't handed out yet."""
        self.leaving = False
        """Whether reading is to end once nothing more comes at once."""
        self.is_queued = False
        """Whether it's among those which take turns in handing out."""
        self.has_left = False
        """Whether the last arrival which there will be is known."""
        self._is_stopped = False
        self._room = room
        self._block = block
        self._selected = selected
        self._is_behind = True  # The write head, as far as is known.
        self._refused = False  # Whether the broker said that the journal isn't to be read.
        self._task = OwnedTask()
        self._scope: asyncio.Timeout | None = None  # Of the wait for content.
        self._leaves_at = 0.0
        self._listed = asyncio.Event()

    @property
    def running(self) -> bool:
        """Whether the task is reading."""
        return self._task.running

    def start(self) -> None:
        """Begin to read, or go on behind an error."""
        if not self.running and not self._is_stopped:
            self._task.start(self._run(), f"gazette-read-{self.source.journal}")

    def leave(self) -> None:
        """Read no more than what comes at once."""
        if not self.leaving:
            self.leaving = True
            self._leaves_at = asyncio.get_running_loop().time() + LEAVING_SECONDS
            self._listed.set()
            self._limit_wait(self._leaves_at)

    def stay(self) -> None:
        """Read on, though it was to end."""
        self.leaving = False
        self._limit_wait(asyncio.get_running_loop().time() + STALLED_SECONDS)

    def listed_anew(self) -> None:
        """Note that the journal was applied: what couldn't be read perhaps can be."""
        self._listed.set()

    def put(self, kind: ArrivalKind, error: Exception | None = None) -> None:
        """Hand out something other than content, or a jump."""
        self.has_left = kind in {ArrivalKind.LEFT, ArrivalKind.END}
        self._add(Arrival(self.source, kind, error=error))

    def _add(self, arrival: Arrival[C]) -> None:
        self._room.held.hold(len(arrival.chunk))
        self.arrivals.append(arrival)
        self._room.ready(self)

    def take(self) -> Arrival[C]:
        """Return the next arrival, of which there must be one."""
        arrival = self.arrivals.popleft()
        if arrival.chunk:
            self._room.held.release(len(arrival.chunk))
        return arrival

    def take_chunk(self) -> Arrival[C] | None:
        """Return the next arrival if it's content, and so directly follows what was taken last."""
        # Invariant: what follows a jump is behind an arrival of that kind.
        if self.arrivals and self.arrivals[0].kind is ArrivalKind.CHUNK:
            return self.take()
        return None

    def stop(self) -> None:
        """End reading at once, of what isn't to be read any more, and never start again."""
        self._is_stopped = True
        self.cancel()
        if not self.has_left:
            self.put(ArrivalKind.LEFT)

    def cancel(self) -> None:
        """End reading, without waiting for it."""
        self._task.cancel()

    async def aclose(self) -> None:
        """End reading. Idempotent.

        Cancellation: safe — call again.
        """
        await self._task.aclose()
        await self.source.close_reader()

    def _limit_wait(self, when: float) -> None:
        # Race: it may have expired, but not yet have been left.
        if self._scope is not None and not self._scope.expired():
            self._scope.reschedule(when)

    async def _run(self) -> None:
        try:
            await self._read()
        except StopAsyncIteration:
            self.put(ArrivalKind.END)
        except Exception as error:  # noqa: BLE001 - raised by the iterator, with where it happened.
            self.put(ArrivalKind.ERROR, error)
        else:
            self.put(ArrivalKind.LEFT)

    async def _read(self) -> None:
        source = self.source
        if not source.owned:
            await self._tail()
            return
        try:
            step = _Next.PARK if self._refused else _Next.CATCH_UP
            while step is not _Next.LEAVE:
                if step is _Next.CATCH_UP:
                    step = await self._guarded(self._catch_up)
                elif step is _Next.TAIL:
                    step = await self._guarded(self._tail)
                else:
                    step = await self._park()
        finally:
            await source.close_reader()

    async def _guarded(self, read: Callable[[], Awaitable[_Next]]) -> _Next:
        """Read, and decide what's next if the journal can't be."""
        self._listed.clear()
        try:
            step = await read()
        except OffsetNotYetAvailableError:
            self._is_behind = False
            return _Next.TAIL if self._block and not self.leaving else _Next.LEAVE
        except (JournalNotFoundError, SuspendedError, NotAllowedError) as error:
            if not self._selected:
                raise
            if self.leaving:
                return _Next.LEAVE
            if isinstance(error, NotAllowedError) and not self._refused:
                self._refused = True
                raise
            extra = {"journal": self.source.journal}
            _logger.debug("journal isn't read for now: %s", error, extra=extra)
            return _Next.PARK
        self._refused = False
        return step

    async def _catch_up(self) -> _Next:
        """Read content up to the write head, in a slot."""
        room, held = self._room, self._room.held
        await room.slots.acquire(1)
        try:
            reader = self.source.open_reader(block=False)
            self._is_behind = True
            loop = asyncio.get_running_loop()
            size, waited = 0, 0.0
            while True:
                await held.acquire(_CHUNK_BYTES)
                try:
                    began = loop.time()
                    within = LEAVING_SECONDS if self.leaving else STALLED_SECONDS
                    size += await self._read_chunk(began + within)
                finally:
                    held.release(_CHUNK_BYTES)
                waited += loop.time() - began
                is_over = size >= TURN_BYTES or waited >= TURN_SECONDS
                if is_over and room.slots.is_contended and _may_pause(reader):
                    # Its RPC has content on the way, which is to be bounded as well.
                    await self.source.close_reader()
                    return _Next.CATCH_UP
        except TimeoutError:
            return _Next.LEAVE if self.leaving else _Next.TAIL
        finally:
            room.slots.release(1)

    async def _tail(self) -> _Next:
        """Read content as it comes."""
        source, held = self.source, self._room.held
        reader = source.open_reader(block=self._block)
        while True:
            # What was received of it stays with the RPC until it's its turn.
            await held.acquire(_CHUNK_BYTES)
            held.release(_CHUNK_BYTES)
            try:
                # It isn't read for ever if content keeps coming.
                await self._read_chunk(self._leaves_at if self.leaving else None)
            except TimeoutError:
                if self.leaving:
                    return _Next.LEAVE
                continue
            if self._is_behind and source.owned:
                # Content had stalled, and comes again.
                self._is_behind = reader.response.write_head > reader.offset
                if self._is_behind:
                    # Its RPC isn't to bring more while it waits for a slot.
                    await source.close_reader()
                    return _Next.CATCH_UP

    async def _read_chunk(self, until: float | None) -> int:
        """Read the next content and return its size.

        Args:
            until: Time of the event loop until which to wait for it, if not for ever.

        Raises:
            TimeoutError: None came in time.
        """
        try:
            async with asyncio.timeout_at(until) as self._scope:
                arrival = await self.source.next_arrival()
        finally:
            self._scope = None
        self._add(arrival)
        return len(arrival.chunk)

    async def _park(self) -> _Next:
        """Wait until the journal is applied anew, or for long."""
        await self.source.close_reader()
        if not self._block or self.leaving:
            return _Next.LEAVE
        try:
            async with asyncio.timeout(PARKED_SECONDS):
                await self._listed.wait()
        except TimeoutError:
            pass
        return _Next.LEAVE if self.leaving else _Next.CATCH_UP

    def __repr__(self) -> str:
        state = "leaving" if self.leaving else "running" if self.running else "done"
        return f"<JournalPump of {self.source.journal!r} {state} waiting={len(self.arrivals)}>"


def _may_pause(reader: RetryReader) -> bool:
    """Whether another RPC costs little to go on with, which takes a compressed file its start."""
    fragment = reader.response.fragment
    return (
        not fragment.backing_store
        or fragment.compression_codec == pb.CompressionCodec.NONE
        or reader.offset >= fragment.end
    )
