"""A gRPC server which does next to nothing with what it gets: the yardstick of a broker.

`python -m benchmarks.bare_server` prints its target, and serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import struct
import sys
import tempfile
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

BARE_READ = "/bare/Read"
"""Answers the number of messages which is asked for, all the same: unary-stream."""
STORE = "/bare/Store"
"""Hashes messages by SHA-1 and writes them to a file up to the end, and answers the digest:
stream-unary."""
APPEND_INTERVAL = "/bare/AppendInterval"
"""Receives messages to the end, writes what a broker writes of an append to files of the first
message, and answers the digest. The files are synced at intervals: stream-unary."""
APPEND_COMMIT = "/bare/AppendCommit"
"""The same as APPEND_INTERVAL, where the answer waits for a sync in a thread. A sync serves all
calls for the same files that came before it: stream-unary."""
CHUNK_BYTES = 128 << 10
SYNC_SECONDS = 0.05
"""Interval of syncs, as of a broker."""


async def _read(request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    message = bytes(CHUNK_BYTES)
    for _ in range(int(request)):
        await context.write(message)


async def _store(messages: AsyncIterator[bytes], descriptor: int) -> bytes:
    digest = hashlib.sha1(usedforsecurity=False)
    async for message in messages:
        digest.update(message)
        os.write(descriptor, message)
    return digest.digest()


class _Journal:
    """Files of a journal: content, a record of each append, and a mark of the newest one."""

    def __init__(self) -> None:
        self._files = [tempfile.TemporaryFile(prefix="gazette-bench-") for _ in range(3)]  # noqa: SIM115
        self._content, self._records, self._mark = (file.fileno() for file in self._files)
        self._ends = [0, 0]
        self._waiting: list[asyncio.Future[None]] = []
        self._syncing: asyncio.Task[None] | None = None

    def append(self, content: bytes) -> bytes:
        digest = hashlib.sha1(content, usedforsecurity=False).digest()
        end, record_end = self._ends
        record = struct.pack("<QQ20sd", end, len(content), digest, time.time())
        os.pwrite(self._content, content, end)
        os.pwrite(self._records, record, record_end)
        os.pwrite(self._mark, record[:36], 0)
        self._ends = [end + len(content), record_end + len(record)]
        return digest

    def sync(self) -> None:
        os.fdatasync(self._content)
        os.fdatasync(self._records)

    async def synced(self) -> None:
        synced = asyncio.get_running_loop().create_future()
        self._waiting.append(synced)
        if self._syncing is None:
            self._syncing = asyncio.create_task(self._sync())
        await synced

    async def _sync(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            await asyncio.to_thread(self.sync)
            for synced in waiting:
                synced.set_result(None)
        self._syncing = None


class _Journals:
    """Journals by the first message of their appends."""

    def __init__(self) -> None:
        self._journals: defaultdict[bytes, _Journal] = defaultdict(_Journal)
        self._unsynced: set[_Journal] = set()
        self._syncing: asyncio.Task[None] | None = None

    async def append(self, messages: AsyncIterator[bytes], _context: Any) -> bytes:
        journal, digest = await self._append(messages)
        self._unsynced.add(journal)
        if self._syncing is None:
            self._syncing = asyncio.create_task(self._sync())
        return digest

    async def append_synced(self, messages: AsyncIterator[bytes], _context: Any) -> bytes:
        journal, digest = await self._append(messages)
        await journal.synced()
        return digest

    async def _append(self, messages: AsyncIterator[bytes]) -> tuple[_Journal, bytes]:
        first, *rest = [message async for message in messages]
        journal = self._journals[first]
        return journal, journal.append(b"".join(rest))

    async def _sync(self) -> None:
        await asyncio.sleep(SYNC_SECONDS)
        unsynced, self._unsynced = self._unsynced, set()
        self._syncing = None
        for journal in unsynced:
            await asyncio.to_thread(journal.sync)


async def serve() -> None:
    """Serve until standard input ends."""
    with tempfile.TemporaryFile(prefix="gazette-bench-") as file:
        await _serve(file.fileno())


async def _serve(descriptor: int) -> None:
    async def store(messages: AsyncIterator[bytes], _context: Any) -> bytes:
        return await _store(messages, descriptor)

    journals = _Journals()
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Read": grpc.unary_stream_rpc_method_handler(_read),
        "Store": grpc.stream_unary_rpc_method_handler(store),
        "AppendInterval": grpc.stream_unary_rpc_method_handler(journals.append),
        "AppendCommit": grpc.stream_unary_rpc_method_handler(journals.append_synced),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


if __name__ == "__main__":
    asyncio.run(serve())
