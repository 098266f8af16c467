"""Closing, cancelled wherever it may be suspended and called again, ends what was begun."""

from __future__ import annotations

import asyncio

import pytest

from gazette_aio.client import RetryPolicy, connect
from gazette_aio.spark import bridge
from gazette_aio.spark.options import SourceOptions
from gazette_aio.spark.reading.bounded import BoundedReader
from gazette_aio.spark.reading.content import RangeContent
from gazette_aio.spark.reading.record_bounds import RecordBounds
from gazette_aio.spark.sink.appending import TaskAppends
from gazette_aio.testing import no_leaks
from gazette_aio.testing.stub_broker import StubBroker
from tests.cancellation import cancel_at, close_at_every_await
from tests.client.support import JOURNAL, MemoryJournals, content, metadata

CONTENT = b"0123456789\n" * 10
HOUR = RetryPolicy(backoff=lambda attempt: 3600.0)


@pytest.fixture
async def broker():
    """A broker which stalls behind the content of its journals, and in appends."""
    async with no_leaks(grace_seconds=20.0), StubBroker() as broker:
        journals = MemoryJournals(broker)
        journals.gate.clear()

        async def read(request):
            answer = metadata(request.offset)
            answer.header.route.endpoints[:] = [broker.endpoint]
            yield answer
            yield content(request.offset, CONTENT[request.offset :])
            await asyncio.Event().wait()

        broker.read_handler = read
        yield broker
        journals.gate.set()


@pytest.fixture
async def client(broker):
    async with connect(broker.endpoint, retry=HOUR) as client:
        yield client


async def a_bounded_reader(client):
    reader = BoundedReader(client, JOURNAL, 0, 200, direct=False)
    assert await anext(reader) == (0, CONTENT)
    return reader


async def a_range(client):
    options = SourceOptions.parse(
        {"brokers": client.endpoint, "journals": JOURNAL, "io": "broker"}, streaming=False
    )
    bounds = RecordBounds(0, 200, 200, lines=True, is_aligned=True)
    ranged = RangeContent(client, JOURNAL, bounds, options, step_bytes=len(CONTENT))
    assert await ranged.take() == [(0, CONTENT)]
    return ranged


async def appends(client):
    pending = TaskAppends(client, HOUR, append_bytes=1)
    for number in range(3):
        await pending.put(f"a/journal/{number}", CONTENT)
    for _ in range(10):
        await asyncio.sleep(0)
    return pending


@pytest.mark.parametrize("opened", [a_bounded_reader, a_range, appends])
async def test_what_reads_and_appends(client, opened):
    def check():
        assert not client.context.rpc.streams

    assert await close_at_every_await(lambda: opened(client), check) >= 1


async def test_clients(broker):
    class Clients:
        aclose = staticmethod(bridge.close_clients)

    async def opened():
        for number in range(3):
            client = await bridge.client_of((broker.endpoint, number), lambda key: connect(key[0]))
            clients.append(client)
            readers.append(await a_bounded_reader(client))
        return Clients()

    def check():
        for client in clients:
            assert not client.context.rpc.streams
            with pytest.raises(RuntimeError, match="is closed"):
                client.context.dispatcher.check()
        clients.clear()

    clients, readers = [], []
    assert await close_at_every_await(opened, check) >= 1
    for reader in readers:
        await reader.aclose()


async def test_a_client_which_is_asked_for_meanwhile_is_a_new_one(broker):
    before = await bridge.client_of(broker.endpoint, connect)
    readers = [await a_bounded_reader(before)]
    assert await cancel_at(bridge.close_clients(), 0)
    after = await bridge.client_of(broker.endpoint, connect)
    assert after is not before
    readers.append(await a_bounded_reader(after))
    await bridge.close_clients()
    for reader in readers:
        await reader.aclose()
    for client in (before, after):
        assert not client.context.rpc.streams
