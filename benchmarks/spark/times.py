"""Batches of a time: bytes which are fetched of journals of many hours.

The environment variable `BENCH_TIME_FRAGMENT_MIB` sets the size of fragments, 1 by default: all
content takes 1 GiB then. Of larger fragments, the probes of the search are a smaller part.
"""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
from contextlib import ExitStack, aclosing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final
from unittest import mock

import gazette_aio.protocol as pb
from benchmarks.harness import Subject, constant, measure
from gazette_aio.client import connect
from gazette_aio.client.fragments.file_transport import FileBody
from gazette_aio.message.uuid import ACK_TXN, CONTINUE_TXN, Clock, build_uuid, new_producer_id
from gazette_aio.spark import bridge
from gazette_aio.spark.options import SourceOptions
from gazette_aio.spark.planning.batch import plan_batch
from gazette_aio.spark.reading.bounded import BoundedReader
from gazette_aio.spark.reading.partitions import read_tasks
from gazette_aio.spark.types import default_schema
from gazette_aio.testing import BrokerProcess, create_journals, journal_spec

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from gazette_aio.client import JournalClient

JOURNALS: Final = 20
HOURS: Final = 50
"""Fragments of a journal, of an hour each."""
FRAGMENT_BYTES: Final = int(os.environ.get("BENCH_TIME_FRAGMENT_MIB", "1")) << 20
ROW_BYTES: Final = 2048
BEGIN: Final = 1_700_000_000
START: Final = BEGIN + 20 * 3600 + 1800
STOP: Final = BEGIN + 22 * 3600 + 900
OVERLAPPING: Final = (20, 21, 22)
"""Hours which overlap the time and five minutes around it."""
MOST: Final = 1.2
_OVERHEAD: Final = len('{"_meta":{"uuid":""},"pad":""}\n') + 36


async def bytes_of_a_time(codec: str) -> AsyncGenerator[Subject]:
    """Compare the bytes fetched with the files of the fragments which overlap the time."""
    with tempfile.TemporaryDirectory(prefix="gazette-bench-") as directory:
        root = Path(directory) / "fragments"
        root.mkdir()
        options = (f"--file-root={root}", "--fsync=off")
        broker = BrokerProcess(Path(directory) / "broker", options=options)
        await broker.start()
        try:
            async with connect(broker.endpoint) as client:
                await _fill(client, codec)
            # A broker persists the last fragments as it stops, but not all that it may be behind.
            while _least_files(root) < HOURS - 1:  # noqa: ASYNC110 - The broker is another process.
                await asyncio.sleep(0.2)
            await broker.stop()
            await broker.start()
            stored = sum(_overlapping_bytes(root / f"times/{at}") for at in range(JOURNALS))
            async with connect(broker.endpoint, file_root=root) as client:
                yield Subject(partial(_fetched, client, broker.endpoint, root), constant(stored))
            await bridge.close_clients()
        finally:
            await broker.stop()


async def _fill(client: JournalClient, codec: str) -> None:
    """Write fragments of an hour each."""
    kind = {"codec": pb.CompressionCodec.Value(codec), "stores": ["file:///"]}
    labels = {pb.CONTENT_TYPE: pb.CONTENT_TYPE_JSON_LINES}
    names = [f"times/{journal}" for journal in range(JOURNALS)]
    specs = (journal_spec(name, labels=labels, length=FRAGMENT_BYTES, **kind) for name in names)
    await create_journals(client, *specs)
    for content in _hours():
        await asyncio.gather(*(client.append(name, content) for name in names))


def _hours() -> Iterator[bytes]:
    """Yield the content of each hour, a little more than a fragment's."""
    rng, producer = random.Random(1), new_producer_id()
    # Rows that a codec compresses to about a quarter.
    tail = "x" * (ROW_BYTES // 2 - _OVERHEAD)
    rows = FRAGMENT_BYTES // ROW_BYTES + 1
    for hour in range(HOURS):
        lines: list[str] = []
        for row in range(rows):
            when = BEGIN + 3600 * hour + 3600 * row // rows
            clock = Clock.from_time(when * 10**9).value + (row << 4)
            flags = ACK_TXN if row == rows - 1 else CONTINUE_TXN
            uuid = build_uuid(producer, clock, flags)
            pad = rng.randbytes(ROW_BYTES // 4).hex() + tail
            lines.append(f'{{"_meta":{{"uuid":"{uuid}"}},"pad":"{pad}"}}\n')
        yield "".join(lines).encode()


def _files(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*-*-*"))


def _least_files(root: Path) -> int:
    return min(len(_files(root / f"times/{at}")) for at in range(JOURNALS))


def _overlapping_bytes(directory: Path) -> int:
    files = _files(directory)
    assert len(files) == HOURS, f"{len(files)} fragments"
    return sum(files[hour].stat().st_size for hour in OVERLAPPING)


async def _fetched(client: JournalClient, endpoint: str, root: Path) -> float:
    """Run a query, and return the bytes of files and those which come through the broker."""
    fetched: list[int] = []
    read_file, read_next = FileBody.read_blocking, BoundedReader.__anext__

    def of_file(body: FileBody, *size: int) -> bytes:
        fetched.append(len(data := read_file(body, *size)))
        return data

    async def of_broker(reader: BoundedReader) -> tuple[int, bytes]:
        offset, data = await read_next(reader)
        fetched.append(0 if reader.is_direct else len(data))
        return offset, data

    given = {"brokers": endpoint, "prefix": "times/", "fileRoot": str(root)}
    given |= {"startingTimestamp": str(START * 1000), "endingTimestamp": str(STOP * 1000)}
    options = SourceOptions.parse(given, streaming=False)
    schema, rows = default_schema(), 0
    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(FileBody, "read_blocking", of_file))
        patches.enter_context(mock.patch.object(BoundedReader, "__anext__", of_broker))
        for tasks in await plan_batch(client, options, schema):
            async with aclosing(read_tasks(tasks, options, schema)) as batches:
                async for batch in batches:
                    rows += batch.num_rows
    hourly = FRAGMENT_BYTES // ROW_BYTES
    assert rows > JOURNALS * hourly * 1.7, f"{rows} rows"
    return float(sum(fetched))


for _codec in ("NONE", "ZSTANDARD"):
    measure(
        f"spark.time.{_codec.lower()}",
        goal=MOST,
        unit="B",
        better="less",
        rounds=1,
        about=f"bytes fetched by a query of two of {HOURS} hours of {JOURNALS} journals, against"
        " the files of the fragments which overlap them and five minutes around",
    )(partial(bytes_of_a_time, _codec))
