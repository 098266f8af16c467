"""Public coroutines of the client, cancelled wherever they may be suspended."""

from __future__ import annotations

import asyncio
import io
import itertools
from collections.abc import AsyncIterator

import pytest

import gazette_aio.protocol as pb
from gazette_aio.client import (
    Appender,
    AppendService,
    JournalClient,
    PolledList,
    Reader,
    RetryPolicy,
    RetryReader,
    apply_journals,
    connect,
    get_journal,
    iter_fragments,
    iter_journals,
)
from gazette_aio.testing.stub_broker import StubBroker
from tests.cancellation import cancel_at, cancel_at_every_await
from tests.client.support import JOURNAL, MemoryJournals, content, header, listing, metadata
from tests.waiting import eventually

CONTENT = b"".join(b"%04d" % number for number in range(50))


@pytest.fixture
async def serving(broker: StubBroker) -> MemoryJournals:
    """A stub which serves whatever is asked for."""

    async def read(request: pb.ReadRequest) -> AsyncIterator[pb.ReadResponse]:
        yield metadata(request.offset)
        for offset in range(request.offset, len(CONTENT), 40):
            await asyncio.sleep(0)
            yield content(offset, CONTENT[offset : offset + 40][: 40 - offset % 4])
            if offset % 3 == 0:
                return  # As brokers do.

    broker.read_handler = read
    broker.list_handler = lambda request: listing(*(f"a/journal/{n:02}" for n in range(60)))
    broker.apply_handler = lambda request: pb.ApplyResponse(header=header())
    broker.fragments_handler = lambda request: pb.FragmentsResponse(
        header=header(), next_page_token=7 if not request.next_page_token else 0
    )
    broker.health_handler = lambda request: pb.FragmentStoreHealthResponse(header=header())
    return MemoryJournals(broker)


async def quiet(broker: StubBroker, client: JournalClient) -> None:
    # An RPC whose closing was cancelled ends on its own.
    await eventually(lambda: broker.open_rpcs == 0 and client.status().streams == ())


async def test_listings(broker: StubBroker, client: JournalClient, serving: object) -> None:
    for operation in (
        lambda: client.list(),
        lambda: get_journal(client, "a/journal/00"),
        lambda: apply_journals(client, [], batch_size=1),
        lambda: client.list_fragments(JOURNAL),
        lambda: client.fragment_store_health("file:///store/"),
    ):

        async def check() -> None:
            await quiet(broker, client)

        assert await cancel_at_every_await(operation, check) >= 1
    assert len((await client.list()).journals) == 60


async def test_the_first_call_dials(broker: StubBroker, serving: object) -> None:
    async def operation() -> None:
        async with connect(broker.endpoint) as client:
            await client.list()

    async def check() -> None:
        await eventually(lambda: broker.open_rpcs == 0)

    assert await cancel_at_every_await(operation, check) > 2


async def test_reads(broker: StubBroker, client: JournalClient, serving: object) -> None:
    chunks: list[bytes] = []
    reader = client.read(JOURNAL, end_offset=len(CONTENT))

    async def operation() -> None:
        await reader.restart(pb.ReadRequest(journal=JOURNAL, end_offset=len(CONTENT)))
        chunks.clear()
        async for chunk in reader:
            chunks.append(chunk)  # noqa: PERF401

    async def check() -> None:
        # Nothing is lost: reading on brings what is missing.
        begin = len(b"".join(chunks))
        if reader.offset != begin:
            await reader.seek(begin)
        async for chunk in reader:
            chunks.append(chunk)  # noqa: PERF401
        assert b"".join(chunks) == CONTENT
        assert reader.offset == len(CONTENT)

    assert await cancel_at_every_await(operation, check) > 10
    await reader.aclose()
    await quiet(broker, client)


async def test_reads_continue_in_place(
    broker: StubBroker, client: JournalClient, serving: object
) -> None:
    """The same, without so much as a seek: a cancelled read took nothing."""

    async def read_on(reader: RetryReader, chunks: list[bytes]) -> None:
        async for chunk in reader:
            chunks.append(chunk)  # noqa: PERF401

    number = 0
    for number in itertools.count():
        chunks: list[bytes] = []
        async with client.read(JOURNAL, end_offset=len(CONTENT)) as reader:
            was_cancelled = await cancel_at(read_on(reader, chunks), number)
            await read_on(reader, chunks)
        assert b"".join(chunks) == CONTENT
        if not was_cancelled:
            break
    assert number > 5
    await quiet(broker, client)


async def test_seeks_and_closes(broker: StubBroker, client: JournalClient, serving: object) -> None:
    reader = client.read(JOURNAL, end_offset=len(CONTENT))

    async def operation() -> None:
        await reader.restart(pb.ReadRequest(journal=JOURNAL, end_offset=len(CONTENT)))
        await reader.read(5)
        await reader.seek(100)
        await reader.aclose()

    async def check() -> None:
        await reader.aclose()
        await quiet(broker, client)

    assert await cancel_at_every_await(operation, check) >= 3


