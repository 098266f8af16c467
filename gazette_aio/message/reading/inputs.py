"""Inputs of an iterator: the journals of its source, which take turns."""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import gazette_aio.protocol as pb
from gazette_aio.aio.closing import Closing
from gazette_aio.aio.fifo import FIFOBudget
from gazette_aio.aio.signal import Signal
from gazette_aio.aio.task import OwnedTask
from gazette_aio.message.reading.journal_input import (
    Arrival,
    ArrivalKind,
    BeginContent,
    C,
    JournalInput,
)
from gazette_aio.message.reading.parking import ParkedJournals
from gazette_aio.message.reading.pump import CATCH_UP_JOURNALS, JournalPump, PumpRoom
from gazette_aio.message.reading.sources import (
    ReaderSource,
    SelectedSource,
    Source,
    fetch_specs,
)
from gazette_aio.protocol.status_errors import OffsetNotYetAvailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gazette_aio.client import WatchedList
    from gazette_aio.client.listing.changes import ListChanges
    from gazette_aio.message.envelopes.origin import JournalFormat
    from gazette_aio.message.reading.formats import JournalFormats

_SLICE_JOURNALS = 16
"""Journals that are started or stopped without a pause."""

T = TypeVar("T")


async def _for_each(items: Iterable[T], act: Callable[[T], object]) -> None:
    """Call `act` with each of `items`, with pauses."""
    for number, item in enumerate(items, 1):
        act(item)
        if number % _SLICE_JOURNALS == 0:
            await asyncio.sleep(0)


