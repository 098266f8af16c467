"""Time and throughput of the sink."""

from __future__ import annotations

import statistics
import tempfile
import time
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Subject, constant, measure
from benchmarks.spark.queries import warm
from benchmarks.spark.world import COMMITS, CORES, TARGETS, world

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from pyspark.sql import DataFrame

    from benchmarks.harness import Run

ROWS = 500_000
ALLOWED_MS = 120.0
SMALL_ROWS = 100
BATCHES = 12
WARM_BATCHES = 3
"""Of which nothing is measured."""
TIMEOUT_SECONDS = 60.0
TARGET = {"prefix": "target/", "commitJournal": COMMITS, "mapping": "modulo"}

MESSAGE = """
    to_json(named_struct(
        'id', 10000000 + id,
        'user', concat('user-', 10000 + id % 9973),
        'kind', element_at(array('click', 'view', 'order', 'refund'), CAST(1 + id % 4 AS INT)),
        'amount', 1000 + id % 8000 / 8,
        'at', '2024-05-01T12:30:00Z',
        'place', named_struct('city', 'Berlin', 'zip', '10117'),
        'tags', array('web', 'new'))) AS value
"""
"""With its UUID, it's about as large as those which the sources have."""


def messages(ids: DataFrame) -> DataFrame:
    """Return messages of rows which have an `id`."""
    return ids.selectExpr("CAST(id AS STRING) AS key", MESSAGE)


@measure(
    "spark.sink",
    goal=0.6,
    unit="row/s",
    rounds=3,
    about=f"a batch of rows of 216 bytes into {len(TARGETS)} journals, exactly once, against"
    " the same without the appends of its tasks",
)
async def batches() -> AsyncGenerator[Subject]:
    """Compare a batch with the same one without appends."""
    spark = world().spark
    rows = messages(spark.range(0, ROWS, 1, CORES))

    def run(form: str) -> Run:
        async def timed() -> float:
            begun = time.perf_counter()
            writer = rows.write.format(form).options(**world().options(**TARGET))
            writer.mode("append").save()
            return ROWS / (time.perf_counter() - begun)

        return timed

    async with warm(run("gazette"), run("gazette_unappended")) as subject:
        yield subject


def batch_ms(form: str, options: dict[str, str]) -> float:
    """Run a stream of small batches into a sink, and return how long they take, by median."""
    reader = world().spark.readStream.format("rate-micro-batch")
    ids = reader.options(rowsPerBatch=SMALL_ROWS, numPartitions=CORES).load()
    with tempfile.TemporaryDirectory(dir=world().root) as checkpoint:
        writer = messages(ids.selectExpr("value AS id")).writeStream.format(form).options(**options)
        query: Any = writer.option("checkpointLocation", checkpoint).start()
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while len(query.recentProgress) < WARM_BATCHES + BATCHES:
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline, f"{form} is slow"
            time.sleep(0.1)
        query.stop()
    measured = query.recentProgress[WARM_BATCHES:]
    assert all(each["numInputRows"] == SMALL_ROWS for each in measured)
    took: list[float] = [each["durationMs"]["triggerExecution"] for each in measured]
    return statistics.median(took)


@measure(
    "spark.sink.overhead",
    goal=1.0,
    unit="ms",
    better="less",
    rounds=3,
    about=f"what batches of a stream of {SMALL_ROWS} rows take longer, exactly once, than into"
    f" a sink which does nothing, against {ALLOWED_MS:.0f} ms",
)
async def overhead() -> AsyncGenerator[Subject]:
    """Compare what small batches take more than with a sink which does nothing with a limit."""

    async def figure() -> float:
        taken = batch_ms("gazette", world().options(**TARGET))
        return taken - batch_ms("noop", {})

    await figure()
    yield Subject(figure, constant(ALLOWED_MS))
