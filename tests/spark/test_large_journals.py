"""Large journals and many of them: what they take to plan and to read, as a worker of Spark does.

The long forms are the proofs; the others show that it works at all.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from gazette_aio.client import connect
from gazette_aio.message import build_uuid
from gazette_aio.spark.options import SourceOptions
from gazette_aio.spark.planning.batch import plan_batch
from gazette_aio.spark.planning.tasks import MIDDLE_BYTES
from gazette_aio.spark.reading.task import OPEN_BYTES
from gazette_aio.spark.types import default_schema
from gazette_aio.testing import BrokerProcess, create_journals, journal_spec
from tests import extent

MIB = 1 << 20
BYTES = extent.of(48, 1024) * MIB
JOURNALS = extent.of(200, 10_000)
MOST_RESIDENT = 512 * MIB
LABELS = {"content-type": "application/x-ndjson"}
PRODUCERS = (b"\x01AAAAA", b"\x01BBBBB")
ROWS_PER_APPEND = 8192
TRANSACTION_APPENDS = 25
"""Of 8 MiB each, so that a transaction of a large journal takes 200 MiB."""
PADDING = "x" * 960

PROGRAM = """
import json, pathlib, sys
from gazette_aio.spark import bridge
from gazette_aio.spark.connecting import spark_client
from gazette_aio.spark.options import SourceOptions
from gazette_aio.spark.planning.batch import plan_batch
from gazette_aio.spark.reading.partitions import read_partition
from gazette_aio.spark.types import default_schema

async def plan():
    return await plan_batch(await spark_client(options.connection), options, schema)

options = SourceOptions.parse(json.loads(sys.argv[1]), streaming=False)
schema = default_schema()
partitions = bridge.run(plan())
rows = [sum(b.num_rows for b in read_partition(part, options, schema)) for part in partitions]
status = pathlib.Path("/proc/self/status").read_text().splitlines()
peak = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM:"))
print(json.dumps([sum(len(part) for part in partitions), sum(rows), peak]))
"""

WAYS = {
    "uncommitted": {"isolation": "read-uncommitted"},
    "committed, in one task": {"maxSplitBytes": str(1 << 40), "minPartitions": "1"},
    "committed, in splits": {"maxSplitBytes": str(BYTES // 4)},
    "committed, through the broker": {"io": "broker"},
}


async def written(client):
    """Write transactions of two producers, which overlap, and return the number of messages."""
    row = size = appends = 0
    while size < BYTES:
        producer = PRODUCERS[appends % 2]
        lines = []
        for _ in range(ROWS_PER_APPEND):
            row += 1
            lines.append(
                f'{{"_meta":{{"uuid":"{build_uuid(producer, 16 * row, 1)}"}},"v":"{PADDING}"}}\n'
            )
        if appends // 2 % TRANSACTION_APPENDS == TRANSACTION_APPENDS - 1:
            lines.append(ack(producer, row))
        content = "".join(lines).encode()
        await client.append("a/journal", content)
        size, appends = size + len(content), appends + 1
    for producer in PRODUCERS:
        await client.append("a/journal", ack(producer, row).encode())
    return row


def ack(producer, row):
    return f'{{"_meta":{{"uuid":"{build_uuid(producer, 16 * row + 1, 2)}","ack":true}}}}\n'


@pytest.mark.slow
@pytest.mark.timeout(extent.of(600, 1800))
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory use from /proc")
async def test_a_large_journal_is_read_in_little_memory(tmp_path):
    root = tmp_path / "fragments"
    root.mkdir()
    arguments = (f"--file-root={root}", "--fsync=off")
    spec = journal_spec("a/journal", labels=LABELS, length=32 * MIB, stores=("file:///",))
    async with BrokerProcess(tmp_path / "broker", options=arguments) as broker:
        async with connect(broker.endpoint) as client:
            await create_journals(client, spec)
            rows = await written(client)
        for way, given in WAYS.items():
            options = {"brokers": broker.endpoint, "prefix": "a/"} | given
            if "io" not in given:
                options["fileRoot"] = str(root)
            done = await asyncio.create_subprocess_exec(
                sys.executable, "-c", PROGRAM, json.dumps(options), stdout=asyncio.subprocess.PIPE
            )
            printed, _ = await done.communicate()
            tasks, read, peak = json.loads(printed)
            assert read == rows, way
            if "one task" in way:
                assert tasks == 1
            elif "splits" in way:
                assert tasks > 2
            assert peak < MOST_RESIDENT, f"{way}: {peak >> 20} MiB"


@pytest.mark.slow
@pytest.mark.timeout(extent.of(600, 900))
async def test_many_small_journals_take_few_partitions(tmp_path):
    names = [f"many/part={number:05}" for number in range(JOURNALS)]
    async with BrokerProcess(tmp_path, options=("--fsync=off",)) as broker:
        async with connect(broker.endpoint) as client:
            for begin in range(0, JOURNALS, 100):
                specs = [journal_spec(name, labels=LABELS) for name in names[begin : begin + 100]]
                await create_journals(client, *specs)
                uuid = build_uuid(PRODUCERS[0], 16, 0)
                line = f'{{"_meta":{{"uuid":"{uuid}"}}}}\n'.encode()
                await asyncio.gather(*(client.append(spec.name, line) for spec in specs))
            for isolation in ("read-committed", "read-uncommitted"):
                given = {"brokers": broker.endpoint, "prefix": "many/", "isolation": isolation}
                options = SourceOptions.parse(given, streaming=False)
                partitions = await plan_batch(client, options, default_schema())
                planned = sorted(task.journal for part in partitions for task in part)
                assert planned == names
                size = JOURNALS * (OPEN_BYTES + len(line))
                assert len(partitions) == size // MIDDLE_BYTES
