"""A broker in a process of its own, which sends content in small chunks, as Gazette's does.

`python -m benchmarks.chunked_broker` prints its endpoint, and serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from gazette_aio.broker import EmbeddedBroker

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

CHUNK_BYTES = 32 << 10


async def serve() -> None:
    """Serve until standard input ends."""
    async with EmbeddedBroker(chunk_size=CHUNK_BYTES) as broker:
        print(broker.endpoint, flush=True)
        await asyncio.to_thread(sys.stdin.read)


@asynccontextmanager
async def chunked_broker() -> AsyncGenerator[str]:
    """Run the broker in a process of its own, and yield its endpoint."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.chunked_broker", stdin=pipe, stdout=pipe
    )
    try:
        assert process.stdout is not None
        yield (await process.stdout.readline()).decode().strip()
    finally:
        await process.communicate(b"")  # Its standard input ends with that.


if __name__ == "__main__":
    asyncio.run(serve())
