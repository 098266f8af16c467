"""Reading messages as Arrow record batches: from a broker, and from the file of a fragment."""

from __future__ import annotations

import asyncio
import io
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

import pyarrow as pa
import pyarrow.json

import gazette_aio.protocol as pb
from benchmarks.harness import Subject, measure
from benchmarks.measures.events import (
    JOURNAL,
    WORKLOADS,
    Workload,
    bare_read,
    publish_transactions,
    served_journals,
)
from gazette_aio import ReadCommittedIter, connect, json_adapter
from gazette_aio.testing import BrokerProcess, create_journals, journal_spec

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from gazette_aio.client import JournalClient

TRANSACTION = 5_000
CONTENT_BYTES = 100 << 20
"""Size of what's read, at least."""
TYPES: dict[Any, Any] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
}


def schema_of(kind: type[Any]) -> pa.Schema:
    """Return the columns of a Struct."""
    return pa.schema({name: type_of(hint) for name, hint in get_type_hints(kind).items()})


def type_of(hint: Any) -> Any:
    """Return the type of the column of a member."""
    if hint in TYPES:
        return TYPES[hint]
    if get_origin(hint) is list:
        return pa.list_(type_of(get_args(hint)[0]))
    if isinstance(hint, type):
        return pa.struct(list(schema_of(hint)))
    return type_of(get_args(hint)[0])  # It's optional.


async def publish(client: JournalClient, workload: Workload) -> bytes:
    """Publish messages in transactions, and return the content of the journal."""
    head, messages = 0, workload.messages()
    while head < CONTENT_BYTES:
        head = await publish_transactions(client, workload.kind, messages, TRANSACTION)
    async with client.read(JOURNAL, end_offset=head) as reader:
        return b"".join([chunk async for chunk in reader])


async def read(client: JournalClient, workload: Workload, schema: pa.Schema | None) -> int:
    """Read all messages, and return how many there are."""
    count = 0
    adapter = json_adapter(workload.kind)
    async with ReadCommittedIter(JOURNAL, adapter, client=client, direct=True) as iterator:
        async for batch in iterator.arrow(schema):
            count += batch.num_rows
    return count


async def columns(workload: Workload) -> AsyncGenerator[Subject]:
    """Compare typed columns with pyarrow.json on the same bytes."""
    schema = schema_of(workload.kind)
    async with served_journals(JOURNAL) as client:
        content = await publish(client, workload)
        rows = await read(client, workload, None)

        async def figure() -> float:
            begun = time.perf_counter()
            assert await read(client, workload, schema) == rows
            return rows / (time.perf_counter() - begun)

        def parse() -> float:
            begun = time.perf_counter()
            table = pyarrow.json.read_json(
                io.BytesIO(content),
                read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=4 << 20),
                parse_options=pyarrow.json.ParseOptions(
                    explicit_schema=schema, unexpected_field_behavior="ignore"
                ),
            )
            assert table.num_rows >= rows
            return rows / (time.perf_counter() - begun)

        async def yardstick() -> float:
            return await asyncio.to_thread(parse)

        yield Subject(figure, yardstick)


async def raw(workload: Workload) -> AsyncGenerator[Subject]:
    """Compare bytes of messages with the responses of a bare stub."""
    async with served_journals(JOURNAL) as client:
        size = len(await publish(client, workload))

        async def figure() -> float:
            begun = time.perf_counter()
            await read(client, workload, None)
            return size / (time.perf_counter() - begun) / 1e6

        async with bare_read(client, size) as yardstick:
            yield Subject(figure, yardstick)


async def local(workload: Workload) -> AsyncGenerator[Subject]:
    """Compare bytes of messages of local fragments with a copy of them in memory."""
    with tempfile.TemporaryDirectory(prefix="gazette-bench-") as directory:
        root = Path(directory)
        process = BrokerProcess(Path(directory, "broker"), options=("--file-root", str(root)))
        labels = {pb.CONTENT_TYPE: pb.CONTENT_TYPE_JSON_LINES}
        spec = journal_spec(
            JOURNAL,
            labels=labels,
            length=64 << 20,
            codec=pb.CompressionCodec.NONE,
            stores=["file:///"],
        )
        async with process as broker, connect(broker.endpoint) as client:
            await create_journals(client, spec)
            content = await publish(client, workload)
        size = len(content)
        # All content is persisted as the broker stops.
        async with process as broker, connect(broker.endpoint, file_root=root) as client:

            async def figure() -> float:
                begun = time.perf_counter()
                await read(client, workload, None)
                return size / (time.perf_counter() - begun) / 1e6

            async def yardstick() -> float:
                begun = time.perf_counter()
                copied = bytearray(content)
                elapsed = time.perf_counter() - begun
                assert len(copied) == size
                return size / elapsed / 1e6

            yield Subject(figure, yardstick)


for each in WORKLOADS:
    measure(
        f"arrow.columns{each.suffix}",
        goal=1.4,
        plain=0,
        unit="msg/s",
        about=f"committed {each.about} of a broker process as typed columns, against "
        "one thread of pyarrow.json on the same bytes in memory",
    )(partial(columns, each))
    measure(
        f"arrow.raw{each.suffix}",
        goal=0.75,
        plain=0,
        unit="MB/s",
        about=f"committed {each.about} of a broker process as bytes with their columns, "
        "against a loop over the responses of a grpc.aio stub",
    )(partial(raw, each))
    measure(
        f"arrow.local{each.suffix}",
        goal=0.2 if each.suffix == ".large" else 0.1,
        plain=0,
        unit="MB/s",
        about=f"committed {each.about} of local NONE fragments as bytes with their columns, "
        "against a copy of the bytes in memory",
    )(partial(local, each))
