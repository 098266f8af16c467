"""Reading the bytes of a journal: through a broker, and from the file of a fragment."""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import zstandard

import gazette_aio.protocol as pb
from benchmarks.harness import Subject, measure
from benchmarks.measures.events import JOURNAL, bare_read, read_speed, served_journals
from examples.flights.data import flights
from gazette_aio.client.fragments.source import FragmentSource

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

JOURNAL_BYTES = 128 << 20
APPENDED_BYTES = 16 << 20
SLICE_BYTES = 1 << 20
FILE = "fragment.zst"


async def reading(*, in_small_chunks: bool) -> AsyncGenerator[Subject]:
    """Compare a reader with a loop over the responses of a stub."""
    content = messages(APPENDED_BYTES)
    head = 0
    async with served_journals(JOURNAL, in_small_chunks=in_small_chunks) as client:
        for _ in range(JOURNAL_BYTES // len(content)):
            head = (await client.append(JOURNAL, content)).commit.end

        async with bare_read(client, head) as yardstick:
            yield Subject(partial(read_speed, client, head), yardstick)


for suffix, is_small, chunks, goal in (
    ("", False, "", 0.9),
    (".32k", True, " in chunks of 32 KiB, as Gazette's broker sends", 0.95),
):
    measure(
        f"read.raw{suffix}",
        goal=goal,
        unit="MB/s",
        rounds=15,
        about=f"client.read() of 128 MiB of a broker process{chunks}, against a bare loop over the "
        "responses of a stub",
    )(partial(reading, in_small_chunks=is_small))


@measure(
    "read.fragment",
    goal=0.7,
    unit="MB/s",
    rounds=9,
    about="a FragmentReader of a local zstd file of 128 MiB, against the streaming "
    "decompressor of zstandard on the same file, in this process",
)
async def fetching() -> AsyncGenerator[Subject]:
    """Compare a fragment reader with a streaming decompressor on the same file."""
    content = messages(JOURNAL_BYTES)
    fragment = pb.Fragment(
        journal=JOURNAL,
        end=len(content),
        compression_codec=pb.CompressionCodec.ZSTANDARD,
        sum=pb.sha1_sum(content),
    )
    with tempfile.TemporaryDirectory(prefix="gazette-bench-") as directory:
        path = Path(directory, FILE)
        path.write_bytes(zstandard.ZstdCompressor().compress(content))  # noqa: ASYNC240
        size = len(content)
        del content
        source = FragmentSource(file_root=directory)

        async def figure() -> float:
            count = 0
            begun = time.perf_counter()
            async with await source.open(fragment, 0, f"file:///{FILE}") as reader:
                async for chunk in reader:
                    count += len(chunk)
            elapsed = time.perf_counter() - begun
            assert count == size, count
            return count / elapsed / 1e6

        def decompress() -> float:
            count = 0
            begun = time.perf_counter()
            with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as plain:
                while chunk := plain.read(SLICE_BYTES):
                    count += len(chunk)
            elapsed = time.perf_counter() - begun
            assert count == size, count
            return count / elapsed / 1e6

        async def yardstick() -> float:
            return decompress()

        try:
            yield Subject(figure, yardstick)
        finally:
            await source.aclose()


def messages(size: int) -> bytes:
    """Return as many JSON lines as fill `size` bytes, the last one cut."""
    lines = b"".join(msgspec.json.encode(flight) + b"\n" for flight in flights())
    return (lines * (size // len(lines) + 1))[:size]
