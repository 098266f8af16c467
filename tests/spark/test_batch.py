"""Plans of batches: which journals are asked about, how they're cut, and what's refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

import gazette_aio.protocol as pb
from gazette_aio.message.columns.pyarrow_api import pa
from gazette_aio.message.uuid import ACK_TXN, CONTINUE_TXN, Clock, ProducerID
from gazette_aio.spark.options import SourceOptions
from gazette_aio.spark.planning import tasks as tasks_of_spark
from gazette_aio.spark.planning.batch import plan_batch
from gazette_aio.spark.reading.task import All, CommittedFrom, CommittedSplitOf
from gazette_aio.spark.types import default_schema
from gazette_aio.testing import create_journals, journal_spec
from tests.spark.journals import line

NDJSON, FIXED = "application/x-ndjson", "application/x-protobuf-fixed"
PRODUCER = ProducerID(b"\x05\0\0\0\0\1")
CLOCK = 0x1E51B8D5B8F00000
LATER = Clock.now().value + (3600 * 10**7 << 4)
"""A clock of an hour from now, so that only times of fragments exclude its messages."""


def options(**given):
    given = {"brokers": "http://localhost:1", "prefix": "p/", "fetchTimeout": "1s"} | given
    return SourceOptions.parse(given, streaming=False)


RAW = options(format="raw", partitionColumns="region, part")
SCHEMA = default_schema(RAW.partition_columns)


@pytest.fixture
async def client(gazette_client):
    """Journals of 1,000 bytes and their labels, of which `p/frames` can be cut at fragments only."""
    specs = [
        journal_spec(f"p/{name}", labels={"content-type": content_type, "region": region})
        for name, content_type, region in (
            ("east", NDJSON, "east"),
            ("frames", FIXED, "east"),
            ("west", NDJSON, "west"),
        )
    ]
    await create_journals(gazette_client, *specs)
    for spec in specs:
        await gazette_client.append(spec.name, b"%099d\n" % 7 * 10)
    return gazette_client


def places(partitions):
    """What tasks read, whatever partition they're in."""
    return sorted(
        (task.journal.removeprefix("p/"), task.begin, task.end)
        for partition in partitions
        for task in partition
    )


async def test_small_journals_are_packed(client):
    (partition,) = await plan_batch(client, RAW, SCHEMA)
    assert places([partition]) == [
        ("east", 0, 1000),
        ("frames", 0, 1000),
        ("west", 0, 1000),
    ]
    assert {task.kind for task in partition} == {All()}
    # Rows need no other label.
    assert {task.labels for task in partition} == {
        (("region", ("east",)),),
        (("region", ("west",)),),
    }


async def test_as_many_partitions_as_are_asked_for(client):
    planned = await plan_batch(client, replace(RAW, min_partitions=6), SCHEMA)
    assert places(planned) == [
        ("east", 0, 500),
        ("east", 500, 1000),
        ("frames", 0, 1000),
        ("west", 0, 500),
        ("west", 500, 1000),
    ]
    assert len(planned) == 5


async def test_limits_of_splits(client):
    planned = await plan_batch(client, replace(RAW, max_split_bytes=400), SCHEMA)
    sizes = [task.size for partition in planned for task in partition]
    assert sorted(sizes) == [333, 333, 333, 333, 334, 334, 1000]


async def test_offsets(client):
    given = options(
        format="raw",
        startingOffsets='{"p/east": 200, "p/west": -1}',
        endingOffsets='{"p/east": 300, "p/frames": -2}',
    )
    planned = await plan_batch(client, given, default_schema())
    assert places(planned) == [("east", 200, 300)]
    for name in ("startingOffsets", "endingOffsets"):
        bad = options(format="raw", **{name: '{"p/other": 0}'})
        with pytest.raises(pb.ConfigurationError, match=f"{name} names journal p/other, which"):
            await plan_batch(client, bad, default_schema())
        bad = options(format="raw", **{name: '{"p/east": 1001}'})
        with pytest.raises(pb.ConfigurationError, match=f"{name} of journal p/east is 1001"):
            await plan_batch(client, bad, default_schema())


async def test_what_cannot_be_decoded_is_refused(client):
    typed = pa.schema([pa.field("id", pa.int64())])
    with pytest.raises(pb.ConfigurationError, match=r"'id'.* 'messageType'"):
        await plan_batch(client, options(), typed)
    assert await plan_batch(client, options(prefix="p/east"), typed)
    labelled = pa.schema([pa.field("part", pa.string(), nullable=False)])
    with pytest.raises(pb.ConfigurationError, match="p/east has no label part"):
        await plan_batch(client, RAW, labelled)
    with pytest.raises(pb.ConfigurationError, match="JOURNAL_NOT_FOUND: prefix 'q' matches no"):
        await plan_batch(client, options(prefix="q"), default_schema())


