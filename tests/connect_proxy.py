"""HTTP proxy on loopback, which opens each tunnel to the loopback port that a client names."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from gazette_aio.aio.task import start_task


class ConnectProxy:
    """Requests that a proxy got."""

    def __init__(self) -> None:
        self.url = ""
        self.heads: list[str] = []
        """Heads of requests."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        method, target, _ = head.split(maxsplit=2)
        if method != "CONNECT":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nproxied")
            writer.close()
            return
        up = await asyncio.open_connection("127.0.0.1", int(target.rpartition(":")[2]))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        for source, sink in ((reader, up[1]), (up[0], writer)):
            self._tasks.add(start_task(pump(source, sink), "pump"))

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()
    except OSError:
        pass
    finally:
        sink.close()


@contextlib.asynccontextmanager
async def connect_proxy() -> AsyncGenerator[ConnectProxy]:
    proxy = ConnectProxy()
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.url = f"http://user:secret@127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        await proxy.aclose()
