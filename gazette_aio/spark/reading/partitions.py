r"""Reading of the rows of tasks, in Spark's worker processes.

The event loop fetches content one step ahead; a thread splits, sequences and decodes one step at a
time. A task needs some tens of MiB, and up to 64 MiB for pending messages.

A record belongs to the task whose range has its first byte. An incomplete record at the write head
isn't a row yet: it belongs to the next read. If a range whose records aren't lines ends inside a
record, the record is bad. With `failOnDataLoss=false`, the rest of a record next to lost content is
dropped.

Rows of bad records are in order with other rows, except rows of transactions, which come when they
commit.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Final, Self

from gazette_aio.aio.owner import Owner
from gazette_aio.aio.threads import in_thread
from gazette_aio.protocol.errors import DataLossError, SequencerStateError
from gazette_aio.spark import bridge
from gazette_aio.spark.connecting import spark_client
from gazette_aio.spark.reading.content import RangeContent
from gazette_aio.spark.reading.engines import rows_of
from gazette_aio.spark.reading.record_bounds import RecordBounds
from gazette_aio.spark.rows.records import RowLayout

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Iterator

    from pyarrow import RecordBatch, Schema

    from gazette_aio.client import JournalClient
    from gazette_aio.spark.options import SourceOptions
    from gazette_aio.spark.reading.engines import TaskRows
    from gazette_aio.spark.reading.task import Partition, Task

_logger = logging.getLogger(__name__)

ACKS_STEP_BYTES: Final = 256 << 10
"""Bytes after a range which are read before checking whether its messages are still pending."""

_OPEN_TASKS: Final = 4
"""Tasks of a partition which are open concurrently: opening takes longer than a small read."""


def read_partition(
    partition: Partition, options: SourceOptions, schema: Schema
) -> Iterator[RecordBatch]:
    """Yield the rows of tasks, one after the other, for synchronous code.

    Reading starts with the first batch. Closing or dropping the generator ends all reads.

    Args:
        partition: The tasks.
        options: Options of the source.
        schema: Exact Arrow schema of the rows.

    Raises:
        GazetteError: As `read_task()`.
    """
    return bridge.iterate(lambda: read_tasks(partition, options, schema))


async def read_task(
    task: Task, options: SourceOptions, schema: Schema
) -> AsyncGenerator[RecordBatch]:
    """Yield the rows of a task. Close the generator if you leave it early.

    Args:
        task: Range to read.
        options: Options of the source.
        schema: Exact Arrow schema of the rows.

    Raises:
        ConfigurationError: The journal's messages can't be decoded to the schema.
        FramingError: A record is bad, and the mode is FAILFAST.
        DataLossError: Content is lost.
        GazetteError: The journal can't be read.

    Cancellation: aborts — reads end before the cancellation is raised.
    """
    async with aclosing(read_tasks((task,), options, schema)) as batches:
        async for batch in batches:
            yield batch


async def read_tasks(
    tasks: Iterable[Task], options: SourceOptions, schema: Schema
) -> AsyncGenerator[RecordBatch]:
    """Yield the rows of tasks, one task after the other. A few tasks are open at a time.

    Args:
        tasks: Ranges to read.
        options: Options of the source.
        schema: Exact Arrow schema of the rows.

    Raises:
        GazetteError: As `read_task()`.

    Cancellation: aborts — reads end before the cancellation is raised.
    """
    client = await spark_client(options.connection)
    layout = await in_thread(RowLayout, options, schema)
    waiting = deque(tasks)
    opened: deque[TaskReader] = deque()
    try:
        while waiting or opened:
            while waiting and len(opened) < _OPEN_TASKS:
                opened.append(await TaskReader.open(client, waiting.popleft(), options, layout))
            reader = opened[0]
            while batches := await reader.batches():
                for batch in batches:
                    yield batch
            await reader.aclose()
            opened.popleft()
    finally:
        async with AsyncExitStack() as closing:  # Closes all readers, even if cancelled.
            for reader in opened:
                closing.push_async_callback(reader.aclose)


class TaskReader(Owner):
    """Reads the rows of a task.

    Args:
        client: Client to use.
        task: Range to read.
        options: Options of the source.
        rows: Decoder, engine and content bounds of the task.
    """

    def __init__(
        self, client: JournalClient, task: Task, options: SourceOptions, rows: TaskRows
    ) -> None:
        self._client = client
        self._task = task
        self._options = options
        self._decoder = rows.decoder
        self._engine = rows.engine
        self._acks = rows.acks
        self._seeks_acks = False
        self._content = RangeContent(client, task.journal, rows.bounds, options)
        self._again: RangeContent | None = None
        self._lost: tuple[tuple[int, int], ...] = ()  # Gaps of content which was read again.
        self._has_ended = False

    @classmethod
    async def open(
        cls, client: JournalClient, task: Task, options: SourceOptions, layout: RowLayout
    ) -> Self:
        """Return a reader which has begun to read ahead.

        Raises:
            ConfigurationError: Rows can't be made of the journal's messages.

        Cancellation: safe.
        """
        # Off the loop: this may import a module of protobuf messages.
        rows = await in_thread(rows_of, task, layout)
        reader = cls(client, task, options, rows)
        reader._content.begin()
        return reader

    async def batches(self) -> list[RecordBatch]:
        """Return the next rows, or none at the end.

        Raises:
            FramingError: A record is bad, and the mode is FAILFAST.
            DataLossError: Content is lost.
            GazetteError: The journal can't be read.

        Cancellation: poisons — close the reader.
        """
        engine = self._engine
        while True:
            try:
                batches = await in_thread(engine.work)
            except SequencerStateError as error:
                self._check_loss(error)
                raise
            if batches is not None:
                if batches:
                    return batches
            elif not await self._feed():
                return engine.finish()

    async def _feed(self) -> bool:
        """Feed content or its end, and return False if no content is left."""
        if (wanted := self._engine.wanted()) is not None:
            begin, end = wanted
            bounds = RecordBounds(begin, end, end, lines=False, is_aligned=True)
            self._again = RangeContent(self._client, self._task.journal, bounds, self._options)
        elif self._again is None and self._seeks_acks and not self._needs_acks():
            # The engine's content ends within a record, which isn't reported.
            self._has_ended = True
            return False
        content = self._again or self._content
        if pieces := await content.take():
            # Off the loop: the engine may search the content for records.
            await in_thread(self._engine.feed, pieces)
        elif self._again is not None:
            await self._again.aclose()
            self._lost += self._again.gaps
            self._again = None
            self._engine.end()
        elif self._has_ended:
            return False
        elif not self._seeks_acks and self._needs_acks():
            await self._seek_acks()
        else:
            self._has_ended = True
            self._engine.end()
        return True

    def _needs_acks(self) -> bool:
        return self._acks is not None and self._acks.is_needed

    async def _seek_acks(self) -> None:
        """Continue with the content after the range."""
        assert self._acks is not None
        await self._content.aclose()
        self._lost += self._content.gaps
        self._seeks_acks = True
        self._content = RangeContent(
            self._client,
            self._task.journal,
            self._acks.bounds,
            self._options,
            step_bytes=ACKS_STEP_BYTES,
        )

    def _check_loss(self, error: SequencerStateError) -> None:
        """Raise DataLossError if content was lost after planning."""
        gaps = self._content.gaps + self._lost
        if self._again is not None:
            gaps += self._again.gaps
        if gaps:
            journal, (begin, end) = self._task.journal, gaps[0]
            text = f"lost [{begin}, {end}) of journal {journal} after planning"
            raise DataLossError(text, journal=journal, offset=begin, missing=gaps) from error

    async def aclose(self) -> None:
        """End reading. Idempotent.

        Cancellation: safe — call again.
        """
        if (skipped := self._decoder.skipped) and not self._content.is_closed:
            extra = {"journal": self._task.journal, "records": skipped}
            _logger.warning("dropped %d bad records", skipped, extra=extra)
        try:
            if self._again is not None:
                await self._again.aclose()
        finally:
            await self._content.aclose()

    def __repr__(self) -> str:
        return f"<TaskReader of {self._content!r}>"
