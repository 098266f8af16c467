"""Async iterator of messages as Arrow record batches."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

from gazette_aio.aio.owner import Owner
from gazette_aio.message.columns.documents.decoder import DocumentDecoder, check_schema
from gazette_aio.message.columns.outputs import MAX_BATCH_BYTES, RecordMaker
from gazette_aio.message.columns.pyarrow_api import pa
from gazette_aio.message.columns.records import record_schema
from gazette_aio.message.framing import DEFAULT_MAX_FRAME_BYTES
from gazette_aio.message.reading.engine import JournalEngine
from gazette_aio.message.reading.pump import JournalPump
from gazette_aio.message.reading.reader import OutputReader
from gazette_aio.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from pyarrow import RecordBatch, Schema

    from gazette_aio.message.adapters.base import Adapter
    from gazette_aio.message.envelopes.envelope import Envelope
    from gazette_aio.message.envelopes.origin import JournalFormat
    from gazette_aio.message.envelopes.outputs import JournalOutputs
    from gazette_aio.message.reading.journal_input import Arrival, JournalInput
    from gazette_aio.message.reading.options import ReadOptions
    from gazette_aio.message.sequencing.checkpoint import SequencerCheckpoint
    from gazette_aio.protocol.errors import FramingError

INLINE_BYTES = 8 << 10
"""Size of content that is worked on without a thread: a switch of threads takes about as long."""


def _pump(source: JournalInput) -> JournalPump:
    assert isinstance(source, JournalPump), "journals are read ahead"
    return source


class RecordEngine(JournalEngine["RecordBatch"]):
    """Makes record batches of the content of journals.

    Args:
        adapter: Adapter of all messages; None if each journal has its own.
        schema: Schema of the documents; None to output their bytes.
        checkpoint: State to resume from; None to read all messages in journal order.
        options: Options of reading.
        acks: Whether acknowledgements are rows, too; of nulls, if documents are decoded.
        batch_bytes: Content that is split, sequenced and decoded at once.
        max_pending_bytes: Limit of the pending messages that are retained.
        explain: Returns the error to raise for an error.

    Raises:
        ConfigurationError: The schema doesn't fit documents of the adapter, or sizes are out of
            range.
    """

    def __init__(
        self,
        adapter: Adapter[Any] | None,
        schema: Schema | None,
        checkpoint: SequencerCheckpoint | None,
        options: ReadOptions,
        *,
        acks: bool,
        batch_bytes: int,
        max_pending_bytes: int,
        explain: Callable[[FramingError], FramingError],
    ) -> None:
        if max_pending_bytes < 0:
            text = f"max_pending_bytes is {max_pending_bytes} (expected 0 or more)"
            raise ConfigurationError(text)
        limit = options.get("max_frame_bytes", DEFAULT_MAX_FRAME_BYTES)
        for name, size in (("batch_bytes", batch_bytes), ("max_frame_bytes", limit)):
            if not 1 <= size <= MAX_BATCH_BYTES:
                # Arrays of Arrow have offsets of 32 bits.
                text = f"{name} is {size} (expected 1 to {MAX_BATCH_BYTES} for Arrow batches)"
                raise ConfigurationError(text)
        fields: list[Any] = [] if schema is None else list(schema)
        if acks and not all(field.nullable for field in fields):
            raise ConfigurationError(
                "columns of acknowledgements are null, which the schema forbids"
            )
        if schema is not None:
            check_schema(schema)
        super().__init__(
            checkpoint,
            {**options, "skip_acks": not acks},
            step_bytes=batch_bytes,
            max_pending_bytes=max_pending_bytes,
            explain=explain,
        )
        self._documents = schema
        self.schema: Schema = record_schema(schema)
        """Schema of the batches."""
        self._decoder: tuple[Adapter[Any], DocumentDecoder | None] | None = None  # The latest one.
        if adapter is not None:
            self._decoder_of(adapter)  # Raises before anything is read.

    def maker_of(self, journal_format: JournalFormat[Any]) -> RecordMaker:
        """Return the maker of record batches of a journal.

        Raises:
            ConfigurationError: The schema doesn't fit documents of the journal's adapter.
        """
        documents = self._decoder_of(journal_format.adapter)
        # A step commits a little more than its content, which isn't worth another batch.
        piece_bytes = 4 * self._step_bytes
        return RecordMaker(
            journal_format.journal, documents, self.bad, self._start_clock, piece_bytes
        )

    def _decoder_of(self, adapter: Adapter[Any]) -> DocumentDecoder | None:
        if self._decoder is None or self._decoder[0] is not adapter:
            decoder = None
            if self._documents is not None:
                threads = pa.cpu_count() > 1
                decoder = DocumentDecoder(adapter, self._documents, use_threads=threads)
            self._decoder = adapter, decoder
        return self._decoder[1]

    def room(self, content: JournalOutputs[RecordBatch]) -> int | None:
        """Return how many more bytes a step could use; None if no step may run ahead now."""
        # Invariant: a checkpoint is as of the delivered outputs, so all outputs of earlier steps
        # must be delivered.
        return self._step_bytes - content.buffered if content.is_drained else None

    def bytes_of_step(self, content: JournalOutputs[RecordBatch]) -> int:
        """Return about how many bytes a step of a journal may touch."""
        at_hand = content.buffered if content.is_drained else self._step_bytes
        if self.pending_bytes + at_hand > self._max_pending_bytes:
            return at_hand + self.pending_bytes  # Any of these may be evicted.
        return at_hand + self._pending.get(content, (0, 0))[0]


class RecordReader(OutputReader["RecordBatch"]):
    """Reads record batches, which a thread makes while more content arrives. See `OutputReader`."""

    _engine: RecordEngine
    _threads: ThreadPoolExecutor | None = None
    _future: asyncio.Future[bool] | None = None  # Of the thread's work.

    async def _next(self) -> RecordBatch:
        await self._finish_work()
        self.settle()
        batch = await super()._next()
        self.settle()
        self._work_ahead()
        return batch

    def _receive(self, arrival: Arrival) -> None:
        super()._receive(arrival)
        self._receive_more(arrival.source)

    def _receive_more(self, source: JournalInput) -> int | None:
        """Receive content at hand that directly follows, up to the size of one step.

        Returns:
            How many more bytes the step could use. See `RecordEngine.room()`.
        """
        room = self._engine.room(source.content)
        for arrival in _pump(source).take_chunks(room) if room is not None else ():
            super()._receive(arrival)
        return self._engine.room(source.content)

    async def _work(self, source: JournalInput) -> None:
        if self._engine.bytes_of_step(source.content) <= INLINE_BYTES:
            await super()._work(source)
            await self._pause()  # More content may be at hand for the next step.
            return
        # Hot: each step has a cost of its own, which a chunk alone isn't worth.
        room = self._engine.room(source.content)
        if room is not None and room > 0:
            await self._inputs.gather(_pump(source), room)
            self._receive_more(source)
        # Race: another task may have closed the reader.
        if not self._closed:
            self._begin_work(source)
            await self._finish_work()

    def _work_ahead(self) -> None:
        """Let the thread work on content at hand while the caller uses outputs."""
        source, inputs = self._current, self._inputs
        if source is not None and not inputs.are_others_ready(source):
            room = self._receive_more(source)
            is_worthwhile = self._engine.bytes_of_step(source.content) > INLINE_BYTES
            if is_worthwhile and room is not None and inputs.has_gathered(_pump(source), room):
                self._begin_work(source)

    def _begin_work(self, source: JournalInput) -> None:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, "gazette-arrow")
        loop = asyncio.get_running_loop()
        self._future = loop.run_in_executor(self._threads, self._engine.work, source.content)

    async def _finish_work(self) -> None:
        # Race: cancelling this wait doesn't undo the thread's work. The next call finds the work.
        if (future := self._future) is not None:
            await asyncio.wait((future,))
            # Race: another task may wait, too, which closes the reader.
            if self._future is future:
                self._future = None
                self._note_work(future.result)

    def settle(self, undelivered: Sequence[Envelope[Any]] = ()) -> None:
        """Declare outputs delivered. See `OutputReader`."""
        # Race: the outputs before were delivered when a thread began to make others.
        if self._future is None:
            super().settle(undelivered)

    async def aclose(self) -> None:
        """End reading. Idempotent.

        Cancellation: safe — call again.
        """
        await super().aclose()
        await self._finish_work()
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None

    @property
    def _is_running(self) -> bool:
        return self._threads is not None or super()._is_running

    def __del__(self) -> None:
        super().__del__()
        if self._threads is not None:
            self._threads.shutdown(wait=False)


class ArrowBatches(Owner):
    """Async iterator of record batches, made by `arrow()` of a message iterator.

    Each batch is of one journal. A thread splits, sequences and decodes content batch by batch,
    while more content arrives.

    Args:
        reader: Reads batches.
        records: Makes batches.
    """

    def __init__(self, reader: RecordReader, records: RecordEngine) -> None:
        self._reader = reader
        self._records = records
        self.schema: Schema = records.schema
        """Schema of the batches."""

    @property
    def skipped(self) -> int:
        """Number of messages and frames that were skipped because they can't be decoded."""
        return self._records.skipped

    @property
    def pending_bytes(self) -> int:
        """Bytes of pending messages that are retained, over all journals."""
        return self._records.pending_bytes

    def checkpoint(self, prune_horizon: timedelta | int = 0) -> SequencerCheckpoint:
        """Return a checkpoint of the delivered messages. See `ReadCommittedIter.checkpoint()`.

        Raises:
            ConfigurationError: Uncommitted messages are read, which have no checkpoint.
        """
        self._reader.settle()
        return self._records.checkpoint(prune_horizon)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RecordBatch:
        """Return the next non-empty batch.

        Raises:
            GazetteError: As for iteration of messages.

        Cancellation: safe.
        """
        return await self._reader.next()

    async def aclose(self) -> None:
        """End reading. Idempotent.

        Cancellation: safe — call again.
        """
        self._reader.settle()
        await self._reader.aclose()

    def __repr__(self) -> str:
        return repr(self._reader)
