"""How much memory a transaction takes to read, however large it is."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from gazette_aio.client import connect
from gazette_aio.message import build_uuid
from gazette_aio.testing import BrokerProcess, create_journals, journal_spec
from tests import extent

MIB = 1 << 20
BYTES = extent.of(128, 1024) * MIB
"""Size of the transaction."""
MOST_RESIDENT = {"arrow": 300 * MIB, "items": 150 * MIB}
ROWS_PER_APPEND = 8192
JOURNAL = "a/journal"
PRODUCER = b"\x01AAAAA"
PADDING = "x" * 960

PROGRAM = """
import asyncio, pathlib
from gazette_aio import ReadCommittedIter, connect, raw_adapter

def resident(name):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) << 10

async def arrow(iterator):
    last = -1
    async for batch in iterator.arrow():
        begins = batch.column("_begin").to_numpy()
        assert begins[0] > last and (begins[1:] > begins[:-1]).all()
        last = begins[-1]
        yield batch.num_rows

async def items(iterator):
    async for envelopes in iterator.batches():
        yield sum(envelope.flags != 2 for envelope in envelopes)

async def main():
    async with connect({endpoint!r}) as client:
        async with ReadCommittedIter("a/journal", raw_adapter("_meta.uuid"), client=client) as it:
            print(sum([count async for count in {form}(it)]))

asyncio.run(main())
print(resident("VmHWM:"))
"""


@pytest.mark.slow
@pytest.mark.timeout(extent.of(600, 900))
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory use from /proc")
async def test_a_large_transaction_holds_little(tmp_path):
    async with (
        BrokerProcess(tmp_path, options=["--min-append-rate=0"]) as broker,
        connect(broker.endpoint) as client,
    ):
        labels = {"content-type": "application/x-ndjson"}
        await create_journals(client, journal_spec(JOURNAL, labels=labels, length=64 * MIB))
        rows = written = 0
        while written < BYTES:
            lines = []
            for row in range(rows, rows + ROWS_PER_APPEND):
                uuid = build_uuid(PRODUCER, 16 * row + 16, 1)
                lines.append(f'{{"_meta":{{"uuid":"{uuid}"}},"v":"{PADDING}"}}\n'.encode())
            content = b"".join(lines)
            await client.append(JOURNAL, content)
            rows += ROWS_PER_APPEND
            written += len(content)
        uuid = build_uuid(PRODUCER, 16 * rows + 16, 2)
        await client.append(JOURNAL, f'{{"_meta":{{"uuid":"{uuid}","ack":true}}}}\n'.encode())
        for form, most in MOST_RESIDENT.items():
            program = PROGRAM.format(endpoint=broker.endpoint, form=form)
            done = await asyncio.create_subprocess_exec(
                sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE
            )
            printed, _ = await done.communicate()
            delivered, resident = map(int, printed.split())
            assert delivered == rows
            assert resident < most, f"{form} held {resident >> 20} MiB"
