"""Rows of tasks whose journal is content in memory, as `read_tasks()` yields them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing
from typing import Any
from unittest import mock

import pyarrow as pa

from gazette_aio.spark.options import SourceOptions
from gazette_aio.spark.reading import content as range_content
from gazette_aio.spark.reading import engines, partitions
from gazette_aio.spark.reading.pieces import STEP_BYTES
from gazette_aio.spark.reading.task import Task


class Memory:
    """Content of one journal, and what was read of it.

    Args:
        content: The content.
        cut: Returns the offsets at which a read of `[begin, end)` is cut into chunks.
        lost: Ranges of the content which aren't there.
    """

    def __init__(
        self,
        content: bytes,
        cut: Callable[[int, int], Iterable[int]] = lambda begin, end: (),
        lost: Iterable[tuple[int, int]] = (),
    ) -> None:
        self.content = content
        self.cut = cut
        self.lost = list(lost)
        self.reads: list[tuple[int, int]] = []
        self.through = -1
        self.again: list[tuple[int, int]] = []
        """Ranges which were read again, or before the task's range."""
        self.skipped = 0
        """Number of bad records which were dropped."""

    def read(
        self,
        task: Task,
        options: SourceOptions,
        schema: pa.Schema,
        **limits: int,
    ) -> list[pa.RecordBatch]:
        """Return the batches of a task.

        Args:
            task: What to read.
            options: Options of the source.
            schema: Schema of the rows.
            limits: Sizes of steps and of pending messages, `step_bytes` and `max_pending_bytes`.
        """
        with self._patched(**limits):
            batches = asyncio.run(_collect(task, options, schema))
        for batch in batches:
            batch.validate(full=True)
            assert batch.schema.equals(schema, check_metadata=True)
            assert 0 < batch.num_rows <= options.batch_rows
            for field, column in zip(batch.schema, batch.columns, strict=True):
                assert field.nullable or not column.null_count
        return batches

    @contextlib.contextmanager
    def _patched(self, **limits: int) -> Iterator[None]:
        step_bytes = limits.get("step_bytes", STEP_BYTES)
        logger = logging.getLogger(partitions.__name__)
        handler = _Dropped(self)
        logger.addHandler(handler)
        ranges = functools.partial(partitions.RangeContent, step_bytes=step_bytes)
        defaults = {**engines.rows_of.__kwdefaults__, **limits}
        with (
            mock.patch.object(partitions, "spark_client", self._client),
            mock.patch.object(partitions, "in_thread", _inline),
            mock.patch.object(partitions, "RangeContent", ranges),
            mock.patch.object(range_content, "BoundedReader", _MemoryReader),
            mock.patch.object(engines.rows_of, "__kwdefaults__", defaults),
        ):
            try:
                yield
            finally:
                logger.removeHandler(handler)

    async def _client(self, _: object) -> Memory:
        return self


async def _collect(task: Task, options: SourceOptions, schema: pa.Schema) -> list[pa.RecordBatch]:
    async with aclosing(partitions.read_tasks((task,), options, schema)) as batches:
        return [batch async for batch in batches]


async def _inline(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


class _Dropped(logging.Handler):
    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self._memory = memory

    def emit(self, record: logging.LogRecord) -> None:
        self._memory.skipped += getattr(record, "records", 0)


class _MemoryReader:
    """A BoundedReader of content in memory, which passes over what's lost."""

    is_direct = True

    def __init__(self, memory: Memory, _: str, begin: int, end: int, **given: Any) -> None:
        self.end = end
        self.offset = begin
        if begin < memory.through:
            memory.again.append((begin, end))
        if memory.through == -1:
            memory.through = begin
        self._memory = memory
        self._on_gap = given["on_gap"]
        cuts = {begin, end, *memory.cut(begin, end), *(at for gap in memory.lost for at in gap)}
        self._cuts = sorted(at for at in cuts if begin < at <= end)

    def __aiter__(self) -> _MemoryReader:
        return self

    async def __anext__(self) -> tuple[int, bytes]:
        memory = self._memory
        while self._cuts:
            begin, end = self.offset, self._cuts.pop(0)
            self.offset = end
            memory.through = max(memory.through, end)
            if not any(low <= begin < high for low, high in memory.lost):
                return begin, memory.content[begin:end]
            self._on_gap(begin, end)
        raise StopAsyncIteration

    async def aclose(self) -> None:
        pass
