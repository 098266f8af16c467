"""Pump of one of several journals: a task that reads ahead.

    ┌─────────► waits for a slot ◄──────────────┐
    │                 │                         │ its turn is over, and others wait
    │                 ▼                         │
    │         catches up, holding ──────────────┘
    │           the slot
    │                 │ write head, or a pause of content
    │ lags again      ▼
    └───────────── tails, without a slot

A journal that lags behind its write head is read while it holds one of a limited number of slots.
So only as many RPCs bring content concurrently. A journal that is tailed costs next to nothing.
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
from gazette_aio.protocol.status_errors import (
    JournalNotFoundError,
    NotAllowedError,
    OffsetNotYetAvailableError,
    SuspendedError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gazette_aio.aio.fifo import FIFOBudget
    from gazette_aio.client import RetryReader

_logger = logging.getLogger(__name__)

CATCH_UP_JOURNALS = 16
"""Most lagging journals that are read concurrently."""

_CHUNK_BYTES = 128 << 10  # Content of one response of a broker.
TURN_BYTES = 4 << 20
"""Content after which a journal passes its slot to a waiting one."""
TURN_SECONDS = 4.0
"""Time of waiting for content after which a journal passes its slot, too."""
STALLED_SECONDS = 1.0
"""Time without content after which a journal releases its slot."""
LEAVING_SECONDS = 0.5
"""Time of tailing, or without content, after which a leaving journal isn't read any more."""
PARKED_SECONDS = 30.0
"""Time after which a journal that can't be read is retried."""


