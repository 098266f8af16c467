"""How much memory reading takes, however much is read."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import zstandard

import gazette_aio.protocol as pb
from gazette_aio.client import JournalClient
from gazette_aio.client.options import STREAM_BUFFER_BYTES
from gazette_aio.testing.stub_broker import StubBroker
from tests import extent
from tests.client.reads.read_server import CHUNK_BYTES, CONTENT, ROOT, read_server
from tests.client.support import JOURNAL, content, held_up, listing, metadata
from tests.waiting import eventually

MIB = 1 << 20
BYTES = extent.of(320, 2048) * MIB
"""What is read: more than may be held."""
MOST_RESIDENT = 150 * MIB

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="reads memory use from /proc"
)

READS_ALL = """
async def read(client):
    count = 0
    async with client.read("a/journal", end_offset={size}) as reader:
        async for chunk in reader:
            count += len(chunk)
    assert count == {size}, count
"""

READS_FILE = """
async def read(client):
    count = 0
    fragment = pb.Fragment(journal="a/journal", end={size}, compression_codec={codec})
    async with await client.fragments.open(fragment, 0, "file:///{name}") as reader:
        async for chunk in reader:
            count += len(chunk)
    assert count == {size}, count
"""

READS_A_BIT = """
async def read(client):
    async with client.read("a/journal", end_offset={size}) as reader:
        await anext(reader)
        # The broker could send hundreds of megabytes beside so many round trips.
        for _ in range(1000):
            with contextlib.suppress(pb.TransportError):  # It has no listing.
                await client.list()
        assert client.status().streams[0].waiting_bytes
"""

PROGRAM = """
import asyncio, contextlib, pathlib
import gazette_aio.protocol as pb
from gazette_aio.client import connect

def resident(name):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) << 10

{read}

async def main():
    async with connect({endpoint!r}, file_root={root!r}) as client:
        await read(client)

asyncio.run(main())
print(resident("VmHWM:"))
"""


def most_resident(read: str, endpoint: str = "http://127.0.0.1:1", root: str = "/") -> int:
    """Return how much memory a process which reads held at most."""
    program = PROGRAM.format(read=read, endpoint=endpoint, root=root)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with read_server() as endpoint:
        yield endpoint


@needs_proc
@pytest.mark.slow
def test_reading_through_a_broker_holds_little(endpoint: str) -> None:
    assert most_resident(READS_ALL.format(size=BYTES), endpoint) < MOST_RESIDENT


@needs_proc
@pytest.mark.slow
def test_reading_a_fragment_file_holds_little(tmp_path: Path) -> None:
    compressor = zstandard.ZstdCompressor(level=1).compressobj()
    with (tmp_path / "fragment.zst").open("wb") as file:
        for _ in range(BYTES // len(CONTENT)):
            file.write(compressor.compress(CONTENT))
        file.write(compressor.flush())

    read = READS_FILE.format(
        size=BYTES, codec=int(pb.CompressionCodec.ZSTANDARD), name="fragment.zst"
    )
    assert most_resident(read, root=str(tmp_path)) < MOST_RESIDENT


@needs_proc
@pytest.mark.slow
def test_a_reader_which_does_not_read_on_holds_little(endpoint: str) -> None:
    assert most_resident(READS_A_BIT.format(size=1 << 40), endpoint) < MOST_RESIDENT


async def test_the_broker_waits_for_a_slow_reader(
    broker: StubBroker, client: JournalClient
) -> None:
    sent = 0

    async def answer(request: pb.ReadRequest) -> AsyncIterator[pb.ReadResponse]:
        nonlocal sent
        yield metadata(0)
        while True:
            yield content(sent, CONTENT)
            sent += len(CONTENT)

    broker.read_handler = answer
    broker.list_handler = lambda request: listing()
    async with client.read(JOURNAL) as reader:
        await anext(reader)
        await eventually(lambda: client.status().streams[0].waiting_bytes >= STREAM_BUFFER_BYTES)
        await held_up(client, lambda: sent)  # The buffers of the sockets are full, too.
        before = sent
        (stream,) = client.status().streams
        assert stream.waiting_bytes < STREAM_BUFFER_BYTES + 2 * CHUNK_BYTES
        # The transport holds more, up to its largest windows.
        assert sent < 64 * STREAM_BUFFER_BYTES
        # Once there's room the broker sends on.
        while sent == before:
            await anext(reader)
