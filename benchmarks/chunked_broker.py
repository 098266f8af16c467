"""A broker in a process of its own, which sends content in small chunks, as Gazette's does.

`python -m benchmarks.chunked_broker` prints its endpoint, and serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import sys

from gazette_aio.broker import EmbeddedBroker

CHUNK_BYTES = 32 << 10


async def serve() -> None:
    """Serve until standard input ends."""
    async with EmbeddedBroker(chunk_size=CHUNK_BYTES) as broker:
        print(broker.endpoint, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve())
