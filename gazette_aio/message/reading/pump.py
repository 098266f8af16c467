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
from typing import TYPE_CHECKING, Any

import gazette_aio.protocol as pb
from gazette_aio.aio.task import OwnedTask
from gazette_aio.message.reading.journal_input import Arrival, ArrivalKind, JournalInput
from gazette_aio.protocol.status_errors import (
    JournalNotFoundError,
    NotAllowedError,
    OffsetNotYetAvailableError,
    SuspendedError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gazette_aio.client import JournalClient, RetryReader
    from gazette_aio.message.envelopes.outputs import JournalOutputs
    from gazette_aio.message.reading.inputs import Inputs

    _Step = Callable[[], Awaitable["_Step | None"]]

_logger = logging.getLogger(__name__)

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


class JournalPump(JournalInput):
    """Reads one journal ahead, within the budget that all journals share.

    Args:
        inputs: All journals.
        client: Client to read with.
        request: Request to read. Its `block` is whether to wait for content at the write head.
        content: Content of the journal, from the offset of the request on.
        reader: A given reader, if any, which isn't closed after errors.
        selected: Whether a selector matched the journal. If so, a journal that can't be read is
            waited for or left out, rather than an error.
    """

    def __init__(
        self,
        inputs: Inputs,
        client: JournalClient,
        request: pb.ReadRequest,
        content: JournalOutputs[Any],
        *,
        reader: RetryReader | None,
        selected: bool,
    ) -> None:
        super().__init__(client, request, content, reader=reader)
        self.arrivals: deque[Arrival] = deque()
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
        self._failures = (0, 0)  # Offset of the latest replay that failed, and failures there.
        self._is_stopped = False
        self._inputs = inputs
        self._block = request.block
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
        reader, arrivals = self.reader, self.arrivals
        if arrivals and arrivals[-1].kind is not ArrivalKind.CHUNK:
            return False
        return self.running and reader is not None and 0 <= reader.offset < reader.write_head

    def start(self) -> None:
        """Begin to read, or continue after an error."""
        if not self.running and not self._is_stopped:
            self._task.start(self._run(), f"gazette-read-{self.journal}")

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
        self._add(Arrival(self, kind, error=error))

    def _add(self, arrival: Arrival) -> None:
        if self.rewound_to is not None and arrival.kind is not ArrivalKind.LEFT:
            return  # Race: the cancelled task may have received content just before.
        self._inputs.held.hold(len(arrival.chunk))
        self.waiting_bytes += len(arrival.chunk)
        self.arrivals.append(arrival)
        self._inputs.make_ready(self)

    def take(self) -> Arrival:
        """Return the next arrival, which must exist."""
        arrival = self.arrivals.popleft()
        if arrival.chunk:
            self._inputs.held.release(len(arrival.chunk))
            self.waiting_bytes -= len(arrival.chunk)
        return arrival

    def take_chunks(self, limit_bytes: int) -> list[Arrival]:
        """Return the next arrivals if they're content, which directly follows the last arrival."""
        # Invariant: content after a jump follows an arrival of that kind.
        chunks: list[Arrival] = []
        while self.arrivals and self.arrivals[0].kind is ArrivalKind.CHUNK:
            limit_bytes -= len(self.arrivals[0].chunk)
            if limit_bytes < 0:
                break
            chunks.append(self.take())
        return chunks

    def park(self, offset: int) -> float:
        """Stop reading and drop the arrivals, until `resume()`. A leaving journal leaves at once.

        Args:
            offset: Offset from which `resume()` reads.

        Returns:
            The time of the event loop to resume at. Repeated failures at one offset back off.
        """
        self.cancel()
        self.drop()
        self.has_left = False
        self.rewound_to = offset
        if self.leaving:
            self.put(ArrivalKind.LEFT)
        at, attempt = self._failures
        if at != offset:
            attempt = 0
        self._failures = offset, attempt + 1
        delay = self._client.context.retry_policy.backoff(attempt)
        return asyncio.get_running_loop().time() + delay

    def drop(self) -> None:
        """Drop the arrivals."""
        while self.arrivals:
            self.take()

    async def resume(self) -> None:
        """Read again after `rewind()`.

        Cancellation: safe — call again.
        """
        await self._task.aclose()
        await self.close_reader()
        if self.rewound_to is not None and not self.has_left:
            self._request.offset, self.rewound_to = self.rewound_to, None
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
        await self.close_reader()

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
        if not self.owned:
            await self._tail()
            return
        try:
            step = await self._relisted() if self._refused else self._catch_up
            while step is not None:
                step = await self._next_of(step)
        finally:
            await self.close_reader()

    async def _next_of(self, step: _Step) -> _Step | None:
        """Do a step, and return the next one, also if the journal can't be read."""
        self._listed.clear()
        try:
            following = await step()
        except OffsetNotYetAvailableError as error:
            self._is_behind = False
            if self._block and not self.leaving:
                return self._tail
            await self.check_head(error)
            return None
        except (JournalNotFoundError, SuspendedError, NotAllowedError) as error:
            if not self._selected:
                raise
            if self.leaving:
                return None
            if isinstance(error, NotAllowedError) and not self._refused:
                self._refused = True
                raise
            extra = {"journal": self.journal}
            _logger.debug("journal isn't read for now: %s", error, extra=extra)
        else:
            self._refused = False
            return following
        return await self._relisted()

    async def _catch_up(self) -> _Step | None:
        """Read content up to the write head, in a slot."""
        slots, held = self._inputs.slots, self._inputs.held
        await slots.acquire(1)
        try:
            reader = self.open_reader(block=False)
            self._is_behind = True
            loop = asyncio.get_running_loop()
            size, waited = 0, 0.0
            while True:
                await held.acquire(_CHUNK_BYTES)
                try:
                    began = loop.time()
                    within = LEAVING_SECONDS if self.leaving else STALLED_SECONDS
                    arrived = await self._read_chunk(began + within)
                finally:
                    held.release(_CHUNK_BYTES)
                if arrived is None:
                    return None if self.leaving else self._tail
                size += arrived
                waited += loop.time() - began
                is_over = size >= TURN_BYTES or waited >= TURN_SECONDS
                if is_over and slots.is_contended and _may_pause(reader):
                    # The RPC has more content on the way, which must be bounded as well.
                    await self.close_reader()
                    return self._catch_up
        finally:
            slots.release(1)

    async def _tail(self) -> _Step | None:
        """Read content as it comes."""
        held = self._inputs.held
        reader = self.open_reader(block=self._block)
        while True:
            # Content that the RPC received stays there until this journal's turn.
            await held.acquire(_CHUNK_BYTES)
            held.release(_CHUNK_BYTES)
            # Reading ends in time even if content keeps coming.
            if await self._read_chunk(self._leaves_at if self.leaving else None) is None:
                if self.leaving:
                    return None
                continue
            if self._is_behind and self.owned:
                # Content comes again after a pause.
                self._is_behind = reader.response.write_head > reader.offset
                if self._is_behind:
                    # The RPC must not bring more while the journal waits for a slot.
                    await self.close_reader()
                    return self._catch_up

    async def _read_chunk(self, until: float | None) -> int | None:
        """Read the next content and return its size, or None if none arrived in time.

        Args:
            until: Event loop time to wait until, or None to wait without limit.
        """
        self._scope = scope = asyncio.timeout_at(until)
        try:
            async with scope:
                arrival = await self.next_arrival()
        except TimeoutError:
            if not scope.expired():
                raise  # The reader's own time-out.
            return None
        finally:
            self._scope = None
        self._add(arrival)
        return len(arrival.chunk)

    async def _relisted(self) -> _Step | None:
        """Wait until the journal is applied again, or for a long time."""
        await self.close_reader()
        if not self._block or self.leaving:
            return None
        try:
            async with asyncio.timeout(PARKED_SECONDS):
                await self._listed.wait()
        except TimeoutError:
            pass
        return None if self.leaving else self._catch_up

    def __repr__(self) -> str:
        state = "leaving" if self.leaving else "running" if self.running else "done"
        return f"<JournalPump of {self.journal!r} {state} waiting={len(self.arrivals)}>"


def _may_pause(reader: RetryReader) -> bool:
    """Whether another RPC may resume at little cost. In a compressed file it rereads the start."""
    fragment = reader.response.fragment
    return (
        not fragment.backing_store
        or fragment.compression_codec == pb.CompressionCodec.NONE
        or reader.offset >= fragment.end
    )
