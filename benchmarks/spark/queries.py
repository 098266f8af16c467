"""Queries which are measured, by how long they take."""

from __future__ import annotations

import tempfile
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from benchmarks.harness import Subject
from benchmarks.spark.world import CORES, ROWS, world

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from pyspark.sql import DataFrame

    from benchmarks.harness import Run

WARM_UPS = 2
STREAM_BYTES = 32 << 20
"""Content of a batch of a stream."""


def load(schema: str | None = None, form: str = "gazette", **options: str) -> DataFrame:
    """Return the rows of a source, of the parts by default, in a partition for each core."""
    given = {"minPartitions": str(CORES)} | options
    reader = world().spark.read.format(form).options(**world().options(**given))
    return reader.load() if schema is None else reader.schema(schema).load()


def rate(query: Callable[[], DataFrame], rows: int = ROWS) -> Run:
    """Return what makes a query of its own each time, and returns its rows per second."""

    async def run() -> float:
        begun = time.perf_counter()
        query().write.format("noop").mode("overwrite").save()
        return rows / (time.perf_counter() - begun)

    return run


def stream_rate(**options: str) -> Run:
    """Return what runs a stream of the parts, and returns its rows per second.

    That's without the first batch, which starts a process.
    """

    async def run() -> float:
        reader = world().spark.readStream.format("gazette")
        given = {"startingOffsets": "earliest", "maxBytesPerTrigger": str(STREAM_BYTES)}
        rows = reader.options(**world().options(**given, **options)).load()
        with tempfile.TemporaryDirectory(dir=world().root) as checkpoint:
            writer = rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
        batches = [each for each in query.recentProgress if each["numInputRows"]]
        assert sum(each["numInputRows"] for each in batches) == ROWS
        later = batches[1:]
        took_ms: float = sum(each["durationMs"]["triggerExecution"] for each in later)
        rows_read: int = sum(each["numInputRows"] for each in later)
        return rows_read / took_ms * 1000

    return run


@asynccontextmanager
async def warm(figure: Run, yardstick: Run) -> AsyncIterator[Subject]:
    """Yield two queries which have been run before."""
    for _ in range(WARM_UPS):
        await figure()
        await yardstick()
    yield Subject(figure, yardstick)
