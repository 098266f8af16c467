"""A gRPC server which does next to nothing with what it gets: the yardstick of a broker.

`python -m benchmarks.bare_server` prints its target, and serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

BARE_READ = "/bare/Read"
"""Answers the number of messages which is asked for, all the same: unary-stream."""
ECHO = "/bare/Echo"
"""Receives messages to the end, and answers them in one: stream-unary."""
STORE = "/bare/Store"
"""Hashes messages by SHA-1 and writes them to a file up to the end, and answers the digest:
stream-unary."""
SYNCED_ECHO = "/bare/SyncedEcho"
"""The same as ECHO, and writes and syncs the messages before it answers: stream-unary."""
BATCHED_ECHO = "/bare/BatchedEcho"
"""The same as SYNCED_ECHO, where one sync in a thread serves all calls that came before it."""
CHUNK_BYTES = 128 << 10


async def _read(request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    message = bytes(CHUNK_BYTES)
    for _ in range(int(request)):
        await context.write(message)


async def _echo(messages: AsyncIterator[bytes], _context: Any) -> bytes:
    return b"".join([message async for message in messages])


class _File:
    """A file which messages are written to the end of."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waiting: list[asyncio.Future[None]] = []
        self._syncing: asyncio.Task[None] | None = None

    async def store(self, messages: AsyncIterator[bytes], _context: Any) -> bytes:
        digest = hashlib.sha1(usedforsecurity=False)
        async for message in messages:
            digest.update(message)
            os.write(self._descriptor, message)
        return digest.digest()

    async def synced_echo(self, messages: AsyncIterator[bytes], context: Any) -> bytes:
        answer = await _echo(messages, context)
        os.write(self._descriptor, answer)
        os.fdatasync(self._descriptor)
        return answer

    async def batched_echo(self, messages: AsyncIterator[bytes], context: Any) -> bytes:
        answer = await _echo(messages, context)
        os.write(self._descriptor, answer)
        synced = asyncio.get_running_loop().create_future()
        self._waiting.append(synced)
        if self._syncing is None:
            self._syncing = asyncio.create_task(self._sync())
        await synced
        return answer

    async def _sync(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            await asyncio.to_thread(os.fdatasync, self._descriptor)
            for synced in waiting:
                synced.set_result(None)
        self._syncing = None


async def serve() -> None:
    """Serve until standard input ends."""
    with tempfile.TemporaryFile(prefix="gazette-bench-") as file:
        await _serve(_File(file.fileno()))


async def _serve(file: _File) -> None:
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Read": grpc.unary_stream_rpc_method_handler(_read),
        "Echo": grpc.stream_unary_rpc_method_handler(_echo),
        "Store": grpc.stream_unary_rpc_method_handler(file.store),
        "SyncedEcho": grpc.stream_unary_rpc_method_handler(file.synced_echo),
        "BatchedEcho": grpc.stream_unary_rpc_method_handler(file.batched_echo),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


if __name__ == "__main__":
    asyncio.run(serve())