class Stored:
    def __init__(self, broker, client):
        self.broker = broker
        self.client = client
        self.ends = [0]

    async def write(self, content, name="p/stored"):
        response = await self.client.append(name, content)
        self.ends.append(response.commit.end)
        await self.broker.flush(name)
        await self.broker.refresh(name)

    async def mod_times(self):
        listed = await self.client.list_fragments("p/stored")
        return [each.spec.mod_time for each in listed.fragments]


@pytest.fixture
async def stored(gazette_broker, gazette_client):
    """A journal of three fragments, of one transaction."""
    await create_journals(
        gazette_client,
        journal_spec("p/stored", labels={"content-type": NDJSON}, stores=["file:///"]),
    )
    stored = Stored(gazette_broker, gazette_client)
    for number in range(3):
        flags = ACK_TXN if number == 2 else CONTINUE_TXN
        await stored.write(line(PRODUCER, LATER + (number << 4), number, flags))
    return stored


@pytest.mark.parametrize("limit", ["minPartitions", "maxSplitBytes"])
async def test_committed_journals_are_cut_if_they_are_large(
    stored, gazette_client, limit, monkeypatch
):
    client, ends = gazette_client, stored.ends
    # Content which isn't read twice would have a partition for each fragment.
    monkeypatch.setattr(tasks_of_spark, "MIDDLE_BYTES", ends[1])
    ((whole,),) = await plan_batch(client, options(), default_schema())
    assert (whole.begin, whole.end) == (0, ends[-1])
    assert isinstance(whole.kind, CommittedFrom)

    given = {limit: "3" if limit == "minPartitions" else str(ends[1])}
    planned = await plan_batch(client, options(**given), default_schema())
    tasks = sorted((task for part in planned for task in part), key=lambda task: task.begin)
    assert [(task.begin, task.end) for task in tasks] == list(pairwise(ends))
    *others, last = tasks
    assert all(isinstance(task.kind, CommittedSplitOf) for task in others)
    assert isinstance(last.kind, CommittedFrom)

    plain = options(isolation="read-uncommitted", minPartitions="2")
    planned = await plan_batch(client, plain, default_schema())
    assert all(isinstance(task.kind, All) for part in planned for task in part)


async def test_times(stored, gazette_client, monkeypatch):
    client, ends = gazette_client, stored.ends
    first, _, last = await stored.mod_times()
    assert first > 0

    async def planned(seconds, journal=None, **given):
        time_ms = int(seconds + RAW.max_clock_skew) * 1000
        given["startingTimestamp"] = (
            str(time_ms) if journal is None else f'{{"{journal}":{time_ms}}}'
        )
        found = await plan_batch(client, options(**given), default_schema())
        return places(found)

    assert await planned(first) == [("stored", 0, ends[3])]
    assert await planned(last + 1) == []
    assert await planned(last + 1, "p/stored") == []
    with pytest.raises(pb.ConfigurationError, match="startingTimestamp names journal p/other"):
        await planned(first, "p/other")
    end = str({"p/stored": ends[2]}).replace("'", '"')
    assert await planned(first, endingOffsets=end) == [("stored", 0, ends[2])]
    assert await planned(last + 1, endingOffsets=end) == []
    # Of the times of a listing, those of the last two fragments are later.
    real = client.context.rpc.list_fragments

    async def list_fragments(request):
        begin, request.begin_mod_time = request.begin_mod_time, 0
        page = await real(request)
        for number, each in enumerate(page.fragments):
            each.spec.mod_time += 1000 * bool(number)
        kept = [each for each in page.fragments if each.spec.mod_time >= begin]
        del page.fragments[:]
        page.fragments.extend(kept)
        return page

    monkeypatch.setattr(client.context.rpc, "list_fragments", list_fragments)
    assert await planned(last + 1) == [("stored", ends[1], ends[3])]
    assert await planned(last + 1, "p/stored") == [("stored", ends[1], ends[3])]
    assert await planned(last + 1, endingOffsets=end) == [("stored", ends[1], ends[2])]


async def test_an_empty_or_suspended_journal_has_no_task(gazette_client):
    full = journal_spec("p/full", labels={"content-type": NDJSON})
    full.suspend.level = pb.JournalSpec.Suspend.FULL
    full.suspend.offset = 10
    await create_journals(
        gazette_client, journal_spec("p/empty", labels={"content-type": NDJSON}), full
    )
    assert await plan_batch(gazette_client, options(), default_schema()) == []
