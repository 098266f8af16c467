"""Inputs of an iterator: the journals of its source, which take turns."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any

from gazette_aio.aio.fifo import FIFOBudget
from gazette_aio.aio.garbage import keep_freed_memory
from gazette_aio.aio.signal import Signal
from gazette_aio.aio.task import end_from_anywhere
from gazette_aio.message.reading.journal_input import Arrival, ArrivalKind, JournalInput
from gazette_aio.message.reading.pump import JournalPump
from gazette_aio.message.reading.selected_journals import SelectedJournals, for_each
from gazette_aio.message.reading.sources import (
    ReaderSource,
    SelectedSource,
    Source,
    fetch_specs,
)
from gazette_aio.protocol.errors import OffsetBeyondHeadError
from gazette_aio.protocol.status_errors import OffsetNotYetAvailableError

if TYPE_CHECKING:
    from gazette_aio.message.envelopes.origin import JournalFormat
    from gazette_aio.message.reading.engine import JournalEngine
    from gazette_aio.message.reading.formats import JournalFormats

CATCH_UP_JOURNALS = 16
"""Most lagging journals that are read concurrently."""

GATHER_SECONDS = 0.05
"""Longest wait for content that a lagging journal is known to have, while some is at hand."""


class Inputs:
    """Reads the journals of a source, from the first request for an arrival on.

    Journals with content at hand take turns, a chunk each. Selected journals join and leave as the
    selection changes. A journal that leaves is read until no more content is at hand. If it joins
    again, reading resumes there, unless the journal was deleted and created anew.

    Args:
        source: Journals to read.
        formats: Formats of the journals.
        engine: Has the content of journals, and the offsets to read them from.
        buffer_bytes: Limit of the chunks that are read ahead, over all journals.
        read_ahead: Whether to also read ahead of a single journal, rather than on request.
    """

    def __init__(
        self,
        source: Source,
        formats: JournalFormats[Any],
        engine: JournalEngine[Any],
        *,
        buffer_bytes: int,
        read_ahead: bool = False,
    ) -> None:
        self.source = source
        """Journals to read."""
        self._formats = formats
        self._engine = engine
        self._read_ahead = read_ahead
        self.slots: FIFOBudget = FIFOBudget(CATCH_UP_JOURNALS)
        """Slots of journals that catch up."""
        self.held: FIFOBudget = FIFOBudget(max(buffer_bytes, 1))
        """Bytes of chunks that wait to be taken."""
        self._loop: asyncio.AbstractEventLoop | None = None  # Of tasks that read.
        self._begun = False
        self.is_closed = False
        """Whether nothing is read any more."""
        self._offsets: dict[str, int] = {}  # Offsets to read joining journals from.
        self._single: JournalInput | None = None  # Read in place.
        self._single_ended = False
        self.pumps: dict[str, JournalPump] = {}
        """Pumps of journals that are read ahead, by name."""
        self._stopped: set[JournalPump] = set()
        self._ready: deque[JournalPump] = deque()
        self._errors: deque[Exception] = deque()  # Errors of the source, not of a journal.
        self._failed: JournalPump | None = None
        self._parked: dict[JournalPump, float] = {}  # Times at which they're retried.
        self._progress = Signal()
        self._gathering: tuple[JournalPump, int] | None = None  # What `gather()` waits for.
        self._gathered = Signal()
        if read_ahead:
            keep_freed_memory(buffer_bytes)
        self._selected: SelectedJournals | None = None
        if isinstance(source, SelectedSource):
            self._selected = SelectedJournals(source, formats, self)

    @property
    def is_selection(self) -> bool:
        """Whether journals may join and leave."""
        return self._selected is not None

    @property
    def running(self) -> bool:
        """Whether tasks are reading."""
        return self._is_following or any(pump.running for pump in self.pumps.values())

    @property
    def _is_following(self) -> bool:
        return self._selected is not None and self._selected.is_following

    @property
    def open(self) -> int:
        """Number of journals that are read at present."""
        return len(self.pumps) + (self._single is not None and not self._single_ended)

    async def next_arrival(self) -> Arrival:
        """Return the next arrival, of the journal whose turn it is.

        All messages of earlier arrivals must have been delivered. The next call retries a journal
        that failed.

        Raises:
            StopAsyncIteration: No journal is read any more.
            UnrecognizedContentTypeError: A journal's content type has no framing. If the journal
                was selected, others are still read.
            GazetteError: Journals can't be listed; the next call retries.

        Cancellation: safe.
        """
        while not self.is_closed:
            if self._failed is not None:
                self._failed.start()
                self._failed = None
            if self._errors:
                raise self._errors.popleft()
            if not self._begun:
                try:
                    await self._begin()
                except Exception:
                    # Race: another task than the waiting one may close the inputs.
                    if not self.is_closed:
                        raise
            elif self._single is not None:
                return await self._read_single(self._single)
            elif self._ready:
                pump = self._ready.popleft()
                pump.is_queued = False
                if pump.arrivals:
                    return self._hand_out(pump)
            elif self.pumps or self._is_following:
                await self._wait()
            else:
                break
        raise StopAsyncIteration

    async def _wait(self) -> None:
        """Wait until something may be ready, or resume the parked journal that is due first."""
        if not self._parked:
            await self._progress.wait()
            return
        pump = min(self._parked, key=self._parked.__getitem__)
        due = self._parked[pump]
        if due > asyncio.get_running_loop().time():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._progress.wait()
            return
        await pump.resume()
        self._parked.pop(pump, None)

    def has_gathered(self, pump: JournalPump, size_bytes: int) -> bool:
        """Whether so much content is at hand, or waiting for it isn't worthwhile."""
        is_enough = pump.waiting_bytes >= size_bytes or not pump.is_more_coming
        return is_enough or self.are_others_ready(pump)

    async def gather(self, pump: JournalPump, size_bytes: int) -> None:
        """Wait a short time for so much content of a journal that lags behind its write head.

        Cancellation: safe.
        """
        if self.has_gathered(pump, size_bytes):
            return
        self._gathering = pump, size_bytes
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GATHER_SECONDS):
                    await self._gathered.wait()
        finally:
            self._gathering = None

    def are_others_ready(self, source: JournalInput) -> bool:
        """Whether an arrival of a journal other than `source` is at hand."""
        return any(pump is not source for pump in islice(self._ready, 2))

    def may_park(self, source: JournalInput) -> bool:
        """Whether reading of a journal can be suspended, and other journals may be read."""
        return source.journal in self.pumps and source.owned

    def park(self, source: JournalInput, offset: int) -> None:
        """Suspend reading of a journal until nothing else is ready, for its back-off at least.

        Args:
            source: The journal.
            offset: Offset from which its content is needed then.
        """
        pump = self.pumps[source.journal]
        due = pump.park(offset)
        if not pump.leaving:
            self._parked[pump] = due

    def abandon(self, source: JournalInput) -> None:
        """Stop reading a deleted journal, and drop content that was read ahead."""
        self._offsets.pop(source.journal, None)
        pump = self.pumps.pop(source.journal, None)
        if pump is not None:
            self.stop(pump)
            pump.drop()
            self._join_successor(source.journal)

    async def aclose(self) -> None:
        """End reading. Idempotent.

        Cancellation: safe — call again.
        """
        self.is_closed = True
        self._progress.set()
        self._gathered.set()
        if self._selected is not None:
            await self._selected.stop()
        pumps = [*self.pumps.values(), *self._stopped]
        await for_each(pumps, lambda pump: pump.cancel())
        for pump in pumps:
            await pump.aclose()
        if self._single is not None:
            await self._single.close_reader()
        elif isinstance(self.source, ReaderSource):
            await self.source.reader.aclose()
        if self._selected is not None:
            await self._selected.leave_list()

    def end_from_anywhere(self) -> None:
        """End reading; called from any thread and at any time."""
        if self._loop is not None:
            end_from_anywhere(self._loop, self.aclose)

    async def _begin(self) -> None:
        source = self.source
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._offsets = dict(self._engine.offsets())
        if self._selected is not None:
            await self._selected.begin()
        else:
            assert not isinstance(source, SelectedSource)
            specs = await fetch_specs(source.client, source.names)
            named = zip(source.names, specs, strict=True)
            await for_each(named, lambda each: self.add(self._formats.of(*each)))
        self._begun = True

    def add(self, journal_format: JournalFormat[Any], *, reset: bool = False) -> None:
        """Begin to read a journal."""
        name = journal_format.journal
        if reset:
            self._offsets[name] = 0
        # Race: another task than the waiting one may close the inputs, and the waiting one may have
        # been cancelled while it added journals.
        if self.is_closed or name in self.pumps:
            return
        origin = self.source
        request = origin.request(name, self._offsets.get(name))
        content = self._engine.begin(journal_format, request.offset)
        reader = origin.reader if isinstance(origin, ReaderSource) else None
        names = () if isinstance(origin, SelectedSource) else origin.names
        if len(names) == 1 and not self._read_ahead:
            self._single = JournalInput(origin.client, request, content, reader=reader)
            return
        pump = JournalPump(self, origin.client, request, content, reader=reader, selected=not names)
        self.pumps[name] = pump
        if reset:
            pump.put(ArrivalKind.RESET)
        pump.start()

    async def _read_single(self, source: JournalInput) -> Arrival:
        if self._single_ended:
            if source.owned:
                await source.close_reader()
            raise StopAsyncIteration
        source.open_reader(block=self.source.block)
        try:
            return await source.next_arrival()
        except StopAsyncIteration:
            if self.is_closed:
                raise  # The reader hasn't reached the end of its request.
            arrival = Arrival(source, ArrivalKind.END)
        except Exception as error:  # noqa: BLE001 - raised by the iterator, with its journal.
            if self.is_closed:
                raise StopAsyncIteration from None
            if not (isinstance(error, OffsetNotYetAvailableError) and source.owned):
                return Arrival(source, ArrivalKind.ERROR, error=error)
            try:
                await source.check_head(error)
            except OffsetBeyondHeadError as beyond:
                return Arrival(source, ArrivalKind.ERROR, error=beyond)
            arrival = Arrival(source, ArrivalKind.LEFT)
        self._single_ended = True
        return arrival

    def _hand_out(self, pump: JournalPump) -> Arrival:
        arrival = pump.take()
        if pump.arrivals:
            self.make_ready(pump)
        if arrival.kind is ArrivalKind.ERROR:
            self._failed = pump
        elif arrival.kind in {ArrivalKind.LEFT, ArrivalKind.END}:
            name = pump.journal
            del self.pumps[name]
            self._parked.pop(pump, None)
            if pump.running:
                self.stop(pump)
            if pump.offset:  # Otherwise the journal is still read from its start.
                self._offsets[name] = pump.offset
            self._join_successor(name)
        return arrival

    def make_ready(self, pump: JournalPump) -> None:
        """Have an arrival of a journal taken in its turn."""
        if not pump.is_queued:
            pump.is_queued = True
            self._ready.append(pump)
            self._progress.set()
        if self._gathering is not None and self.has_gathered(*self._gathering):
            self._gathered.set()

    def _join_successor(self, name: str) -> None:
        if self._selected is not None:
            self._selected.join_successor(name)

    def stop(self, pump: JournalPump) -> None:
        """Stop reading a journal."""
        pump.stop()
        self._stopped = {each for each in self._stopped if each.running}
        self._stopped.add(pump)

    def report(self, error: Exception, *, is_lost: bool = False) -> None:
        """Have `next_arrival()` raise an error."""
        self._errors.append(error)
        if is_lost:
            self._begun = False
        self.notify()

    def notify(self) -> None:
        """Wake up who waits for an arrival."""
        self._progress.set()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.source} open={self.open}>"