class Inputs(Generic[C]):
    """Reads the journals of a source, from the first request for an arrival on.

    Journals with content at hand take turns, a chunk each. Selected journals join and leave as the
    selection changes. A journal that leaves is read until no more content is at hand. If it joins
    again, reading resumes there, unless the journal was deleted and created anew.

    Args:
        source: Journals to read.
        formats: Formats of the journals.
        begin_content: Begins the content of journals.
        offsets: Returns the offsets of a checkpoint to read journals from. Called once.
        buffer_bytes: Limit of the chunks that are read ahead, over all journals.
        read_ahead: Whether to also read ahead of a single journal, rather than on request.
    """

    def __init__(
        self,
        source: Source,
        formats: JournalFormats[Any],
        begin_content: BeginContent[C],
        *,
        offsets: Callable[[], Mapping[str, int]] = dict,
        buffer_bytes: int,
        read_ahead: bool = False,
    ) -> None:
        self._source = source
        self._formats = formats
        self._begin_content = begin_content
        self._checkpointed: Callable[[], Mapping[str, int]] | None = offsets
        self._read_ahead = read_ahead
        self._room = PumpRoom(
            FIFOBudget(CATCH_UP_JOURNALS), FIFOBudget(max(buffer_bytes, 1)), self._make_ready
        )
        self._begun = False
        self._closed = False
        self._offsets: dict[str, int] = {}  # Offsets to read joining journals from.
        self._revisions: dict[str, int] = {}  # Creation revisions of journals that ever joined.
        self._recreated: set[str] = set()  # Journals whose old state wasn't dropped yet.
        self._single: JournalInput[C] | None = None  # Read in place.
        self._single_ended = False
        self._pumps: dict[str, JournalPump[C]] = {}
        self._stopped: set[JournalPump[C]] = set()
        # Specifications of journals that join after their namesakes have left.
        self._successors: dict[str, pb.JournalSpec] = {}
        self._void = Closing()  # Readers of replays of deleted journals.
        self._ready: deque[JournalPump[C]] = deque()
        self._errors: deque[Exception] = deque()  # Errors of the source, not of a journal.
        self._failed: JournalPump[C] | None = None
        self._parked: ParkedJournals[JournalPump[C]] = ParkedJournals()
        self._progress = Signal()
        self._following = OwnedTask()
        self._entered: WatchedList | None = None

    @property
    def running(self) -> bool:
        """Whether tasks are reading."""
        return self._following.running or any(pump.running for pump in self._pumps.values())

    @property
    def open(self) -> int:
        """Number of journals that are read at present."""
        return len(self._pumps) + (self._single is not None and not self._single_ended)

    async def next_arrival(self) -> Arrival[C]:
        """Return the next arrival, of the journal whose turn it is.

        All messages of earlier arrivals must have been delivered. The next call retries a journal
        that failed.

        Cancellation: safe.

        Raises:
            StopAsyncIteration: No journal is read any more.
            UnrecognizedContentTypeError: A journal's content type has no framing. If the journal
                was selected, others are still read.
            GazetteError: Journals can't be listed; the next call retries.
        """
        while not self._closed:
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
                    if not self._closed:
                        raise
            elif self._single is not None:
                return await self._read_single(self._single)
            elif self._ready:
                pump = self._ready.popleft()
                pump.is_queued = False
                if pump.arrivals:
                    return self._hand_out(pump)
            elif self._pumps or self._following.running:
                await self._wait()
            else:
                break
        raise StopAsyncIteration

    async def _wait(self) -> None:
        """Wait until something may be ready, or resume the parked journal that is due first."""
        parked = self._parked.first
        if parked is None:
            await self._progress.wait()
            return
        pump, due = parked
        if due > asyncio.get_running_loop().time():
            try:
                async with asyncio.timeout_at(due):
                    await self._progress.wait()
            except TimeoutError:
                pass
            return
        await pump.resume()
        self._parked.discard(pump)

    def more(self, source: JournalInput[C], limit_bytes: int) -> list[Arrival[C]]:
        """Return chunks at hand that directly follow the last arrival returned.

        Args:
            source: Journal of the last arrival.
            limit_bytes: Total size of the chunks at which no further chunk is added.
        """
        chunks: list[Arrival[C]] = []
        pump = self._pumps.get(source.journal)
        if pump is not None and pump.source is source:
            size = 0
            while size < limit_bytes and (arrival := pump.take_chunk()) is not None:
                chunks.append(arrival)
                size += len(arrival.chunk)
        return chunks

    def are_others_ready(self, source: JournalInput[C]) -> bool:
        """Whether an arrival of a journal other than `source` is at hand."""
        return any(pump.source is not source for pump in islice(self._ready, 2))

    def may_park(self, source: JournalInput[C]) -> bool:
        """Whether reading of a journal can be suspended, and other journals may be read."""
        pump = self._pumps.get(source.journal)
        return pump is not None and pump.source is source and source.owned

    def park(self, source: JournalInput[C], offset: int) -> None:
        """Suspend reading of a journal until nothing else is ready, for its back-off at least.

        Args:
            source: The journal.
            offset: Offset from which its content is needed then.
        """
        pump = self._pumps[source.journal]
        pump.rewind(offset)
        if not pump.leaving:
            now = asyncio.get_running_loop().time()
            self._parked.add(pump, source.journal, offset, now, source.backoff)

    def abandon(self, source: JournalInput[C]) -> None:
        """Stop reading a deleted journal, and drop content that was read ahead."""
        self._offsets.pop(source.journal, None)
        pump = self._pumps.pop(source.journal, None)
        if pump is not None:
            self._stop(pump)
            while pump.arrivals:
                pump.take()
            self._join_successor(source.journal)

    async def aclose(self) -> None:
        """End reading. Idempotent.

        Cancellation: safe — call again.
        """
        self._closed = True
        self._progress.set()
        await self._following.aclose()
        pumps = [*self._pumps.values(), *self._stopped]
        await _for_each(pumps, lambda pump: pump.cancel())
        for pump in pumps:
            await pump.aclose()
        if self._single is not None:
            await self._single.close_reader()
        elif isinstance(self._source, ReaderSource):
            await self._source.reader.aclose()
        await self._leave_list()

    async def _begin(self) -> None:
        source = self._source
        if self._checkpointed is not None:
            self._offsets = dict(self._checkpointed())
        if isinstance(source, SelectedSource):
            await self._select(source)
        else:
            specs = await fetch_specs(source.client, source.names)
            named = zip(source.names, specs, strict=True)
            await _for_each(named, lambda each: self._add(self._formats.of(*each)))
        self._begun = True
        # Invariant: tasks hold no reference to the iterator, so that a leaked one is detected.
        self._checkpointed = None

    def _add(self, journal_format: JournalFormat[Any], *, reset: bool = False) -> None:
        name = journal_format.journal
        # Race: another task than the waiting one may close the inputs, and the waiting one may have
        # been cancelled while it added journals.
        if self._closed or name in self._pumps:
            return
        origin = self._source
        request = origin.request(name, self._offsets.get(name))
        reader = origin.reader if isinstance(origin, ReaderSource) else None
        begin = self._begin_content
        source = JournalInput(origin.client, request, journal_format, begin, reader=reader)
        names = () if isinstance(origin, SelectedSource) else origin.names
        if len(names) == 1 and not self._read_ahead:
            self._single = source
            return
        pump = JournalPump(source, self._room, block=origin.block, selected=not names)
        self._pumps[name] = pump
        if reset:
            pump.put(ArrivalKind.RESET)
        pump.start()

    async def _read_single(self, source: JournalInput[C]) -> Arrival[C]:
        if self._single_ended:
            if source.owned:
                await source.close_reader()
            raise StopAsyncIteration
        source.open_reader(block=self._source.block)
        try:
            return await source.next_arrival()
        except StopAsyncIteration:
            if self._closed:
                raise  # The reader hasn't reached the end of its request.
            arrival = Arrival(source, ArrivalKind.END)
        except Exception as error:  # noqa: BLE001 - raised by the iterator, with its journal.
            if self._closed:
                raise StopAsyncIteration from None
            if not (isinstance(error, OffsetNotYetAvailableError) and source.owned):
                return Arrival(source, ArrivalKind.ERROR, error=error)
            arrival = Arrival(source, ArrivalKind.LEFT)
        self._single_ended = True
        return arrival

    def _hand_out(self, pump: JournalPump[C]) -> Arrival[C]:
        arrival = pump.take()
        if pump.arrivals:
            self._make_ready(pump)
        if arrival.kind is ArrivalKind.ERROR:
            self._failed = pump
        elif arrival.kind in {ArrivalKind.LEFT, ArrivalKind.END}:
            name = pump.source.journal
            del self._pumps[name]
            self._parked.discard(pump)
            if pump.running:
                self._stop(pump)
            if pump.source.offset:  # Otherwise the journal is still read from its start.
                self._offsets[name] = pump.source.offset
            self._join_successor(name)
        return arrival

    def _make_ready(self, pump: JournalPump[C]) -> None:
        if not pump.is_queued:
            pump.is_queued = True
            self._ready.append(pump)
            self._progress.set()

    def _stop(self, pump: JournalPump[C]) -> None:
        pump.stop()
        self._stopped = {each for each in self._stopped if each.running}
        self._stopped.add(pump)

    # Selected journals.

    async def _select(self, source: SelectedSource) -> None:
        selection = source.selection
        if isinstance(selection, pb.LabelSelector):
            await self._leave_list()
            if not source.block:
                listing = await source.client.list(selection)
                await _for_each(listing.journals, self._join)
                return
            if self._closed:
                return
            selection = self._entered = source.client.watch(selection)
            await selection.__aenter__()
        elif not selection.is_live:
            self._entered = selection
            await selection.__aenter__()
        if source.block:
            self._following.start(self._follow(selection), f"gazette-read-list {source}")
        else:
            listing = await selection.ready()
            await _for_each(listing.journals, self._join)
            await self._leave_list()

    async def _leave_list(self) -> None:
        # Race: the list stays known until it's closed, in case closing is cancelled.
        if self._entered is not None:
            await self._entered.aclose()
            self._entered = None

    async def _follow(self, watched: WatchedList) -> None:
        try:
            is_first = True
            async for changes in watched.changes():
                await self._apply(changes, is_first=is_first)
                is_first = False
        except Exception as error:  # noqa: BLE001 - raised by the next call, which begins anew.
            self._errors.append(error)
            self._begun = False
        else:
            # A list closed by its owner ends reading of its journals.
            await _for_each([*self._pumps], self._leave)
        finally:
            self._progress.set()

    async def _apply(self, changes: ListChanges, *, is_first: bool) -> None:
        gone = {journal.spec.name for journal in changes.removed}
        if is_first:
            gone.update(self._pumps)
        if gone:
            gone.difference_update(journal.spec.name for journal in changes.added)
        await _for_each(gone, self._leave)
        await _for_each(changes.added, self._join)
        # Race: a replay may wait for content that a recreated journal won't have soon.
        await self._void.aclose()
        for change in changes.changed:
            pump = self._pumps.get(change.after.spec.name)
            if pump is None:
                self._join(change.after)
            else:
                pump.listed_anew()
                self._adopt(pump, change.after.spec)

    def _leave(self, name: str) -> None:
        self._successors.pop(name, None)
        pump = self._pumps.get(name)
        if pump is not None:
            pump.leave()

    def _join(self, journal: pb.ListResponse.Journal) -> None:
        spec, revision = journal.spec, journal.create_revision
        name = spec.name
        known = self._revisions.get(name, 0)
        # Wire: some versions of brokers don't report it.
        recreated = 0 not in {known, revision} and known != revision
        self._revisions[name] = revision or known
        if recreated:
            self._recreated.add(name)
        pump = self._pumps.get(name)
        if pump is None:
            self._join_now(spec)
        elif self._source.block:
            # Race: the journal may be about to leave, and then rejoins after the content read.
            self._successors[name] = spec
            if recreated:
                pump.source.is_void = True
                if pump.source.replaying is not None:
                    self._void.add(pump.source.replaying)
                self._stop(pump)
            else:
                pump.stay()
                self._adopt(pump, spec)

    def _adopt(self, pump: JournalPump[C], spec: pb.JournalSpec) -> None:
        """Note the newest specification of a journal that is read."""
        journal_format = self._format_of(spec)
        if journal_format is None:
            self._leave(spec.name)
        elif journal_format is not pump.source.format:
            # The journal rejoins after the content read.
            self._successors[spec.name] = spec
            pump.leave()

    def _join_successor(self, name: str) -> None:
        spec = self._successors.pop(name, None)
        if spec is not None and not self._closed:
            self._join_now(spec)

    def _join_now(self, spec: pb.JournalSpec) -> None:
        name = spec.name
        journal_format = self._format_of(spec)
        if journal_format is None:
            return
        reset = name in self._recreated
        if reset:
            self._recreated.discard(name)
            self._offsets[name] = 0
        try:
            self._add(journal_format, reset=reset)
        except Exception as error:  # noqa: BLE001 - raised by the next call.
            self._report(error)

    def _format_of(self, spec: pb.JournalSpec) -> JournalFormat[Any] | None:
        """Return the format of a journal; or None after reporting the error."""
        try:
            return self._formats.of(spec.name, spec)
        except Exception as error:  # noqa: BLE001 - raised by the next call.
            self._report(error)
            return None

    def _report(self, error: Exception) -> None:
        self._errors.append(error)
        self._progress.set()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._source} open={self.open}>"
