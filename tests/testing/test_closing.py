"""Closing, cancelled wherever it may be suspended and called again, ends what was begun."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator

import gazette_aio.protocol as pb
from gazette_aio.client import connect
from gazette_aio.testing import FaultProxy, no_leaks
from gazette_aio.testing.stub_broker import StubBroker
from tests.cancellation import cancel_at, close_at_every_await
from tests.client.support import JOURNAL, content, metadata


async def test_a_proxy_with_connections() -> None:
    async with no_leaks():
        arrived: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
        server = await asyncio.start_server(
            lambda reader, writer: arrived.put_nowait(writer), "127.0.0.1", 0
        )
        port = server.sockets[0].getsockname()[1]
        writers = []

        async def opened() -> FaultProxy:
            proxy = FaultProxy(f"http://127.0.0.1:{port}")
            await proxy.start()
            for _ in range(3):
                host, _, there = proxy.endpoint.removeprefix("http://").rpartition(":")
                _, writer = await asyncio.open_connection(host, int(there))
                writers.extend((writer, await arrived.get()))
            assert proxy.connections == 3
            return proxy

        assert await close_at_every_await(opened) >= 1
        for writer in writers:
            writer.close()
        server.close()


async def test_a_scripted_broker_with_an_rpc() -> None:
    async def read(request: pb.ReadRequest) -> AsyncIterator[pb.ReadResponse]:
        yield metadata(request.offset)
        yield content(request.offset, b"content")
        await asyncio.Event().wait()

    async with no_leaks():
        for number in itertools.count():
            broker = StubBroker()
            await broker.start()
            broker.read_handler = read
            async with connect(broker.endpoint) as client, client.read(JOURNAL) as reader:
                assert await reader.read() == b"content"
                was_cancelled = await cancel_at(broker.stop(), number)
                await broker.stop()
                assert broker.open_rpcs == 0
            if not was_cancelled:
                break
        assert number >= 1
