"""Closing, cancelled wherever it may be suspended and then called again, leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

import gazette_aio.protocol as pb
from gazette_aio.client import (
    AppendService,
    BufferedRetryReader,
    JournalClient,
    PolledList,
    Reader,
    RetryPolicy,
    connect,
)
from gazette_aio.testing.stub_broker import StubBroker
from tests.cancellation import Closeable, cancel_at, close_at_every_await
from tests.client.appends.spool_files import SpoolFiles
from tests.client.fragments.fragment_support import (
    FakeBody,
    FakeFetcher,
    RawStore,
    fragment_of,
    head,
)
from tests.client.support import JOURNAL, MemoryJournals, content, listing, metadata
from tests.waiting import eventually, turns

DIRECT = "a/direct/journal"
CONTENT = b"0123456789" * 10
URL = "http://store/fragment"
FRAGMENT = fragment_of(CONTENT)
HOUR = RetryPolicy(backoff=lambda attempt: 3600.0)


class SlowBody(FakeBody):
    """A body which takes a while to close."""

    async def aclose(self) -> None:
        await turns(20)
        await super().aclose()


class Stalled:
    """A broker and a store which stall in the middle of everything.

    Args:
        broker: The stub which it answers for.
    """

    def __init__(self, broker: StubBroker) -> None:
        self.fetcher = FakeFetcher(make=self._body)
        self.journals = MemoryJournals(broker)
        broker.read_handler = self._read
        broker.list_handler = self._list
        self._broker = broker

    def open_client(self) -> JournalClient:
        return connect(
            self._broker.endpoint, retry=HOUR, fragment_fetcher=self.fetcher, drain_timeout=3600
        )

    @property
    def open_bodies(self) -> int:
        return sum(not body.closed for body in self.fetcher.opened)

    def _body(self) -> FakeBody:
        body = SlowBody([CONTENT[:50]])
        body.after = asyncio.Event().wait
        return body

    async def _read(self, request: pb.ReadRequest) -> AsyncIterator[pb.ReadResponse]:
        if request.journal == DIRECT:
            response = metadata(request.offset, fragment_url=URL)
            response.fragment.CopyFrom(FRAGMENT)
        else:
            response = metadata(request.offset)
        response.header.route.endpoints[:] = [self._broker.endpoint]
        yield response
        if request.journal != DIRECT:
            yield content(request.offset, CONTENT)
            await asyncio.Event().wait()

    def _list(self, request: pb.ListRequest) -> pb.ListResponse | AsyncIterator[pb.ListResponse]:
        return self._snapshots() if request.watch else listing(JOURNAL)

    async def _snapshots(self) -> AsyncIterator[pb.ListResponse]:
        yield listing(JOURNAL)
        await asyncio.Event().wait()


@pytest.fixture
def stalled(broker: StubBroker) -> Stalled:
    return Stalled(broker)


@pytest.fixture
async def stalled_client(stalled: Stalled) -> AsyncIterator[JournalClient]:
    async with stalled.open_client() as client:
        yield client


Open = Callable[[JournalClient], Awaitable[Closeable]]


async def a_reader(client: JournalClient) -> Reader:
    reader = Reader(client, pb.ReadRequest(journal=JOURNAL, block=True))
    assert await reader.read() == CONTENT
    return reader


async def a_reader_of_a_fragment(client: JournalClient) -> Reader:
    reader = Reader(client, pb.ReadRequest(journal=DIRECT, offset=100, do_not_proxy=True))
    assert await reader.read() == CONTENT[:50]
    return reader


async def a_retry_reader(client: JournalClient) -> Closeable:
    reader = client.read(JOURNAL, block=True)
    assert await reader.read() == CONTENT
    return reader


async def a_retry_reader_of_a_fragment(client: JournalClient) -> Closeable:
    reader = client.read(DIRECT, offset=100, direct=True)
    assert await reader.read() == CONTENT[:50]
    return reader


async def a_retry_reader_in_a_seek(client: JournalClient) -> Closeable:
    """It had to give up its RPC, which the seek was cancelled in."""
    reader = client.read(JOURNAL, block=True)
    assert await reader.read() == CONTENT
    assert await cancel_at(reader.seek(7), 0)
    return reader


async def a_retry_reader_in_a_restart(client: JournalClient) -> Closeable:
    reader = client.read(DIRECT, offset=100, direct=True)
    assert await reader.read() == CONTENT[:50]
    assert await cancel_at(reader.restart(pb.ReadRequest(journal=JOURNAL)), 0)
    return reader


async def a_buffered_reader(client: JournalClient) -> Closeable:
    reader = BufferedRetryReader(client.read(JOURNAL, block=True))
    assert await reader.readexactly(10) == CONTENT[:10]
    return reader


async def a_fragment_reader(client: JournalClient) -> Closeable:
    reader = await client.fragments.open(FRAGMENT, 100, URL)
    assert await reader.read(1) == CONTENT[:1]
    return reader


async def a_watched_list(client: JournalClient) -> Closeable:
    watched = client.watch("name:prefix=a/")
    await watched.__aenter__()
    await watched.ready()
    return watched


async def a_polled_list(client: JournalClient) -> Closeable:
    polled = PolledList(client, "name:prefix=a/")
    await polled.__aenter__()
    await polled.ready()
    return polled


OPEN: tuple[Open, ...] = (
    a_reader,
    a_reader_of_a_fragment,
    a_retry_reader,
    a_retry_reader_of_a_fragment,
    a_retry_reader_in_a_seek,
    a_retry_reader_in_a_restart,
    a_buffered_reader,
    a_fragment_reader,
    a_watched_list,
    a_polled_list,
)


@pytest.mark.parametrize("opened", OPEN)
async def test_what_a_client_opens(
    stalled: Stalled, stalled_client: JournalClient, opened: Open
) -> None:
    def check() -> None:
        assert stalled_client.status().streams == ()
        assert not stalled_client.context.rpc.streams
        assert stalled.open_bodies == 0

    assert await close_at_every_await(lambda: opened(stalled_client), check) >= 1
    gc.collect()


@pytest.mark.parametrize("opened", OPEN)
async def test_a_client_with_something_open(stalled: Stalled, opened: Open) -> None:
    kept: list[Closeable] = []

    async def open_client() -> JournalClient:
        client = stalled.open_client()
        kept[:] = [await opened(client)]
        return client

    def check() -> None:
        assert stalled.open_bodies == 0

    for number in range(10):
        client = await open_client()
        was_cancelled = await cancel_at(client.aclose(), number)
        # Lists are closed by those who opened them.
        await kept[0].aclose()
        await client.aclose()
        assert client.status().streams == ()
        assert not client.context.rpc.streams
        check()
        if not was_cancelled:
            break
    else:
        raise AssertionError("closing a client doesn't come to its end")


async def test_a_service_with_pending_appends(
    stalled: Stalled, stalled_client: JournalClient, tmp_path: Path
) -> None:
    stalled.journals.gate.clear()

    async def opened() -> AppendService:
        service = AppendService(stalled_client, drain_timeout=0.01, spool_directory=str(tmp_path))
        for journal in ("a/one", "a/two"):
            async with service.append(journal) as append:
                append.write(bytes(1 << 20))
        return service

    assert await close_at_every_await(opened, lambda: None) >= 1
    stalled.journals.gate.set()


async def test_a_service_waits_for_its_files(
    stalled: Stalled, stalled_client: JournalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk which is slow to write doesn't outlive the service."""
    written = threading.Event()

    def slow(name: str, _: int) -> None:
        if name == "write":
            written.wait(60)

    files = SpoolFiles(monkeypatch, slow)
    stalled_client.context.append_memory.free_bytes = 0
    stalled.journals.gate.clear()
    service = AppendService(stalled_client, drain_timeout=0)
    append = await service.start_append(JOURNAL)
    append.write(bytes(1 << 20))
    draining = asyncio.create_task(append.drain())
    await eventually(lambda: "write" in files.calls)
    append.release()
    closing = asyncio.create_task(service.aclose())
    await turns()
    assert not closing.done()
    written.set()
    await closing
    await draining
    assert [file.closed for file in files.files] == [True]
    stalled.journals.gate.set()


