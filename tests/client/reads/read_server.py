"""A broker of one endless journal: `python -m tests.client.reads.read_server`.

It prints its port, and serves until its standard input ends. A Read RPC begins at the offset asked
for, and is given content in messages of 128 KiB up to the end asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

import gazette_aio.protocol as pb
from gazette_aio.protocol.service import SERVICE_NAME
from tests.client.support import header

CHUNK_BYTES = 128 << 10
ROOT = Path(__file__).parents[3]
CONTENT = bytes(range(256)) * (CHUNK_BYTES // 256)


async def _read(data: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    request = pb.ReadRequest.FromString(data)
    offset, end = request.offset, request.end_offset
    fragment = pb.Fragment(
        journal=request.journal,
        begin=offset,
        end=end,
        compression_codec=pb.CompressionCodec.NONE,
        sum=pb.sha1_sum(b"content"),
    )
    metadata = pb.ReadResponse(offset=offset, write_head=end, fragment=fragment, header=header())
    await context.write(metadata.SerializeToString())
    while offset < end:
        content = CONTENT[: end - offset]
        await context.write(pb.ReadResponse(offset=offset, content=content).SerializeToString())
        offset += len(content)


async def serve() -> None:
    """Serve until standard input ends."""
    server = grpc.aio.server()
    handler = grpc.unary_stream_rpc_method_handler(_read)
    handlers = grpc.method_handlers_generic_handler(SERVICE_NAME, {"Read": handler})
    server.add_generic_rpc_handlers((handlers,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


@contextlib.contextmanager
def read_server() -> Iterator[str]:
    """Run the server in a process of its own, and yield its endpoint."""
    command = [sys.executable, "-m", "tests.client.reads.read_server"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.communicate(b"")  # Its standard input ends with that.


if __name__ == "__main__":
    asyncio.run(serve())
