"""What iterators of messages have in common: a queue of messages which are ready."""

from __future__ import annotations

import asyncio
import logging
import warnings
from abc import abstractmethod
from collections import deque
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar

from gazette_aio.aio.owner import Owner
from gazette_aio.message.adapters.base import FrameUUIDAdapter, PlacedAdapter
from gazette_aio.message.envelopes.splitter import RUN_LIMIT, JournalSplitter, framing_error
from gazette_aio.message.envelopes.stamps import EnvelopeBuilder
from gazette_aio.message.reading.batches import EnvelopeBatch
from gazette_aio.message.reading.inputs import Inputs
from gazette_aio.message.reading.sources import (
    Arrival,
    ArrivalKind,
    JournalInput,
    Start,
    open_source,
)
from gazette_aio.message.uuid import clock_from_datetime
from gazette_aio.protocol.errors import ConfigurationError, FramingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pyarrow as pa

    import gazette_aio.protocol as pb
    from gazette_aio.client import JournalClient, RetryReader, WatchedList
    from gazette_aio.message.adapters.base import Adapter
    from gazette_aio.message.envelopes.envelope import Envelope
    from gazette_aio.message.framing import Framing
    from gazette_aio.message.reading.arrow import ArrowBatches
    from gazette_aio.message.sequencing.checkpoint import SequencerCheckpoint

T = TypeVar("T")
_logger = logging.getLogger(__name__)

DEFAULT_BUFFER_BYTES = 4 << 20
"""Default limit of the content which is read ahead, over all journals of an iterator."""

_TURN = 512
"""Messages which are decoded and delivered before the event loop has a turn."""

_ACK = 2
_UNDECODABLE = 64


def splitter_factory(
    adapter: Adapter[Any], *, strict_uuid: bool, max_frame_bytes: int
) -> Callable[[str, Framing, int], JournalSplitter]:
    """Return what makes splitters into envelopes of an adapter's messages."""

    def make(journal: str, framing: Framing, offset: int) -> JournalSplitter:
        return JournalSplitter(
            framing.decoder(offset, max_frame_bytes=max_frame_bytes),
            EnvelopeBuilder(journal, adapter, strict=strict_uuid),
        )

    return make


