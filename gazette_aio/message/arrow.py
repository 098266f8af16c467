"""Reading messages as Arrow record batches."""

from __future__ import annotations

import asyncio
import warnings
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Self

from gazette_aio.message.checkpoint import ProducerState, SequencerCheckpoint
from gazette_aio.message.columnar.documents import DocumentDecoder
from gazette_aio.message.columnar.journal import JournalRecords
from gazette_aio.message.columnar.outputs import RecordOptions
from gazette_aio.message.columnar.records import record_schema
from gazette_aio.message.columnar.sequencer import ColumnarSequencer
from gazette_aio.message.inputs import Inputs
from gazette_aio.message.producer import as_nanoseconds
from gazette_aio.message.sources import ArrivalKind, SelectedSource
from gazette_aio.message.splitter import framing_error
from gazette_aio.protocol.errors import (
    ConfigurationError,
    FramingError,
    GazetteError,
    JournalNotFoundError,
    OffsetJumpError,
    ReplayError,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    import pyarrow as pa

    from gazette_aio.client import RetryReader
    from gazette_aio.message.adapters.base import Adapter
    from gazette_aio.message.columnar.replayed import ReplayRecords
    from gazette_aio.message.framing import Framing
    from gazette_aio.message.sources import JournalInput, Source

PENDING_BYTES = 64 << 20
"""Default limit of the messages which are retained as they may commit."""

BATCH_BYTES = 4 << 20
"""Default size of the content which is worked on at once."""

INLINE_BYTES = 32 << 10
"""Content up to which a thread would take longer to reach than the work takes."""

REPLAY_BYTES = 1 << 20
"""Content of a replay which is worked on at once."""


def record_options(
    adapter: Adapter[Any],
    schema: pa.Schema | None,
    *,
    acks: bool,
    batch_bytes: int,
    skip_errors: bool,
    strict_uuid: bool,
    max_frame_bytes: int,
    start_clock: int,
) -> RecordOptions:
    """Return what batches are made of.

    Raises:
        ConfigurationError: If documents of the adapter can't have columns of the schema.
    """
    if batch_bytes < 1:
        raise ConfigurationError(f"batch_bytes is {batch_bytes} (expected 1 or more)")
    documents = None if schema is None else DocumentDecoder(adapter, schema)
    fields: list[Any] = [] if schema is None else list(schema)
    if acks and not all(field.nullable for field in fields):
        raise ConfigurationError("columns of acknowledgements are null, which the schema forbids")
    return RecordOptions(
        adapter=adapter,
        documents=documents,
        acks=acks,
        skip_errors=skip_errors,
        strict_uuid=strict_uuid,
        max_frame_bytes=max_frame_bytes,
        batch_bytes=batch_bytes,
        start_clock=start_clock,
    )


class ArrowBatches:
    """Async iterator of record batches. Made by `arrow()` of an iterator, which it belongs to.

    Each batch is of one journal. Content is split, sequenced and decoded a batch at a time, in a
    thread, while more of it arrives.

    Args:
        source: What to read.
        options: What to make of it.
        checkpoint: What to go on from; or None to read messages as they are, uncommitted ones
            included.
        buffer_bytes: Limit of content which is read ahead.
        max_pending_bytes: Limit of messages which are retained as they may commit, over all
            journals. A transaction which outgrows it is read again once it commits.
        allow_replay_gaps: Go on if content which must be read again is no longer there.
        explain: Returns an error as it's to be raised.
    """

    def __init__(
        self,
        source: Source,
        options: RecordOptions,
        checkpoint: SequencerCheckpoint | None,
        *,
        buffer_bytes: int,
        max_pending_bytes: int,
        allow_replay_gaps: bool,
        explain: Callable[[FramingError], FramingError],
    ) -> None:
        if max_pending_bytes < 0:
            raise ConfigurationError(
                f"max_pending_bytes is {max_pending_bytes} (expected 0 or more)"
            )
        documents = options.documents
        self.schema: pa.Schema = record_schema(None if documents is None else documents.schema)
        """Schema of the batches."""
        self._source = source
        self._options = options
        self._explain = explain
        self._sequenced = checkpoint is not None
        self._offsets = dict(checkpoint.offsets) if checkpoint else {}
        self._producers: dict[str, list[ProducerState]] = {}
        for state in checkpoint.producers if checkpoint else ():
            self._producers.setdefault(state.journal, []).append(state)
        self._max_pending_bytes = max_pending_bytes
        self._pending: dict[JournalRecords, int] = {}
        self._pending_bytes = 0
        self._allow_replay_gaps = allow_replay_gaps
        self._records: dict[str, JournalRecords] = {}
        self._inputs: Inputs[JournalRecords] = Inputs(
            source,
            self._begin,
            offsets=lambda: self._offsets,
            buffer_bytes=max(buffer_bytes, 2 * options.batch_bytes),
            read_ahead=True,
        )
        self._current: JournalInput[JournalRecords] | None = None
        self._skipped_before = 0
        self._reader: RetryReader | None = None  # Of a replay.
        self._retired: list[RetryReader] = []  # Of replays which ended, to be closed.
        self._threads: ThreadPoolExecutor | None = None
        self._work: Future[bool] | None = None
        self._closed = False

    def _begin(self, journal: str, framing: Framing, offset: int) -> JournalRecords:
        sequencer = None
        if self._sequenced:
            # What was known of a journal which was read before, and is again, is kept.
            self._settle(journal)
            sequencer = ColumnarSequencer(
                journal, offset=offset, producers=self._producers.get(journal, ())
            )
        self._retire_records(journal)
        records = JournalRecords(
            journal, framing, offset, self._options, sequencer=sequencer, explain=self._explain
        )
        self._records[journal] = records
        return records

    def _settle(self, journal: str, prune_horizon_ns: int = 0) -> None:
        """Take over what was handed out of a journal into offsets and producer states."""
        records = self._records.get(journal)
        if records is not None and records.is_read:
            self._offsets[journal], self._producers[journal] = records.checkpoint(prune_horizon_ns)

    def _forget(self, journal: str) -> None:
        self._retire_records(journal)
        self._offsets.pop(journal, None)
        self._producers.pop(journal, None)

    def _retire_records(self, journal: str) -> None:
        records = self._records.pop(journal, None)
        if records is not None:
            self._pending_bytes -= self._pending.pop(records, 0)
            self._skipped_before += records.skipped

    @property
    def skipped(self) -> int:
        """Number of messages which were left out as they can't be decoded."""
        return self._skipped_before + sum(records.skipped for records in self._records.values())

    def checkpoint(self, prune_horizon: timedelta | int = 0) -> SequencerCheckpoint:
        """Return a checkpoint of what was delivered. See `ReadCommittedIter.checkpoint()`."""
        if self._work is not None:
            # Race: a call which was cancelled left work behind, which is over in a moment.
            wait([self._work])
        horizon = as_nanoseconds(prune_horizon)
        for journal in self._records:
            self._settle(journal, horizon)
        states = [state for states in self._producers.values() for state in states]
        return SequencerCheckpoint(dict(self._offsets), tuple(states))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        """Return the next batch, which isn't empty.

        Cancellation: safe.

        Raises:
            FramingError: Content of a journal can't be split, decoded or read. Iteration may go on
                behind it.
            ReplayError: Content of a transaction can't be read again. Iteration tries once more.
        """
        while not self._closed:
            if self._retired:
                await self._close_retired()
            current = self._current
            if current is None:
                await self._next_content()
                continue
            records = current.splitter
            if self._work is None:
                batch = records.take()
                if batch is not None:
                    return batch
            try:
                if await self._do_work(records):
                    continue
                replay = records.replay
                if replay is None:
                    self._current = None
                    continue
                await self._next_replay_content(current, replay)
            except ReplayError as error:
                # What can't be read is tried again by the next call.
                self._retire()
                if records.replay is not None:
                    records.replay.abort()
                self._give_up_deleted(current, error)
                raise ReplayError(f"reading committed message: {error}") from error
        raise StopAsyncIteration

    async def _do_work(self, records: JournalRecords) -> bool:
        """Make the next outputs, and return False if that takes more content."""
        work = self._work
        if work is None:
            if records.at_hand <= INLINE_BYTES:
                worked = self._step(records)
                # The loop has its turn between batches, however fast content arrives.
                await asyncio.sleep(0)
                return worked
            if self._threads is None:
                self._threads = ThreadPoolExecutor(1, "gazette-arrow")
            work = self._work = self._threads.submit(self._step, records)
        # Race: what the thread does isn't undone if waiting for it is cancelled. The next call
        # finds it.
        if not work.done():
            await asyncio.wait([asyncio.wrap_future(work)])
        self._work = None
        return work.result()

    def _step(self, records: JournalRecords) -> bool:
        worked = records.work()
        self._note_pending(records)
        excess = self._pending_bytes - self._max_pending_bytes
        if excess > 0:
            largest = max(self._pending, key=self._pending.__getitem__)
            largest.evict(max(self._pending[largest] - excess, 0))
            self._note_pending(largest)
        return worked

    def _note_pending(self, records: JournalRecords) -> None:
        now = records.pending_bytes
        self._pending_bytes += now - self._pending.pop(records, 0)
        if now:
            self._pending[records] = now

    async def _next_content(self) -> None:
        arrival = await self._inputs.next_arrival()
        source = arrival.source
        match arrival.kind:
            case ArrivalKind.ERROR:
                error = arrival.error
                assert error is not None
                at = source.splitter.offset
                raise self._explain(framing_error(error, source.journal, at, at, "read")) from error
            case ArrivalKind.RESET:
                self._forget(source.journal)
            case kind:
                source.receive(arrival)
                if kind is ArrivalKind.CHUNK:
                    at = arrival.begin + len(arrival.chunk)
                    for chunk in self._inputs.more(source, self._options.batch_bytes):
                        source.splitter.feed(chunk, at)
                        at += len(chunk)
                self._current = source

    async def _next_replay_content(
        self, current: JournalInput[JournalRecords], replay: ReplayRecords
    ) -> None:
        wanted = replay.wanted
        try:
            if wanted is not None:
                self._reader = current.replay(wanted.begin, wanted.end)
                replay.open()
            await self._read_replay(replay)
        except GazetteError as error:
            raise ReplayError(f"replay reader: {error}") from error

    def _give_up_deleted(self, current: JournalInput[JournalRecords], error: ReplayError) -> None:
        """Go without the rest of a commit, if its journal was deleted and others are read."""
        selected = isinstance(self._source, SelectedSource)
        if selected and isinstance(error.__cause__, JournalNotFoundError):
            self._inputs.abandon(current)
            self._current = None
            self._forget(current.journal)

    async def _read_replay(self, replay: ReplayRecords) -> None:
        reader = self._reader
        assert reader is not None
        size = 0
        while size < REPLAY_BYTES:
            try:
                chunk = await anext(reader)
            except StopAsyncIteration:
                self._retire()
                replay.end()
                return
            except OffsetJumpError:
                if not self._allow_replay_gaps:
                    raise
                continue
            replay.feed(chunk, reader.offset - len(chunk))
            size += len(chunk)

    def _retire(self) -> None:
        if self._reader is not None:
            self._retired.append(self._reader)
            self._reader = None

    async def _close_retired(self) -> None:
        # Race: a reader stays listed until it's closed, should that be cancelled.
        while self._retired:
            await self._retired[-1].aclose()
            self._retired.pop()

    async def aclose(self) -> None:
        """End reading. Idempotent.

        Cancellation: safe — call again.
        """
        self._closed = True
        await self._inputs.aclose()
        self._retire()
        await self._close_retired()
        if self._work is not None:
            await asyncio.wait([asyncio.wrap_future(self._work)])
            self._work = None
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None

    def __del__(self) -> None:
        inputs: Any = getattr(self, "_inputs", None)
        if inputs is not None and (inputs.running or self._threads is not None):
            warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"journals={len(self._records)}"
        return f"<ArrowBatches of {self._source} {state} skipped={self.skipped}>"