async def test_one_reader(broker: StubBroker, client: JournalClient, serving: object) -> None:
    async def operation() -> None:
        async with Reader(client, pb.ReadRequest(journal=JOURNAL)) as reader:
            assert await reader.read() == CONTENT[:40]
            await reader.next_response()

    async def check() -> None:
        await quiet(broker, client)

    assert await cancel_at_every_await(operation, check) > 2


async def test_appends(broker: StubBroker, client: JournalClient, serving: MemoryJournals) -> None:
    async def operation() -> None:
        await client.append(JOURNAL, CONTENT, io.BytesIO(CONTENT), lambda: [CONTENT])

    async def check() -> None:
        await quiet(broker, client)
        # All of it or nothing, each time.
        whole = bytes(serving.contents.get(JOURNAL, b""))
        assert whole == CONTENT * 3 * (len(whole) // len(CONTENT) // 3)

    assert await cancel_at_every_await(operation, check) > 5


async def test_one_appender(
    broker: StubBroker, client: JournalClient, serving: MemoryJournals
) -> None:
    async def operation() -> None:
        async with Appender(client, pb.AppendRequest(journal=JOURNAL)) as appender:
            await appender.open()
            await appender.write(CONTENT)
        appender.reset()
        await appender.write(CONTENT)
        try:
            await appender.abort()
        finally:
            await appender.abort()

    async def check() -> None:
        await quiet(broker, client)

    assert await cancel_at_every_await(operation, check) > 5


async def test_the_append_service(
    broker: StubBroker, client: JournalClient, serving: MemoryJournals
) -> None:
    async with AppendService(client) as service:
        kept = 0

        async def operation() -> None:
            nonlocal kept
            for _ in range(2):
                neighbour = asyncio.create_task(one())
                append = await service.start_append(JOURNAL)
                try:
                    append.write(CONTENT)
                    await append.drain()
                    await asyncio.sleep(0)
                except BaseException as error:
                    with pytest.raises(asyncio.CancelledError):
                        append.require(error).release()
                    raise
                append.release()
                kept += 1
                await append
                await service.flush()
                await neighbour

        async def one() -> None:
            nonlocal kept
            async with service.append(JOURNAL) as append:
                append.write(CONTENT)
                await asyncio.sleep(0)
            kept += 1

        async def check() -> None:
            await service.flush()
            await eventually(lambda: service.status().journals == 0)
            await quiet(broker, client)

        assert await cancel_at_every_await(operation, check) >= 4
    # Who awaited and was cancelled took nothing away: all that was released is there.
    assert bytes(serving.contents[JOURNAL]) == CONTENT * kept


async def test_iterations(broker: StubBroker, client: JournalClient, serving: object) -> None:
    async def operation() -> None:
        assert len([journal async for journal in iter_journals(client, "name:prefix=a/")]) == 60
        assert [fragment async for fragment in iter_fragments(client, JOURNAL)] == []

    async def check() -> None:
        await quiet(broker, client)

    assert await cancel_at_every_await(operation, check) > 2


async def test_polled_lists(broker: StubBroker, client: JournalClient, serving: object) -> None:
    async def operation() -> None:
        async with PolledList(client, "name:prefix=a/", poll_interval=60) as polled:
            assert len((await polled.ready()).journals) == 60
            assert len((await anext(polled.updates())).journals) == 60
            assert len((await anext(polled.changes())).added) == 60

    async def check() -> None:
        await quiet(broker, client)

    assert await cancel_at_every_await(operation, check) >= 2


async def test_appends_which_have_to_wait(
    broker: StubBroker, client: JournalClient, serving: MemoryJournals
) -> None:
    """For those before them to be sent, and for content to leave memory."""
    piece = bytes(3 << 20)
    kept = 0
    async with AppendService(client, cutoff_bytes=1 << 20, max_pending_bytes=2 << 20) as service:

        async def operation() -> None:
            nonlocal kept
            serving.gate.clear()
            asyncio.get_running_loop().call_later(0.002, serving.gate.set)
            for _ in range(3):
                async with service.append(JOURNAL) as append:
                    append.write(piece)
                kept += 1

        async def check() -> None:
            serving.gate.set()
            await service.flush()
            assert len(serving.contents.get(JOURNAL, b"")) == kept * len(piece)
            await eventually(lambda: service.status().journals == 0)
            await quiet(broker, client)

        assert await cancel_at_every_await(operation, check) >= 1


async def test_closing(broker: StubBroker, serving: MemoryJournals) -> None:
    policy = RetryPolicy(backoff=lambda attempt: 0.0)

    async def operation() -> None:
        client = connect(broker.endpoint, retry=policy)
        try:
            await client.append(JOURNAL)
            client.appends.try_append(JOURNAL, CONTENT)
            reader = client.read(JOURNAL)
            await reader.read()
        finally:
            try:
                await client.aclose()
            finally:
                await client.aclose()

    async def check() -> None:
        await eventually(lambda: broker.open_rpcs == 0)

    assert await cancel_at_every_await(operation, check) > 5