@dataclass(frozen=True, slots=True)
class PumpRoom:
    """Resources shared by pumps.

    Args:
        slots: Slots of journals that catch up.
        held: Bytes of chunks that wait to be taken.
        ready: Called when a pump has an arrival.
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
    """Reads one journal ahead, within the shared budget.

    Args:
        source: Journal to read.
        room: Resources shared with other pumps.
        block: Whether to wait for new content at the write head.
        selected: Whether a selector matched the journal. If so, a journal that can't be read is
            waited for or left out, rather than an error.
    """

    def __init__(
        self, source: JournalInput[C], room: PumpRoom, *, block: bool, selected: bool
    ) -> None:
        self.source = source
        self.arrivals: deque[Arrival[C]] = deque()
        """Arrivals that weren't taken yet."""
        self.waiting_bytes: int = 0
        """Bytes of content of these arrivals."""
        self.leaving: bool = False
        """Whether to end reading when no more content is at hand."""
        self.is_queued = False
        """Whether the pump is in line to have an arrival taken."""
        self.has_left: bool = False
        """Whether the final arrival is known."""
        self.rewound_to: int | None = None
        """Offset from which `resume()` reads, if reading has stopped."""
        self._is_stopped = False
        self._room = room
        self._block = block
        self._selected = selected
        self._is_behind = True  # Whether the journal lags behind its write head, if known.
        self._refused = False  # Whether the broker refused to read the journal.
        self._task = OwnedTask()
        self._scope: asyncio.Timeout | None = None  # Time-out of the wait for content.
        self._leaves_at = 0.0
        self._listed = asyncio.Event()

    @property
    def running(self) -> bool:
        """Whether the task is reading."""
        return self._task.running

    @property
    def is_more_coming(self) -> bool:
        """Whether content is known to follow the arrivals, as the journal lags behind its head."""
        reader, arrivals = self.source.reader, self.arrivals
        if arrivals and arrivals[-1].kind is not ArrivalKind.CHUNK:
            return False
        return self.running and reader is not None and 0 <= reader.offset < reader.write_head

    def start(self) -> None:
        """Begin to read, or continue after an error."""
        if not self.running and not self._is_stopped:
            self._task.start(self._run(), f"gazette-read-{self.source.journal}")

    def leave(self) -> None:
        """Read only content that is at hand."""
        if self.rewound_to is not None and not self.has_left:
            self.put(ArrivalKind.LEFT)
        if not self.leaving:
            self.leaving = True
            self._leaves_at = asyncio.get_running_loop().time() + LEAVING_SECONDS
            self._listed.set()
            self._limit_wait(self._leaves_at)

    def stay(self) -> None:
        """Continue to read a journal that was leaving."""
        self.leaving = False
        self._limit_wait(asyncio.get_running_loop().time() + STALLED_SECONDS)

    def listed_anew(self) -> None:
        """Note that the journal was applied: it may have become readable."""
        self._listed.set()

    def put(self, kind: ArrivalKind, error: Exception | None = None) -> None:
        """Add an arrival other than content or a jump."""
        self.has_left = kind in {ArrivalKind.LEFT, ArrivalKind.END}
        self._add(Arrival(self.source, kind, error=error))

    def _add(self, arrival: Arrival[C]) -> None:
        if self.rewound_to is not None and arrival.kind is not ArrivalKind.LEFT:
            return  # Race: the cancelled task may have received content just before.
        self._room.held.hold(len(arrival.chunk))
        self.waiting_bytes += len(arrival.chunk)
        self.arrivals.append(arrival)
        self._room.ready(self)

    def take(self) -> Arrival[C]:
        """Return the next arrival, which must exist."""
        arrival = self.arrivals.popleft()
        if arrival.chunk:
            self._room.held.release(len(arrival.chunk))
            self.waiting_bytes -= len(arrival.chunk)
        return arrival

    def take_chunks(self, limit_bytes: int) -> list[Arrival[C]]:
        """Return the next arrivals if they're content, which directly follows the last arrival."""
        # Invariant: content after a jump follows an arrival of that kind.
        chunks: list[Arrival[C]] = []
        while self.arrivals and self.arrivals[0].kind is ArrivalKind.CHUNK:
            limit_bytes -= len(self.arrivals[0].chunk)
            if limit_bytes < 0:
                break
            chunks.append(self.take())
        return chunks

    def rewind(self, offset: int) -> None:
        """Stop reading and drop the arrivals, until `resume()`. A leaving journal leaves at once.

        Args:
            offset: Offset from which `resume()` reads.
        """
        self.cancel()
        while self.arrivals:
            self.take()
        self.has_left = False
        self.rewound_to = offset
        if self.leaving:
            self.put(ArrivalKind.LEFT)

    async def resume(self) -> None:
        """Read again after `rewind()`.

        Cancellation: safe — call again.
        """
        await self._task.aclose()
        await self.source.close_reader()
        if self.rewound_to is not None and not self.has_left:
            self.source.rewind(self.rewound_to)
            self.rewound_to = None
            self.start()

    def stop(self) -> None:
        """End reading at once and for good."""
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
        # Race: the time-out may have expired, but not been exited yet.
        if self._scope is not None and not self._scope.expired():
            self._scope.reschedule(when)

    async def _run(self) -> None:
        try:
            await self._read()
        except StopAsyncIteration:
            self.put(ArrivalKind.END)
        except Exception as error:  # noqa: BLE001 - raised by the iterator, with its journal.
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
        """Read, and decide how to continue if the journal can't be read."""
        self._listed.clear()
        try:
            step = await read()
        except OffsetNotYetAvailableError as error:
            self._is_behind = False
            if self._block and not self.leaving:
                return _Next.TAIL
            await self.source.check_head(error)
            return _Next.LEAVE
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
                    # The RPC has more content on the way, which must be bounded as well.
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
            # Content that the RPC received stays there until this journal's turn.
            await held.acquire(_CHUNK_BYTES)
            held.release(_CHUNK_BYTES)
            try:
                # Reading ends in time even if content keeps coming.
                await self._read_chunk(self._leaves_at if self.leaving else None)
            except TimeoutError:
                if self.leaving:
                    return _Next.LEAVE
                continue
            if self._is_behind and source.owned:
                # Content comes again after a pause.
                self._is_behind = reader.response.write_head > reader.offset
                if self._is_behind:
                    # The RPC must not bring more while the journal waits for a slot.
                    await source.close_reader()
                    return _Next.CATCH_UP

    async def _read_chunk(self, until: float | None) -> int:
        """Read the next content and return its size.

        Args:
            until: Event loop time to wait until, or None to wait without limit.

        Raises:
            TimeoutError: No content arrived in time.
        """
        try:
            async with asyncio.timeout_at(until) as self._scope:
                arrival = await self.source.next_arrival()
        finally:
            self._scope = None
        self._add(arrival)
        return len(arrival.chunk)

    async def _park(self) -> _Next:
        """Wait until the journal is applied again, or for a long time."""
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
    """Whether another RPC may resume at little cost. In a compressed file it rereads the start."""
    fragment = reader.response.fragment
    return (
        not fragment.backing_store
        or fragment.compression_codec == pb.CompressionCodec.NONE
        or reader.offset >= fragment.end
    )
