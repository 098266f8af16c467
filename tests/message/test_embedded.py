"""Messages through the client and an embedded broker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import connect
from gazette_aio.message import (
    Clock,
    IntentLog,
    Publisher,
    ReadCommittedIter,
    ReadUncommittedIter,
    Sequencer,
    json_adapter,
    modulo_mapping,
)
from gazette_aio.protocol.errors import FramingError

NDJSON = "application/x-ndjson"
JOURNALS = [f"topic/part-{i:03}" for i in range(3)]


class Row(msgspec.Struct):
    v: int


@pytest.fixture
async def client(tmp_path: Path):
    async with EmbeddedBroker(tmp_path / "broker", fsync="off") as broker:
        async with connect(broker.endpoint) as client:
            await client.apply([change(name) for name in JOURNALS])
            yield client


def change(name: Any):
    upsert = pb.JournalSpec(name=name, replication=1)
    upsert.labels.labels.add(name="content-type", value=NDJSON)
    upsert.fragment.length = 1 << 24
    upsert.fragment.compression_codec = pb.CompressionCodec.NONE
    upsert.fragment.refresh_interval.seconds = 60
    return pb.ApplyRequest.Change(upsert=upsert)


def row_key(row: Row) -> bytes:
    return str(row.v).encode()


async def partitions(client: Any):
    listing = await client.list("name:prefix=topic/")
    return lambda: listing


async def read(client: Any, journals: Any = JOURNALS, **options: Any) -> dict[str, list[int]]:
    got: dict[str, list[int]] = {}
    iterator = ReadCommittedIter(
        journals, json_adapter(Row), client=client, skip_acks=True, **options
    )
    async with iterator:
        async for envelope in iterator:
            got.setdefault(envelope.journal, []).append(envelope.message.v)
    return got


@pytest.mark.parametrize("buffer", [10, 10_000])
async def test_publish_and_read_back(client: Any, tmp_path: Path, buffer: Any):
    mapping = modulo_mapping(row_key, await partitions(client))

    async def produce(number: int):
        publisher = Publisher(client.appends, json_adapter(Row))
        log = IntentLog(tmp_path / f"intents-{number}")
        for transaction in range(5):
            async with publisher.transaction(intents=log) as open_transaction:
                first = number * 1000 + transaction * 100
                for value in range(first, first + 100):
                    await publisher.publish_uncommitted(mapping, Row(value))
                open_transaction.state = {"next": first + 100}
        assert log.state == {"next": number * 1000 + 500}

    async with asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(produce(number))
    got = await read(client, sequencer=Sequencer(buffer=buffer))
    assert set(got) == set(JOURNALS)
    values = sorted(v for rows in got.values() for v in rows)
    assert values == sorted(n * 1000 + v for n in range(4) for v in range(500))
    for journal, rows in got.items():
        assert all(mapping(Row(v))[0] == journal for v in rows)


async def test_crashes_between_persisting_and_acknowledging(client: Any, tmp_path: Path):
    path = tmp_path / "intents"

    def mapping(row: Row) -> tuple[str, str]:
        return JOURNALS[row.v % 2], NDJSON

    publisher = Publisher(client.appends, json_adapter(Row))
    async with publisher.transaction(intents=IntentLog(path)) as transaction:
        for value in range(10):
            await publisher.publish_uncommitted(mapping, Row(value))
        transaction.state = {"next": 10}
    # The next transaction is cut short before its intents are stored.
    publisher = Publisher(client.appends, json_adapter(Row))
    for value in range(10, 15):
        await publisher.publish_uncommitted(mapping, Row(value))
    await publisher.flush()
    del publisher

    log = IntentLog(path)
    state: Any = await log.recover(client.appends)
    assert state == {"next": 10}
    publisher = Publisher(client.appends, json_adapter(Row))
    for value in range(state["next"], 20):
        await publisher.publish_uncommitted(mapping, Row(value))
    await publisher.flush()
    await log.persist(publisher.build_ack_intents(), {"next": 20})
    # This one dies after its intents were stored, before they're appended.
    await log.aclose()
    del publisher

    assert sum(map(len, (await read(client)).values())) == 10
    assert await IntentLog(path).recover(client.appends) == {"next": 20}
    got = await read(client)
    assert sorted(v for rows in got.values() for v in rows) == list(range(20))
    again = await IntentLog(path).recover(client.appends)
    assert again == {"next": 20}
    assert await read(client) == got


async def test_shared_clocks_and_replays(client: Any):
    clock = Clock()
    journal = JOURNALS[0]

    def mapping(_row: Any):
        return journal, NDJSON

    committed = Publisher(client.appends, json_adapter(Row), clock=clock)
    transactional = Publisher(client.appends, json_adapter(Row), clock=clock)
    reader = client.read(pb.ReadRequest(journal=journal, block=True))
    iterator = ReadCommittedIter(reader, json_adapter(Row), sequencer=Sequencer(buffer=3))

    async def acknowledge():
        for name, intent in transactional.build_ack_intents():
            await client.append(name, intent)

    async def take(count: int) -> list[Any]:
        got: list[Any] = []
        for _ in range(count):
            envelope = await anext(iterator)
            got.append((envelope.message.v if envelope.message else None, envelope.clock))
        return got

    async with iterator:
        await (await transactional.publish_uncommitted(mapping, Row(1)))
        await committed.publish_committed(mapping, Row(2))
        await acknowledge()
        assert await take(3) == [(2, 320), (1, 160), (None, 480)]
        for value, publisher in [
            (3, transactional),
            (4, committed),
            (5, transactional),
            (6, committed),
            (7, transactional),
        ]:
            method = (
                publisher.publish_uncommitted
                if publisher is transactional
                else publisher.start_publish_committed
            )
            await (await method(mapping, Row(value)))
        await acknowledge()
        assert await take(6) == [(4, 800), (6, 1120), (3, 640), (5, 960), (7, 1280), (None, 1440)]


async def test_end_offsets_and_garbage(client: Any):
    journal = JOURNALS[1]
    good = json_adapter(Row)
    publisher = Publisher(client.appends, good)

    def mapping(_row: Row) -> tuple[str, str]:
        return journal, NDJSON

    await publisher.publish_committed(mapping, Row(1))
    await client.append(journal, b"garbage\n")
    last = await publisher.publish_committed(mapping, Row(2))
    begin, end = last.commit.begin, last.commit.end
    iterator = ReadUncommittedIter(
        client.read(pb.ReadRequest(journal=journal, end_offset=end)), json_adapter(Row)
    )
    got: list[Any] = []
    with pytest.raises(FramingError) as raised:  # noqa: PT012
        async for envelope in iterator:
            got.append(envelope)  # noqa: PERF401
    assert (raised.value.journal, raised.value.begin, raised.value.end) == (
        journal,
        begin - 8,
        begin,
    )
    got += [e async for e in iterator]
    assert [e.message.v for e in got] == [1, 2]
    assert (got[1].begin, got[1].end) == (begin, end)
    await iterator.aclose()


async def test_checkpoints_across_iterators(client: Any):
    publisher = Publisher(client.appends, json_adapter(Row))
    mapping = modulo_mapping(row_key, await partitions(client))
    checkpoint = None
    got: list[int] = []
    for turn in range(3):
        async with publisher.transaction():
            for value in range(turn * 50, turn * 50 + 50):
                await publisher.publish_uncommitted(mapping, Row(value))
        async with ReadCommittedIter(
            JOURNALS, json_adapter(Row), client=client, checkpoint=checkpoint, skip_acks=True
        ) as iterator:
            async for envelope in iterator:
                got.append(envelope.message.v)
                if len(got) % 17 == 0:
                    break
            checkpoint = iterator.checkpoint()
    async with ReadCommittedIter(
        JOURNALS, json_adapter(Row), client=client, checkpoint=checkpoint, skip_acks=True
    ) as iterator:
        got += [e.message.v async for e in iterator]
    assert sorted(got) == list(range(150))
