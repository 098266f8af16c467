"""Batches of a time: what is planned and read, of journals of a broker."""

from __future__ import annotations

import random
from contextlib import aclosing

import pytest

import gazette_aio.protocol as pb
from gazette_aio.message.uuid import (
    ACK_TXN,
    CONTINUE_TXN,
    OUTSIDE_TXN,
    Clock,
    ProducerID,
    build_uuid,
)
from gazette_aio.spark import bridge
from gazette_aio.spark.options import SourceOptions
from gazette_aio.spark.planning.batch import plan_batch
from gazette_aio.spark.planning.clock_probes import FIRST_MESSAGES, PROBE_BYTES
from gazette_aio.spark.reading.partitions import read_tasks
from gazette_aio.spark.types import parse_schema
from gazette_aio.testing import create_journals, journal_spec

JOURNAL = "p/timed"
BEGIN = 1_700_000_000
"""Time of the first fragment, in seconds since 1970."""
HOUR = 3600
PRODUCERS = [ProducerID(bytes([1, 0, 0, 0, 0, number])) for number in range(3)]
SCHEMA = parse_schema(
    '{"type":"struct","fields":[{"name":"_begin","type":"long","nullable":true,"metadata":{}},'
    '{"name":"_value","type":"binary","nullable":true,"metadata":{}}]}'
)
NDJSON, CSV = pb.CONTENT_TYPE_JSON_LINES, "text/csv"


@pytest.fixture(autouse=True)
async def _clients():
    yield
    await bridge.close_clients()


def at(seconds, flags=OUTSIDE_TXN, producer=0, size=0, content_type=NDJSON):
    """Return a message of a time after BEGIN."""
    clock = Clock.from_time(int((BEGIN + seconds) * 10**9)).value
    uuid = build_uuid(PRODUCERS[producer], clock, flags)
    if content_type == CSV:
        return f"{uuid},{seconds},{'x' * size}\n".encode()
    return f'{{"_meta":{{"uuid":"{uuid}"}},"at":{seconds},"x":"{"x" * size}"}}\n'.encode()


class Timed:
    def __init__(self, broker, client, root):
        self.broker, self.client, self.root = broker, client, root

    async def write(self, *parts, codec=pb.CompressionCodec.NONE, content_type=NDJSON, local=0):
        """Write fragments, of which the last `local` aren't persisted; keep where they begin."""
        spec = journal_spec(
            JOURNAL, labels={"content-type": content_type}, stores=["file:///"], codec=codec
        )
        await create_journals(self.client, spec)
        self.cuts = [0]
        for number, part in enumerate(parts):
            response = await self.client.append(JOURNAL, part)
            self.cuts.append(response.commit.end)
            if number < len(parts) - local:
                await self.broker.flush(JOURNAL)
        await self.broker.refresh(JOURNAL)

    def options(self, start=None, stop=None, **given):
        if start is not None:
            given["startingTimestamp"] = str(int((BEGIN + start) * 1000))
        if stop is not None:
            given["endingTimestamp"] = str(int((BEGIN + stop) * 1000))
        base = {"brokers": self.broker.endpoint, "journals": JOURNAL, "fetchTimeout": "20s"}
        if "io" not in given:
            base["fileRoot"] = str(self.root)
        return SourceOptions.parse({**base, **given}, streaming=False)

    async def planned(self, *times, **given):
        """Return the begin and end of what is planned."""
        parts = await plan_batch(self.client, self.options(*times, **given), SCHEMA)
        tasks = [task for part in parts for task in part]
        ends = [(task.begin, task.end) for task in tasks]
        return (min(ends)[0], max(ends)[1]) if ends else None

    async def rows(self, *times, **given):
        options = self.options(*times, **given)
        found = []
        for part in await plan_batch(self.client, options, SCHEMA):
            async with aclosing(read_tasks(part, options, SCHEMA)) as batches:
                async for batch in batches:
                    columns = (batch.column(name).to_pylist() for name in ("_begin", "_value"))
                    found += zip(*columns, strict=True)
        return sorted(found)


@pytest.fixture
def timed(gazette_broker, gazette_client, tmp_path):
    return Timed(gazette_broker, gazette_client, tmp_path / "fragments")


ISOLATIONS = [{"isolation": "read-uncommitted"}, {}, {"minPartitions": "4"}]


