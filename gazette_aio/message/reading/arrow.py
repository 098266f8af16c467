"""Async iterator of messages as Arrow record batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from gazette_aio.aio.owner import Owner
from gazette_aio.message.columnar.documents.decoder import DocumentDecoder, check_schema
from gazette_aio.message.columnar.journals import RecordsByJournal
from gazette_aio.message.columnar.outputs import RecordOptions
from gazette_aio.message.columnar.pyarrow_api import pa
from gazette_aio.message.framing import DEFAULT_MAX_FRAME_BYTES
from gazette_aio.message.reading.options import start_clock
from gazette_aio.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from pyarrow import RecordBatch, Schema

    from gazette_aio.message.adapters.base import Adapter
    from gazette_aio.message.columnar.journal import JournalRecords
    from gazette_aio.message.reading.driver import FlowDriver
    from gazette_aio.message.reading.options import ReadOptions
    from gazette_aio.message.sequencing.checkpoint import SequencerCheckpoint
    from gazette_aio.protocol.errors import FramingError


def records_of(
    adapter: Adapter[Any] | None,
    schema: Schema | None,
    options: ReadOptions,
    checkpoint: SequencerCheckpoint | None,
    *,
    acks: bool,
    batch_bytes: int,
    max_pending_bytes: int,
    explain: Callable[[FramingError], FramingError],
) -> RecordsByJournal:
    """Return the engine of record batches for an iterator's arguments.

    `adapter` is None if each journal has its own. The others are those of `arrow()`.

    Raises:
        ConfigurationError: The schema doesn't fit documents of the adapter, or sizes are out of
            range.
    """
    if max_pending_bytes < 0:
        text = f"max_pending_bytes is {max_pending_bytes} (expected 0 or more)"
        raise ConfigurationError(text)
    fields: list[Any] = [] if schema is None else list(schema)
    if acks and not all(field.nullable for field in fields):
        raise ConfigurationError("columns of acknowledgements are null, which the schema forbids")
    if schema is not None:
        check_schema(schema)

    def options_of(adapter: Adapter[Any]) -> RecordOptions:
        documents = None
        if schema is not None:
            documents = DocumentDecoder(adapter, schema, use_threads=pa.cpu_count() > 1)
        return RecordOptions(
            adapter=adapter,
            documents=documents,
            acks=acks,
            skip_errors=options.get("on_error") == "skip",
            strict_uuid=options.get("strict_uuid", False),
            max_frame_bytes=options.get("max_frame_bytes", DEFAULT_MAX_FRAME_BYTES),
            batch_bytes=batch_bytes,
            start_clock=start_clock(options),
        )

    engine = RecordsByJournal(
        options_of,
        schema,
        checkpoint,
        batch_bytes=batch_bytes,
        max_pending_bytes=max_pending_bytes,
        explain=explain,
    )
    if adapter is not None:
        engine.options_of(adapter)  # Raises before anything is read.
    return engine


class ArrowBatches(Owner):
    """Async iterator of record batches, made by `arrow()` of a message iterator.

    Each batch is of one journal. A thread splits, sequences and decodes content batch by batch,
    while more content arrives.

    Args:
        driver: Delivers batches.
        records: Makes batches.
    """

    def __init__(
        self, driver: FlowDriver[JournalRecords, RecordBatch], records: RecordsByJournal
    ) -> None:
        self._driver = driver
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
        return self._records.checkpoint(prune_horizon)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RecordBatch:
        """Return the next non-empty batch.

        Raises:
            FramingError: Content of a journal can't be split, decoded or read. Iteration may
                continue after it.
            OffsetBeyondHeadError: A journal would be read from an offset beyond its write head.
            ReplayError: Content of a transaction can't be read again. Further calls return
                messages of other journals. The replay is retried when none of them is ready.

        Cancellation: safe.
        """
        return await self._driver.next()

    async def aclose(self) -> None:
        """End reading. Idempotent.

        Cancellation: safe — call again.
        """
        await self._driver.aclose()

    def __repr__(self) -> str:
        return repr(self._driver)