class MessageIterator(Owner, Generic[T]):
    """Base of iterators of messages.

    Messages are split, sequenced and decoded in runs of a chunk of content, and delivered from a
    queue without touching the event loop. Only an empty queue suspends.
    """

    def __init__(
        self,
        source: RetryReader | str | Iterable[str] | pb.LabelSelector | WatchedList,
        adapter: Adapter[T],
        *,
        client: JournalClient | None,
        block: bool,
        start: Start,
        on_error: Literal["raise", "skip"],
        skip_acks: bool,
        strict_uuid: bool,
        max_frame_bytes: int,
        buffer_bytes: int,
        direct: bool | None,
    ) -> None:
        if on_error not in {"raise", "skip"}:
            raise ConfigurationError(f"on_error is {on_error!r} (expected 'raise' or 'skip')")
        self.adapter: Adapter[T] = adapter
        self._skipped = 0
        self._source = open_source(source, client, block=block, start=start, direct=direct)
        self._skip_errors = on_error == "skip"
        self._skip_acks = skip_acks
        self._strict_uuid = strict_uuid
        self._max_frame_bytes = max_frame_bytes
        self._buffer_bytes = buffer_bytes
        self._allow_replay_gaps = False
        self._start_clock = clock_from_datetime(start) if isinstance(start, datetime) else 0
        self._decodes = not isinstance(adapter, FrameUUIDAdapter)  # Ahead of envelopes.
        self._uuid_place = adapter.uuid_place if isinstance(adapter, PlacedAdapter) else None
        self._behind_uuid = 0
        if self._uuid_place is not None:
            self._behind_uuid = self._uuid_place.uuid_end
        # What's behind the UUID of acknowledgements which can't be decoded.
        self._undecodable: set[bytes] = set()
        self._make_splitter = splitter_factory(
            adapter, strict_uuid=strict_uuid, max_frame_bytes=max_frame_bytes
        )
        self._inputs = Inputs(
            self._source,
            self._make_splitter,
            offsets=self._start_offsets,
            buffer_bytes=buffer_bytes,
        )
        self._ready: deque[Envelope[T]] = deque()
        self._stopped: FramingError | None = None  # Raised once what's ready is delivered.
        # Whose content may hold another run.
        self._current: JournalInput[JournalSplitter] | None = None
        self._unpaused = 0  # Messages which were delivered since the event loop had a turn.
        self._is_read = False  # Envelopes were asked for.
        self._arrow: ArrowBatches | None = None
        self._closed = False

    @property
    def skipped(self) -> int:
        """Number of frames which `on_error="skip"` skipped."""
        return self._skipped if self._arrow is None else self._arrow.skipped

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Envelope[T]:
        """Return the next message.

        Cancellation: safe.

        Raises:
            FramingError: Content of a journal can't be split or decoded, or read. Iteration may go
                on behind it.
        """
        ready = self._ready
        if not ready:
            await self._fill()
        return ready.popleft()

    def batches(self) -> Batches[T]:
        """Return an async iterator of the same messages, as lists of what's ready at once.

        Each list is of messages of one journal, at least one and at most about a thousand. Both
        ways of iteration may be used in turn.
        """
        return Batches(self)

    def arrow(
        self,
        schema: pa.Schema | None = None,
        *,
        acks: bool = False,
        batch_bytes: int = 4 << 20,
        max_pending_bytes: int = 64 << 20,
    ) -> ArrowBatches:
        """Return an async iterator of the same messages, as Arrow record batches.

        Each batch is of one journal. Its columns are `_journal`, `_begin`, `_end`, `_timestamp` (of
        the clock), `_clock`, `_producer` and `_flags`; and then `_value`, the bytes of the message,
        or the columns of its document.

        The first call of a process imports pyarrow, unless that's done: some 100 ms.

        It's the only form of iteration from then on. `checkpoint()`, `skipped` and `aclose()` of
        this iterator tell of the batches, and close them.

        Args:
            schema: Columns of documents. See the guide for what their types take.
            acks: Whether acknowledgements are rows, too. Columns of documents are null in them.
            batch_bytes: Content which is split, sequenced and decoded at once. A batch is larger
                if it commits messages of transactions which began before.
            max_pending_bytes: Limit of the messages which are retained as they may commit. A
                transaction which outgrows it is read again once it commits.

        Raises:
            ConfigurationError: If pyarrow isn't installed, or documents of the adapter can't have
                columns of the schema.
            RuntimeError: If messages were read in another form.
        """
        if self._arrow is not None or self._is_read:
            raise RuntimeError("messages were read in another form: arrow() is the only one")
        try:
            from gazette_aio.message.reading.arrow import ArrowBatches, record_options  # noqa: PLC0415
        except ImportError as error:
            text = "Arrow batches take pyarrow (pip install gazette-aio[arrow])"
            raise ConfigurationError(text) from error
        options = record_options(
            self.adapter,
            schema,
            acks=acks,
            batch_bytes=batch_bytes,
            skip_errors=self._skip_errors,
            strict_uuid=self._strict_uuid,
            max_frame_bytes=self._max_frame_bytes,
            start_clock=self._start_clock,
        )
        self._arrow = ArrowBatches(
            self._source,
            options,
            self._arrow_checkpoint(),
            buffer_bytes=self._buffer_bytes,
            max_pending_bytes=max_pending_bytes,
            allow_replay_gaps=self._allow_replay_gaps,
            explain=self._explain,
        )
        return self._arrow

    def _arrow_checkpoint(self) -> SequencerCheckpoint | None:
        """Return what batches go on from; or None if messages needn't be committed."""
        return None

    async def next_batch(self) -> EnvelopeBatch[T]:
        """Return the next messages as a non-empty list, all of one journal.

        Cancellation: safe.

        Raises:
            StopAsyncIteration: At the end of content.
            FramingError: As of iteration.
        """
        if not self._ready:
            await self._fill()
        batch: EnvelopeBatch[T] = EnvelopeBatch(self._ready)
        self._ready.clear()
        try:
            while len(batch) < _TURN and self._stopped is None and self._advance():
                batch.extend(self._ready)
                self._ready.clear()
        except FramingError as error:
            self._stopped = error
        self._unpaused += len(batch)
        return batch

    async def _fill(self) -> None:
        """Make at least one message ready, or raise."""
        if self._arrow is not None:
            raise RuntimeError("messages are read by arrow(), and in no other form")
        self._is_read = True
        if self._closed:
            raise StopAsyncIteration
        if self._unpaused >= _TURN:
            # A loop over messages which are all at hand lets others have turns, too.
            self._unpaused = 0
            await asyncio.sleep(0)
        while True:
            stopped = self._stopped
            if stopped is not None:
                self._stopped = None
                self._passed(stopped)
                raise stopped
            if self._advance():
                self._unpaused += len(self._ready)
                return
            if self._stopped is None:
                await self._more()

    @abstractmethod
    def _advance(self) -> bool:
        """Do what takes no waiting, and return whether messages are ready."""

    async def _more(self) -> None:
        """Wait for something which lets `_advance()` go on."""
        await self._next_content()

    def _passed(self, error: FramingError) -> None:
        """Take note that `error` is about to be raised."""

    def _next_run(self) -> Sequence[Envelope[Any]]:
        """Return the next envelopes of the content at hand.

        It's empty if there are none; or if many frames were skipped, for a pause.
        """
        current = self._current
        pause_at = self._skipped + RUN_LIMIT
        while current is not None and self._skipped < pause_at:
            try:
                run = current.splitter.next_run()
            except FramingError as error:
                if not self._skip_errors:
                    raise self._explain(error) from error.__cause__
                self._skip(error)
                if error.kind != "unexpected_eof":
                    continue
                run = []
            if not run:
                self._current = None
            return run
        return []

    async def _next_content(self) -> None:
        """Wait for more content, unless there's some at hand."""
        # The event loop has its turn between runs, however fast content arrives.
        self._unpaused = 0
        await asyncio.sleep(0)
        if self._current is None:
            self._take(await self._inputs.next_arrival())

    def _take(self, arrival: Arrival[JournalSplitter]) -> None:
        source, kind = arrival.source, arrival.kind
        if kind is ArrivalKind.ERROR:
            assert arrival.error is not None
            splitter = source.splitter
            begin = splitter.offset
            wrapped = framing_error(arrival.error, splitter.journal, begin, begin, "read")
            raise self._explain(wrapped) from arrival.error
        if kind is ArrivalKind.RESET:
            self._forget(source.journal)
            return
        source.receive(arrival)
        if kind is ArrivalKind.CHUNK or kind is ArrivalKind.END:
            self._current = source

    def _forget(self, journal: str) -> None:
        """Take note that a journal was created anew."""

    @staticmethod
    def _explain(error: FramingError) -> FramingError:
        return error

    def _skip(self, error: FramingError) -> None:
        self._skipped += 1
        extra = {"journal": error.journal, "begin": error.begin, "end": error.end}
        _logger.debug("skipped a frame: %s", error, extra=extra)

    def _start_offsets(self) -> dict[str, int]:
        return {}

    def _decode(self, envelopes: Sequence[Envelope[Any]], begin: int) -> int:
        """Decode messages from index `begin` on and make them ready; return how many were seen.

        It ends behind as many as are handled without a pause, or at the first which can't be
        decoded: `_stopped` is set then.
        """
        decode, add, skip_acks = self.adapter.decode, self._ready.append, self._skip_acks
        index = begin
        end = min(begin + _TURN, len(envelopes))
        while index < end:
            try:
                for envelope in islice(envelopes, index, end):
                    if envelope.flags == _ACK:
                        if not skip_acks:
                            envelope.message = self._decode_ack(envelope)
                            add(envelope)
                    else:
                        envelope.message = decode(envelope.message)
                        add(envelope)
                    index += 1
            except Exception as error:  # noqa: BLE001 - handed on, with where it happened.
                bad = envelopes[index]
                wrapped = framing_error(error, bad.journal, bad.begin, bad.end, "decode")
                wrapped.__cause__ = error
                if not self._skip_errors:
                    explained = self._explain(wrapped)
                    explained.__cause__ = error
                    self._stopped = explained
                    return index
                self._skip(wrapped)
                index += 1
        return index

    def _decode_ack(self, envelope: Envelope[Any]) -> Any:
        frame: bytes = envelope.message
        place = self._uuid_place
        is_placed = place is not None and frame.startswith(place.prefix)
        # Hot: acknowledgements differ by their UUID only, and exceptions are slow.
        rest = frame[self._behind_uuid :]
        if is_placed and rest in self._undecodable:
            return None
        try:
            return self.adapter.decode(frame)
        except Exception as error:  # noqa: BLE001
            # Types with required members can't be made of an acknowledgement.
            _logger.debug("acknowledgement isn't a message: %s", error)
            if is_placed and len(self._undecodable) < _UNDECODABLE:
                self._undecodable.add(rest)
            return None

    async def aclose(self) -> None:
        """End reading, of a reader which was handed in, too. Idempotent.

        Cancellation: safe — call again.
        """
        self._closed = True
        self._ready.clear()
        if self._arrow is not None:
            await self._arrow.aclose()
        await self._inputs.aclose()

    def __del__(self) -> None:
        inputs: Inputs[JournalSplitter] | None = getattr(self, "_inputs", None)
        if inputs is not None and inputs.running:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)

    def __repr__(self) -> str:
        state = f"ready={len(self._ready)} open={self._inputs.open}"
        if self._closed:
            state = "closed"
        return f"<{type(self).__name__} of {self._source} {state} skipped={self.skipped}>"


class Batches(Generic[T]):
    """Async iterator of lists of messages. Made by `batches()`."""

    def __init__(self, iterator: MessageIterator[T]) -> None:
        self._iterator = iterator

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EnvelopeBatch[T]:
        return await self._iterator.next_batch()