@pytest.mark.parametrize("codec", ["NONE", "ZSTANDARD", "GZIP"])
@pytest.mark.parametrize("content_type", [NDJSON, CSV])
async def test_only_fragments_of_the_time_are_planned(timed, codec, content_type):
    lines = [at(minute * 60, content_type=content_type) for minute in range(600)]
    hours = [b"".join(lines[60 * hour : 60 * hour + 60]) for hour in range(10)]
    await timed.write(*hours, codec=pb.CompressionCodec.Value(codec), content_type=content_type)
    cuts = timed.cuts
    reads = timed.broker.control.observe("read", journal=JOURNAL)
    assert await timed.planned(2.5 * HOUR, 3.5 * HOUR) == (cuts[2], cuts[4])
    probes = [request for request in reads.requests if not request.metadata_only]
    assert 0 < len(probes) <= 8
    assert all(0 < one.end_offset - one.offset <= PROBE_BYTES for one in probes)
    reads.remove()
    assert await timed.planned(None, 3.5 * HOUR) == (0, cuts[4])
    assert await timed.planned(2.5 * HOUR) == (cuts[2], cuts[10])
    assert await timed.planned(None, -BEGIN) is None
    assert await timed.planned(100 * HOUR) == (cuts[9], cuts[10])
    # Both sides have the skew.
    first = 60 * (FIRST_MESSAGES - 1)
    assert await timed.planned(3 * HOUR + first + 300, 4 * HOUR - 299) == (cuts[2], cuts[5])
    assert await timed.planned(3 * HOUR + first + 301, 4 * HOUR - 300) == (cuts[3], cuts[4])
    options = {"maxClockSkew": "2h"}
    assert await timed.planned(5.5 * HOUR, 5.6 * HOUR, **options) == (cuts[3], cuts[8])
    for isolation in ISOLATIONS:
        rows = await timed.rows(2.5 * HOUR, 3.5 * HOUR, **isolation)
        assert [begin for begin, _ in rows] == [
            cuts[minute // 60] + len(b"".join(lines[60 * (minute // 60) : minute]))
            for minute in range(150, 210)
        ]


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_rows_are_those_of_a_whole_read(timed, isolation):
    """Clocks go back by up to the skew, and transactions span fragments."""
    rng = random.Random(7)
    open_, parts, time = set(), [], 0
    for _ in range(24):
        part = b""
        for _ in range(20):
            time += 40
            producer = rng.randrange(3)
            flags = rng.choice([CONTINUE_TXN, CONTINUE_TXN, CONTINUE_TXN, ACK_TXN])
            (open_.discard if flags == ACK_TXN else open_.add)(producer)
            # Each producer's clock is in order.
            part += at(time + 100 * producer, flags, producer)
        parts.append(part)
    parts.append(b"".join(at(time + 400, ACK_TXN, producer) for producer in open_))
    await timed.write(*parts, local=3)
    whole = await timed.rows(**isolation)
    assert len(whole) > 300
    for _ in range(12):
        start, stop = sorted(rng.randrange(time) for _ in range(2))
        wanted = [row for row in whole if start <= _seconds(row[1]) < stop]
        assert await timed.rows(start, stop, **isolation) == wanted


def _seconds(value):
    return int(value.split(b'"at":')[1].split(b",")[0])


@pytest.mark.parametrize("splits", [{}, {"minPartitions": "3"}])
async def test_a_transaction_which_is_acknowledged_hours_later(timed, splits):
    pad = at(0, size=20)[:0]
    parts = [
        at(HOUR * hour) + (at(HOUR * hour + 1, CONTINUE_TXN, 1) if hour == 2 else pad)
        for hour in range(10)
    ]
    parts[8] += at(8 * HOUR + 1, ACK_TXN, 1)
    # A record which can't be decoded, and a message without a UUID, after the end.
    parts[4] += b'{"at":1}\n!!\n'
    await timed.write(*parts)
    window = (1.5 * HOUR, 2.5 * HOUR)
    end = (await timed.planned(*window, **splits))[1]
    assert end == timed.cuts[3]
    rows = await timed.rows(*window, mode="FAILFAST", **splits)
    assert [_seconds(value) for _, value in rows] == [2 * HOUR, 2 * HOUR + 1]


async def test_one_which_stays_open_and_has_no_wanted_messages_costs_nothing(timed):
    parts = [at(HOUR * hour) for hour in range(10)]
    parts[0] += at(1, CONTINUE_TXN, 1)
    parts[2] += at(2 * HOUR + 1800, CONTINUE_TXN, 2)
    await timed.write(*parts)
    window = (1.5 * HOUR, 2.4 * HOUR)
    tasks = [
        task
        for part in await plan_batch(timed.client, timed.options(*window), SCHEMA)
        for task in part
    ]
    assert [task.end for task in tasks] == [timed.cuts[3]]
    reads = timed.broker.control.observe("read", journal=JOURNAL)
    options = timed.options(*window, io="broker")
    async with aclosing(read_tasks(tasks, options, SCHEMA)) as batches:
        assert sum([batch.num_rows async for batch in batches]) == 1
    assert len(reads.requests) == 1


async def test_a_lost_fragment_beside_the_time_does_not_matter(timed):
    await timed.write(*[at(HOUR * hour) for hour in range(9)])
    files = sorted(timed.root.rglob("*-*-*"))
    for number in (4, 8):
        files[number].unlink()
    await timed.broker.refresh(JOURNAL)
    rows = await timed.rows(0.5 * HOUR, 1.5 * HOUR, fetchTimeout="100ms")
    assert [_seconds(value) for _, value in rows] == [HOUR]


async def test_content_without_clocks_is_read(timed):
    await timed.write(*[b'{"at":1}\n' for _ in range(5)])
    assert await timed.planned(1, 2) == (0, timed.cuts[5])
    assert len(await timed.rows(1, 2)) == 5


async def test_the_first_message_may_be_long(timed):
    parts = [at(HOUR * hour, size=10 * PROBE_BYTES) for hour in range(6)]
    await timed.write(*parts)
    assert await timed.planned(1.5 * HOUR, 2.5 * HOUR) == (timed.cuts[1], timed.cuts[3])
