"""Append bytes to a journal, and read them back.

`python -m examples.append_and_read` runs it on an embedded broker; with a URL behind it, on that
broker. The journal is created if it isn't there.
"""

from __future__ import annotations

import asyncio
import sys

from gazette_aio import EmbeddedBroker, connect, load_journal_space

JOURNAL = "examples/greetings"
SPEC = """
name: examples/greetings
replication: 1
fragment: {length: 1048576, compression_codec: NONE, refresh_interval: 1m0s}
"""


async def append_and_read(endpoint: str) -> bytes:
    """Append two lines to the journal, and return what the journal got."""
    async with connect(endpoint) as client:
        if not (await client.list(f"name={JOURNAL}")).journals:
            await client.apply(load_journal_space(SPEC).to_apply_request())

        response = await client.append(JOURNAL, b"hello\n", b"journal\n")
        begin, end = response.commit.begin, response.commit.end

        async with client.read(JOURNAL, offset=begin, end_offset=end) as reader:
            return b"".join([chunk async for chunk in reader])


async def main() -> None:
    if len(sys.argv) > 1:
        print((await append_and_read(sys.argv[1])).decode(), end="")
        return
    async with EmbeddedBroker() as broker:
        print((await append_and_read(broker.endpoint)).decode(), end="")


if __name__ == "__main__":
    asyncio.run(main())
