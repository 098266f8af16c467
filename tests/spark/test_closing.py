"""Closing, cancelled wherever it may be suspended and called again, ends what was begun."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable

import pyarrow as pa
import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import JournalClient, RetryPolicy, connect
from gazette_aio.message import OUTSIDE_TXN, build_uuid, json_adapter
from gazette_aio.spark import bridge
from gazette_aio.spark.options import SourceOptions
from gazette_aio.spark.reading.bounded import BoundedReader
from gazette_aio.spark.reading.content import RangeContent
from gazette_aio.spark.reading.engines import RowEngine, rows_of
from gazette_aio.spark.reading.partitions import TaskReader
from gazette_aio.spark.reading.pieces import Pieces
from gazette_aio.spark.reading.record_bounds import RecordBounds
from gazette_aio.spark.reading.task import All, Task
from gazette_aio.spark.rows.records import RowLayout
from gazette_aio.spark.streaming import planner as stream_planner
from gazette_aio.spark.streaming.planner import StreamPlanner
from gazette_aio.testing import create_journals, journal_spec, no_leaks
from gazette_aio.testing.stub_broker import StubBroker
from tests.cancellation import Closeable, cancel_at, close_at_every_await
from tests.client.support import JOURNAL, MemoryJournals, content, metadata
from tests.waiting import eventually, turns

CONTENT = b"0123456789\n" * 10
SCHEMA = pa.schema([("id", pa.int64())])
HOUR = RetryPolicy(backoff=lambda attempt: 3600.0)


@pytest.fixture
async def broker() -> AsyncIterator[StubBroker]:
    """A broker which stalls behind the content of its journals, and in appends."""
    async with no_leaks(), StubBroker() as broker:
        journals = MemoryJournals(broker)
        journals.gate.clear()

        async def read(request: pb.ReadRequest) -> AsyncIterator[pb.ReadResponse]:
            answer = metadata(request.offset)
            answer.header.route.endpoints[:] = [broker.endpoint]
            yield answer
            yield content(request.offset, CONTENT[request.offset :])
            await asyncio.Event().wait()

        broker.read_handler = read
        yield broker
        journals.gate.set()


@pytest.fixture
async def client(broker: StubBroker) -> AsyncIterator[JournalClient]:
    async with connect(broker.endpoint, retry=HOUR) as client:
        yield client


async def a_bounded_reader(client: JournalClient) -> BoundedReader:
    reader = BoundedReader(client, JOURNAL, 0, 200, direct=False)
    assert await anext(reader) == (0, CONTENT)
    return reader


async def a_range(client: JournalClient) -> RangeContent:
    options = SourceOptions.parse(
        {"brokers": client.endpoint, "journals": JOURNAL, "io": "broker"}, streaming=False
    )
    bounds = RecordBounds(0, 200, 200, lines=True, is_aligned=True)
    ranged = RangeContent(client, JOURNAL, bounds, options, step_bytes=len(CONTENT))
    assert await ranged.take() == [(0, CONTENT)]
    return ranged


class ReadsAgain(RowEngine):
    """Asks for the start of the range again, once content came, and then for more of it."""

    def __init__(self) -> None:
        self.fed = 0

    def feed(self, pieces: Pieces) -> None:
        self.fed += 1

    def end(self) -> None:
        raise AssertionError("the broker stalls")

    def work(self) -> list[pa.RecordBatch] | None:
        return None

    def wanted(self) -> tuple[int, int] | None:
        return (0, 190) if self.fed == 1 else None

    def finish(self) -> list[pa.RecordBatch]:
        raise AssertionError("the broker stalls")


async def a_task(client: JournalClient) -> TaskReader:
    """Return a reader in the midst of its range, which also reads a part of it again."""
    given = {"brokers": client.endpoint, "journals": JOURNAL, "io": "broker"}
    options = SourceOptions.parse(given, streaming=False)
    task = Task(JOURNAL, 0, 200, "application/x-ndjson", (), 200, All(), 200, is_aligned=True)
    engine = ReadsAgain()
    rows = rows_of(task, RowLayout(options, SCHEMA))._replace(engine=engine)
    reader = TaskReader(client, task, options, rows)
    reading = asyncio.create_task(reader.batches())
    await eventually(lambda: engine.fed == 2)
    await eventually(lambda: len(client.status().streams) == 2)
    reading.cancel()
    await asyncio.wait((reading,))
    return reader


@pytest.mark.parametrize("opened", [a_bounded_reader, a_range])
async def test_what_reads(
    client: JournalClient, opened: Callable[[JournalClient], Awaitable[Closeable]]
) -> None:
    def check() -> None:
        assert not client.context.rpc.streams

    assert await close_at_every_await(lambda: opened(client), check) >= 1


@pytest.mark.parametrize("opened", [a_bounded_reader, a_range, a_task])
async def test_one_cancelled_close_is_enough(
    client: JournalClient,
    monkeypatch: pytest.MonkeyPatch,
    opened: Callable[[JournalClient], Awaitable[Closeable]],
) -> None:
    steps = functools.partial(RangeContent, step_bytes=len(CONTENT))
    monkeypatch.setattr("gazette_aio.spark.reading.partitions.RangeContent", steps)
    thing = await opened(client)
    assert client.context.rpc.streams
    assert await cancel_at(thing.aclose(), 0)
    await eventually(lambda: not client.context.rpc.streams)


async def test_a_task(client: JournalClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        assert not client.context.rpc.streams

    steps = functools.partial(RangeContent, step_bytes=len(CONTENT))
    monkeypatch.setattr("gazette_aio.spark.reading.partitions.RangeContent", steps)
    assert await close_at_every_await(lambda: a_task(client), check) >= 1


async def test_clients(broker: StubBroker) -> None:
    class Clients:
        async def aclose(self) -> None:
            await bridge.close_clients()

    clients: list[JournalClient] = []
    readers: list[BoundedReader] = []

    async def opened() -> Closeable:
        for number in range(3):
            client = await bridge.client_of(number, lambda _: connect(broker.endpoint))
            clients.append(client)
            readers.append(await a_bounded_reader(client))
        return Clients()

    def check() -> None:
        for client in clients:
            assert not client.context.rpc.streams
            with pytest.raises(RuntimeError, match="is closed"):
                client.context.dispatcher.check()
        clients.clear()

    assert await close_at_every_await(opened, check) >= 1
    for reader in readers:
        await reader.aclose()


async def test_a_client_which_is_asked_for_meanwhile_is_a_new_one(broker: StubBroker) -> None:
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


async def test_a_planner_which_reads_ahead(
    gazette_broker: EmbeddedBroker, gazette_client: JournalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = 0, 0

    async def stalls(*_: object, **__: object) -> AsyncIterator[object]:
        nonlocal begun, ended
        begun += 1
        try:
            await asyncio.Event().wait()
            yield
        finally:
            await turns(3)
            ended += 1

    async def opened() -> StreamPlanner:
        planner = StreamPlanner(options, SCHEMA)
        before = begun
        with monkeypatch.context() as patch:
            patch.setattr(stream_planner, "scan_uuids", stalls)
            assert await planner.partitions(start, end)
            await eventually(lambda: begun > before)
        return planner

    def check() -> None:
        assert ended == begun

    labels = {"content-type": "application/x-ndjson"}
    await create_journals(gazette_client, journal_spec(JOURNAL, labels=labels))
    adapter = json_adapter()
    rows = [
        adapter.encode({"id": number}, build_uuid(b"\x01abcde", number, OUTSIDE_TXN)) + b"\n"
        for number in range(1, 100)
    ]
    await gazette_client.append(JOURNAL, b"".join(rows))
    given = {"brokers": gazette_broker.endpoint, "journals": JOURNAL, "startingOffsets": "earliest"}
    options = SourceOptions.parse(given, streaming=True)
    planner = StreamPlanner(options, SCHEMA)
    start = (await planner.initial()).to_json()
    end = await planner.end(start, max_bytes=500)
    await planner.aclose()
    assert await close_at_every_await(opened, check) >= 1
    await bridge.close_clients()