async def test_a_fetcher_with_a_connection(tmp_path: Path) -> None:
    from gazette_aio.client import HTTPFragmentFetcher, open_fragment_url

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head(Content_Length=len(CONTENT)) + CONTENT)
        await writer.drain()

    async with RawStore(answer) as store:

        async def opened() -> Closeable:
            fetcher = HTTPFragmentFetcher()
            async with await open_fragment_url(
                FRAGMENT, 100, store.url(), transport=fetcher
            ) as reader:
                assert await reader.read() == CONTENT
            return fetcher

        await close_at_every_await(opened)


async def test_closing_ends_a_pause(stalled_client: JournalClient, broker: StubBroker) -> None:
    """A reader which backs off, for an hour here, is closed at once, and so its read ends."""

    async def fail(request: pb.ReadRequest) -> AsyncIterator[pb.ReadResponse]:
        failed.set()
        return
        yield

    failed = asyncio.Event()
    broker.read_handler = fail
    reader = stalled_client.read(JOURNAL, block=True)
    reading = asyncio.create_task(reader.read())
    await failed.wait()
    await eventually(lambda: "1 failures" in repr(reader))
    await reader.aclose()
    with pytest.raises(RuntimeError, match="is closed"):
        await reading


async def test_a_reader_is_read_on_after_a_cancelled_restart(
    stalled: Stalled, stalled_client: JournalClient
) -> None:
    """The reader which is being dropped isn't read from again."""
    reader = stalled_client.read(JOURNAL, block=True)
    for offset in (50, 70):
        assert await reader.read() == CONTENT
        assert await cancel_at(reader.seek(offset), 0)
        assert reader.offset == offset
    assert await reader.read() == CONTENT
    await reader.aclose()
    assert not stalled_client.context.rpc.streams
