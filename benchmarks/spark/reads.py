"""Batches of rows: as they are, and decoded."""

from __future__ import annotations

import io
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.json

from benchmarks.harness import Subject, measure
from benchmarks.spark.content import ROW_BYTES, SCHEMA
from benchmarks.spark.queries import load, rate, warm
from benchmarks.spark.world import CORES, ROWS, world

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

BLOCK_BYTES = 4 << 20

RAW = {"format": "raw", "io": "direct"}
TYPED = {"io": "direct"}

_PLACE: dict[str, Any] = {"city": pa.string(), "zip": pa.string()}
_COLUMNS: dict[str, Any] = {
    "id": pa.int64(),
    "user": pa.string(),
    "kind": pa.string(),
    "amount": pa.float64(),
    "at": pa.string(),
    "place": pa.struct(_PLACE),
    "tags": pa.list_(pa.string()),
}
ARROW_SCHEMA = pa.schema(_COLUMNS)


@measure(
    "spark.raw",
    goal=0.6,
    unit="row/s",
    rounds=3,
    about=f"undecoded rows of {ROW_BYTES} bytes of local fragments, with their columns, against"
    " a Python source which yields a batch of such rows over and over",
)
async def raw() -> AsyncGenerator[Subject]:
    """Compare rows as they are with prepared ones, in as many partitions."""
    rows: Any = load(**RAW)
    assert rows.count() == ROWS
    shape = {"rows": str(ROWS), "partitions": str(rows.rdd.getNumPartitions())}
    figure = rate(lambda: load(**RAW))
    yardstick = rate(
        lambda: world().spark.read.format("prepared").options(**shape).load(),
    )
    async with warm(figure, yardstick) as subject:
        yield subject


@measure(
    "spark.typed.committed",
    goal=0.32,
    unit="row/s",
    rounds=3,
    about="the same, of committed rows: what's asked of both together",
)
async def typed(**isolation: str) -> AsyncGenerator[Subject]:
    """Compare decoded rows with pyarrow.json, in as many threads as there are cores."""
    contents = world().content()

    def parse(content: bytes) -> int:
        table = pyarrow.json.read_json(
            io.BytesIO(content),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=BLOCK_BYTES),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=ARROW_SCHEMA, unexpected_field_behavior="ignore"
            ),
        )
        return table.num_rows

    with ThreadPoolExecutor(CORES) as threads:

        async def yardstick() -> float:
            begun = time.perf_counter()
            assert sum(threads.map(parse, contents)) >= ROWS
            return ROWS / (time.perf_counter() - begun)

        async with warm(rate(lambda: load(SCHEMA, **TYPED, **isolation)), yardstick) as subject:
            yield subject


measure(
    "spark.typed",
    goal=0.4,
    unit="row/s",
    rounds=3,
    about=f"rows of {ROW_BYTES} bytes of local fragments as typed columns, against pyarrow.json"
    " on the same bytes in memory, on as many cores",
)(partial(typed, isolation="read-uncommitted"))
