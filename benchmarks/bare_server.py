"""A gRPC server which does nothing with what it gets: the yardstick of a broker.

`python -m benchmarks.bare_server` prints its port, and serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

BARE_READ = "/bare/Read"
"""Answers the number of messages which is asked for, all the same: unary-stream."""
DISCARD = "/bare/Discard"
"""Receives messages to the end, and answers nothing: stream-unary."""
ECHO = "/bare/Echo"
"""Receives messages to the end, and answers them in one: stream-unary."""
CHUNK_BYTES = 128 << 10


async def _read(request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    message = bytes(CHUNK_BYTES)
    for _ in range(int(request)):
        await context.write(message)


async def _discard(messages: AsyncIterator[bytes], _context: Any) -> bytes:
    async for _ in messages:
        pass
    return b""


async def _echo(messages: AsyncIterator[bytes], _context: Any) -> bytes:
    return b"".join([message async for message in messages])


async def serve() -> None:
    """Serve until standard input ends."""
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Read": grpc.unary_stream_rpc_method_handler(_read),
        "Discard": grpc.stream_unary_rpc_method_handler(_discard),
        "Echo": grpc.stream_unary_rpc_method_handler(_echo),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


@asynccontextmanager
async def bare_server() -> AsyncGenerator[str]:
    """Run the server in a process of its own, and yield its target."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.bare_server", stdin=pipe, stdout=pipe
    )
    try:
        assert process.stdout is not None
        yield f"127.0.0.1:{int(await process.stdout.readline())}"
    finally:
        await process.communicate(b"")  # Its standard input ends with that.


if __name__ == "__main__":
    asyncio.run(serve())
