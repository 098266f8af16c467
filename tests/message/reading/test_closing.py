"""Closing an iterator, cancelled wherever it may be suspended and called again, ends all it began."""

from __future__ import annotations

import asyncio

import pytest

import gazette_aio.protocol as pb
from gazette_aio.client import RetryPolicy, connect
from gazette_aio.message import (
    ACK_TXN,
    CONTINUE_TXN,
    OUTSIDE_TXN,
    ReadCommittedIter,
    ReadUncommittedIter,
    Sequencer,
    build_uuid,
    json_adapter,
)
from gazette_aio.testing.stub_broker import StubBroker
from tests.cancellation import cancel_at, close_at_every_await
from tests.client.support import content, listing, metadata
from tests.waiting import eventually, turns

pytestmark = pytest.mark.usefixtures("nothing_leaks", "quick_leaving")

ADAPTER = json_adapter()
SELECTOR = pb.parse_label_selector("name:prefix=a/")
JOURNALS = tuple(f"a/journal/{number}" for number in range(4))


def line(clock, flags=OUTSIDE_TXN):
    return ADAPTER.encode({"v": clock}, build_uuid(b"\x01abcde", clock, flags)) + b"\n"


ONE = line(1)
# More of a transaction than a sequencer of one message retains, and its commit.
REPLAYED = b"".join(line(2 + n, CONTINUE_TXN) for n in range(5)) + line(7, ACK_TXN)


class Stalling:
    """A broker whose journals all stall behind their content."""

    def __init__(self, broker):
        self.content = dict.fromkeys(JOURNALS, ONE)
        self.stall_replays = False
        self.replays = 0
        broker.read_handler = self.read
        broker.list_handler = self.list
        self.broker = broker

    def list(self, request):
        answer = listing(*JOURNALS)
        for journal in answer.journals:
            journal.spec.labels.labels.add(name="content-type", value="application/x-ndjson")
        return self._snapshots(answer) if request.watch else answer

    async def _snapshots(self, answer):
        yield answer
        await asyncio.Event().wait()

    async def read(self, request):
        data = self.content[request.journal]
        response = metadata(request.offset)
        response.header.route.endpoints[:] = [self.broker.endpoint]
        response.write_head = response.fragment.end = len(data)
        response.fragment.journal = request.journal
        yield response
        if request.end_offset:
            self.replays += 1
            if self.stall_replays:
                await asyncio.Event().wait()
        end = request.end_offset or len(data)
        if request.offset < end:
            yield content(request.offset, data[request.offset : end])
        if not request.end_offset:
            await asyncio.Event().wait()


@pytest.fixture
async def stalling():
    async with StubBroker() as broker:
        yield Stalling(broker)


@pytest.fixture
async def client(stalling):
    policy = RetryPolicy(backoff=lambda attempt: 3600.0)
    async with connect(stalling.broker.endpoint, retry=policy) as client:
        yield client


# What is read, with which options, and how many messages come.
SOURCES = {
    "a reader": lambda client: (client.read(JOURNALS[0], block=True), {}, 1),
    "a journal": lambda client: (JOURNALS[0], {"client": client, "block": True}, 1),
    "journals": lambda client: (JOURNALS, {"client": client, "block": True}, 4),
    "a selection": lambda client: (SELECTOR, {"client": client, "block": True}, 4),
}


@pytest.mark.parametrize("kind", [ReadUncommittedIter, ReadCommittedIter])
@pytest.mark.parametrize("source", SOURCES)
async def test_iterators(client, source, kind):
    async def opened():
        what, options, count = SOURCES[source](client)
        iterator = kind(what, ADAPTER, **options)
        for _ in range(count):
            await anext(iterator)
        return iterator

    def check():
        assert not client.context.rpc.streams
        assert client.status().streams == ()
        assert client.status().watches == ()

    assert await close_at_every_await(opened, check) >= 1


@pytest.mark.parametrize("source", SOURCES)
async def test_arrow(client, source):
    async def opened():
        what, options, count = SOURCES[source](client)
        iterator = ReadCommittedIter(what, ADAPTER, **options)
        batches = iterator.arrow()
        while count > 0:
            count -= len(await anext(batches))
        return iterator

    def check():
        assert not client.context.rpc.streams

    assert await close_at_every_await(opened, check) >= 1


async def all_of(iterator):
    async for _ in iterator:
        pass


async def test_while_a_replay_stalls(client, stalling):
    stalling.content[JOURNALS[0]] = REPLAYED
    stalling.stall_replays = True

    async def opened():
        iterator = ReadCommittedIter(
            JOURNALS[:2], ADAPTER, client=client, block=True, sequencer=Sequencer(buffer=1)
        )
        before = stalling.replays
        waiting = asyncio.create_task(all_of(iterator))
        await eventually(lambda: stalling.replays > before)
        waiting.cancel()
        await asyncio.wait([waiting])
        return iterator

    def check():
        assert not client.context.rpc.streams

    assert await close_at_every_await(opened, check) >= 1


async def test_whoever_waits_sees_the_end(client):
    """Also while a journal backs off, for an hour here."""
    iterator = ReadUncommittedIter(JOURNALS[0], ADAPTER, client=client, block=True)
    await anext(iterator)
    for stream in tuple(client.context.rpc.streams):
        stream.abandon()
    waiting = asyncio.create_task(anext(iterator))
    await turns(50)
    assert not waiting.done()
    assert not await cancel_at(iterator.aclose(), 100)
    with pytest.raises(StopAsyncIteration):
        await waiting
