"""Reading messages as Arrow record batches."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

from gazette_aio.aio.closing import Closing
from gazette_aio.message.columnar.documents.decoder import DocumentDecoder
from gazette_aio.message.columnar.journals import RecordsByJournal
from gazette_aio.message.columnar.outputs import RecordOptions
from gazette_aio.message.columnar.records import record_schema
from gazette_aio.message.envelopes.splitter import framing_error
from gazette_aio.message.reading.inputs import Inputs
from gazette_aio.message.reading.replay import check_replay_end
from gazette_aio.message.reading.sources import ArrivalKind, SelectedSource
from gazette_aio.message.sequencing.producer import as_nanoseconds
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
    from gazette_aio.message.columnar.journal import JournalRecords
    from gazette_aio.message.columnar.replayed import ReplayRecords
    from gazette_aio.message.reading.sources import JournalInput, Source
    from gazette_aio.message.sequencing.checkpoint import SequencerCheckpoint

INLINE_BYTES = 8 << 10
"""Content which is worked on without a thread: that takes about as long as to reach one."""

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
        ConfigurationError: If documents of the adapter can't have columns of the schema, or sizes
            are out of range.
    """
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
        self._is_sequenced = checkpoint is not None
        self._allow_replay_gaps = allow_replay_gaps
        # Invariant: tasks don't keep this from being found leaked.
        self._records = RecordsByJournal(
            options, checkpoint, max_pending_bytes=max_pending_bytes, explain=explain
        )
        self._inputs: Inputs[JournalRecords] = Inputs(
            source,
            self._records.begin,
            offsets=self._records.offsets,
            buffer_bytes=max(buffer_bytes, 2 * options.batch_bytes),
            read_ahead=True,
        )
        self._current: JournalInput[JournalRecords] | None = None
        self._reader: RetryReader | None = None  # Of a replay.
        self._retired = Closing()  # Readers of replays which ended.
        self._threads: ThreadPoolExecutor | None = None
        self._work: Future[bool] | None = None
        self._closed = False

    @property
    def skipped(self) -> int:
        """Number of messages which were left out as they can't be decoded."""
        return self._records.skipped

    def checkpoint(self, prune_horizon: timedelta | int = 0) -> SequencerCheckpoint:
        """Return a checkpoint of what was delivered. See `ReadCommittedIter.checkpoint()`.

        Raises:
            ConfigurationError: Uncommitted messages are read, of which there's none.
        """
        if not self._is_sequenced:
            raise ConfigurationError("there's no checkpoint of uncommitted messages")
        return self._records.checkpoint(as_nanoseconds(prune_horizon))

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
                await self._retired.aclose()
            current = self._current
            if current is None:
                await self._next_content()
                continue
            records = current.splitter
            if self._work is None:
                batch = records.take()
                if batch is not None:
                    self._work_ahead(current)
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
                if self._closed:
                    raise StopAsyncIteration from None
                self._give_up_deleted(current, error)
                raise ReplayError(f"reading committed message: {error}") from error
        raise StopAsyncIteration

    async def _do_work(self, records: JournalRecords) -> bool:
        """Make the next outputs, and return False if that takes more content."""
        work = self._work
        if work is None:
            if self._records.bytes_of_step(records) <= INLINE_BYTES:
                worked = self._records.step(records)
                # The loop has its turn between batches, however fast content arrives.
                await asyncio.sleep(0)
                return worked
            work = self._submit(records)
        # Race: what the thread does isn't undone if waiting for it is cancelled. The next call
        # finds it.
        await _done(work)
        self._work = None
        return work.result()

    def _submit(self, records: JournalRecords) -> Future[bool]:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, "gazette-arrow")
        self._work = self._threads.submit(self._records.step, records)
        return self._work

    def _work_ahead(self, current: JournalInput[JournalRecords]) -> None:
        """Let the thread go on with content at hand, while a batch is made use of."""
        records = current.splitter
        # Invariant: a checkpoint is as of what was handed out, which must be all of what was
        # processed before.
        if not records.is_drained or self._inputs.are_others_ready(current):
            return
        self._feed_more(current)
        if self._records.bytes_of_step(records) > INLINE_BYTES:
            self._submit(records)

    def _feed_more(self, current: JournalInput[JournalRecords]) -> None:
        # Chunks are of one size mostly: what they add up to is one region.
        records = current.splitter
        for chunk in self._inputs.more(current, self._options.batch_bytes - records.at_hand):
            records.feed(chunk, records.fed_through)

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
                # What began to be read was made of what was known of its predecessor.
                self._records.forget(source.journal)
                source.splitter = self._records.begin(source.journal, source.framing, source.offset)
            case ArrivalKind.LEFT:
                self._records.leave(source.splitter)
            case kind:
                source.receive(arrival)
                if kind is ArrivalKind.CHUNK:
                    self._feed_more(source)
                self._current = source

    async def _next_replay_content(
        self, current: JournalInput[JournalRecords], replay: ReplayRecords
    ) -> None:
        if current.is_void:
            raise ReplayError(f"replay reader: {current.journal} was created anew")
        wanted = replay.wanted
        try:
            if wanted is not None:
                reader = current.replay(wanted.begin, wanted.end)
                self._reader = current.replaying = reader
                replay.open()
            await self._read_replay(replay)
        except ReplayError:
            raise
        except GazetteError as error:
            raise ReplayError(f"replay reader: {error}") from error

    def _give_up_deleted(self, current: JournalInput[JournalRecords], error: ReplayError) -> None:
        """Go without the rest of a commit, if its journal was deleted and others are read."""
        selected = isinstance(self._source, SelectedSource)
        is_gone = current.is_void or isinstance(error.__cause__, JournalNotFoundError)
        if selected and is_gone:
            self._current = None
            self._records.forget(current.journal)
            self._inputs.abandon(current)  # One of its name may begin.

    async def _read_replay(self, replay: ReplayRecords) -> None:
        reader = self._reader
        assert reader is not None
        size = 0
        while size < REPLAY_BYTES:
            try:
                chunk = await anext(reader)
            except StopAsyncIteration:
                self._end_replay(replay, reader.offset)
                return
            except OffsetJumpError:
                if not self._allow_replay_gaps:
                    raise
                chunk = b""
            replay.feed(chunk, reader.offset - len(chunk))
            size += len(chunk)

    def _end_replay(self, replay: ReplayRecords, offset: int) -> None:
        end = replay.end_offset
        check_replay_end(offset, replay.through, end, allow_gaps=self._allow_replay_gaps)
        if replay.through < end:
            replay.feed(b"", end)
        self._retire()
        replay.end()

    def _retire(self) -> None:
        if self._reader is not None:
            self._retired.add(self._reader)
            self._reader = None

    async def aclose(self) -> None:
        """End reading. Idempotent.

        Cancellation: safe — call again.
        """
        self._closed = True
        await self._inputs.aclose()
        self._retire()
        await self._retired.aclose()
        if self._work is not None:
            await _done(self._work)
            self._work = None
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None

    def __del__(self) -> None:
        inputs: Any = getattr(self, "_inputs", None)
        if inputs is not None and (inputs.running or self._threads is not None):
            warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"journals={self._records.open}"
        return f"<ArrowBatches of {self._source} {state} skipped={self.skipped}>"


async def _done(work: Future[bool]) -> None:
    """Wait until work is done, and leave its outcome to others.

    Cancellation: safe.
    """
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def tell(_: Future[bool]) -> None:
        # Race: once the loop is closed, nobody waits.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(done.set)

    work.add_done_callback(tell)
    await done.wait()
