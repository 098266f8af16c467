from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator

import pytest

import gazette_aio.protocol as pb
from gazette_aio.client import JournalClient, Reader, StreamStatus, connect
from gazette_aio.testing.stub_broker import StubBroker
from tests.client.support import JOURNAL, MemoryJournals, content, listing, metadata, script_read
from tests.waiting import eventually


def test_of_a_client_which_was_not_used() -> None:
    status = connect("http://127.0.0.1:1").status()
    assert (status.endpoint, status.connection) == ("http://127.0.0.1:1", "idle")
    assert (status.streams, status.watches, status.members) == ((), (), ())
    assert (status.appends.appends, status.appends.pending_bytes) == (0, 0)
    assert pickle.loads(pickle.dumps(status)) == status
    with pytest.raises(AttributeError):
        status.connection = "ready"  # type: ignore[misc]


async def test_of_a_reader(broker: StubBroker, client: JournalClient) -> None:
    async with Reader(client, pb.ReadRequest(journal=JOURNAL, offset=-1, block=True)) as reader:
        assert client.status().streams == ()  # Nothing is under way before the first read.
        reading = asyncio.create_task(reader.next_response())
        await broker.read_requests.get()
        (stream,) = client.status().streams
        assert stream == StreamStatus(journal=JOURNAL, endpoint=broker.endpoint, waiting_bytes=0)
        assert stream.lag is None

        broker.read_responses.put_nowait(metadata(100))
        with pytest.raises(pb.OffsetJumpError):
            await reading
        broker.read_responses.put_nowait(content(100, b"hello, world"))
        assert await reader.read(5) == b"hello"
        broker.read_responses.put_nowait(content(112, b"more"))
        await eventually(lambda: client.status().streams[0].waiting_bytes > 4)
        (stream,) = client.status().streams
        assert (stream.offset, stream.write_head, stream.lag) == (105, 1024, 919)
        assert not stream.is_direct
        assert pickle.loads(pickle.dumps(stream)) == stream

        broker.read_responses.put_nowait(content(116, bytes(1000)))
        while reader.offset < 1116:
            await reader.read()
        # The head isn't told with content.
        assert client.status().streams[0].lag == 0
        broker.finish()
    assert client.status().streams == ()


async def test_of_readers_which_are_done_or_dropped(
    broker: StubBroker, client: JournalClient
) -> None:
    script_read(broker, 0, b"content")
    reader = Reader(client, pb.ReadRequest(journal=JOURNAL, end_offset=7))
    assert b"".join([chunk async for chunk in reader]) == b"content"
    assert client.status().streams == ()
    await reader.aclose()
    assert list(client.context.readers) == [reader]
    del reader
    assert list(client.context.readers) == []
    await broker.read_requests.get()


async def test_of_a_stream_without_reader(broker: StubBroker, client: JournalClient) -> None:
    stream = await client.context.rpc.read(pb.ReadRequest(journal=JOURNAL))
    await broker.read_requests.get()
    assert [(each.journal, each.offset) for each in client.status().streams] == [(JOURNAL, None)]
    await stream.aclose()
    assert client.status().streams == ()


async def test_of_appends(broker: StubBroker, client: JournalClient) -> None:
    journals = MemoryJournals(broker)
    journals.gate.clear()
    for _ in range(3):
        async with client.appends.append(JOURNAL) as append:
            append.write(b"content")
    appends = client.status().appends
    assert (appends.journals, appends.batches, appends.appends) == (1, 1, 3)
    assert appends.pending_bytes == 21
    journals.gate.set()
    await client.appends.flush()
    await eventually(lambda: client.status().appends.journals == 0)
    assert client.status().appends.appends == 0


async def test_of_a_watch(broker: StubBroker, client: JournalClient) -> None:
    more = asyncio.Event()

    async def watch() -> AsyncIterator[pb.ListResponse]:
        yield listing("a/journal", "b/journal")
        await more.wait()

    broker.list_handler = lambda request: watch()
    watched = client.watch("name=a/journal")
    assert client.status().watches == ()
    async with watched:
        await watched.ready()
        (status,) = client.status().watches
        assert (status.selector, status.state) == ("name=a/journal", "watching")
        assert (status.journals, status.revision, status.last_error) == (2, 56, None)
        assert [stream.journal for stream in client.status().streams] == [""]
        assert pickle.loads(pickle.dumps(status)) == status
    assert client.status().watches == ()
    more.set()
