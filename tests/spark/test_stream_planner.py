"""Batches of streaming queries, as they're planned and read, without Spark."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import replace

import pytest

import gazette_aio.protocol as pb
from gazette_aio.protocol.errors import ConfigurationError, DataLossError, TransportError
from gazette_aio.protocol.well_known import CONTENT_TYPE_CSV
from gazette_aio.spark.connecting import spark_client
from gazette_aio.spark.planning import listing as planning_listing
from gazette_aio.spark.reading.scanning import scan_uuids
from gazette_aio.spark.reading.task import CommittedFrom
from gazette_aio.spark.streaming import line_ends, tail
from gazette_aio.spark.streaming import listing as stream_listing
from gazette_aio.spark.streaming import planner as stream_planner
from gazette_aio.spark.streaming.legacy_planner import LegacyStreamPlanner
from gazette_aio.spark.streaming.planner import StreamPlanner
from tests.pyspark.journals import Producer
from tests.spark.stream_queries import NDJSON, SCHEMA

# --- Where queries begin and end.


async def test_latest_is_where_journals_end_while_a_broker_lists_stores(world, monkeypatch):
    await world.create("a")
    await world.publish("a", [0])
    query = world.query()

    async def head_of(*_):
        return 0  # Unlike a listing of fragments, a probe doesn't wait.

    with monkeypatch.context() as patch:
        patch.setattr(planning_listing, "head_of", head_of)
        initial = await query.planner.initial()
    assert initial.journals == {"test/a": await world.head("a")} != {"test/a": 0}


async def test_a_running_query_waits_for_probes_which_are_not_answered(world, monkeypatch):
    await world.create("a")
    await world.publish("a", [0])
    query = world.query(startingOffsets="earliest")
    await query.drain()
    await world.publish("a", [1])
    late = [pb.OperationTimeoutError("probe of journal test/a timed out", operation="probe")]
    real = planning_listing.head_of

    async def head_of(*given):
        if late:
            raise late.pop()
        return await real(*given)

    monkeypatch.setattr(planning_listing, "head_of", head_of)
    await query.drain()
    assert query.ids == [0, 1]
    assert not late


@pytest.mark.parametrize("planner", [StreamPlanner, LegacyStreamPlanner])
async def test_the_latest_anchor_survives_a_crash(world, planner):
    await world.create("a")
    await world.publish("a", range(100))
    query = world.query(planner=planner)
    planned = await query.plan()
    assert planned is not None, "the anchor is written at once"
    # It's killed before the first commit, and more is appended.
    await world.publish("a", range(100, 175))
    query.restart()
    await query.run(await query.begin(anew=True), planned[1])
    assert query.rows == []
    await query.drain()
    assert query.ids == list(range(100, 175))
    assert "base" not in query.end


@pytest.mark.parametrize("planner", [StreamPlanner, LegacyStreamPlanner])
async def test_nothing_new_is_no_batch(world, planner):
    await world.create("b", "a")
    await world.publish("a", range(10))
    query = world.query(planner=planner, startingOffsets="earliest")
    assert await query.trigger()
    assert query.ids == list(range(10))
    for _ in range(3):
        assert not await query.trigger()
    await world.publish("b", [10])
    assert await query.trigger()
    assert query.ids == list(range(11))
    assert list(query.end["j"]) == ["test/a", "test/b"]


async def test_starting_positions(world):
    await world.create("a", "b", "c")
    commits = {name: await world.publish(name, [0, 1, 2]) for name in "abc"}
    half = commits["a"].end // 3
    starting = json.dumps({"test/a": half, "test/b": -1, "test/c": -2})
    query = world.query(startingOffsets=starting)
    await query.drain()
    assert Counter(row["_journal"] for row in query.rows) == {"test/a": 2, "test/c": 3}
    stray = world.query(startingOffsets='{"test/x": 3}')
    with pytest.raises(ConfigurationError, match="startingOffsets names journal test/x"):
        await stray.trigger()
    beyond = world.query(startingOffsets=json.dumps({"test/a": 1 << 40}))
    with pytest.raises(ConfigurationError, match="startingOffsets of journal test/a is"):
        await beyond.trigger()


async def test_starting_time_passes_over_older_fragments(world):
    await world.create("a")
    await world.publish("a", [0])
    await world.persist("a")
    late = int(time.time() * 1000) + 3_600_000
    await world.publish("a", [1])
    query = world.query(startingTimestamp=str(late), maxClockSkew="1s")
    begin = json.loads(await query.begin())
    head = await world.head("a")
    assert 0 < begin["j"]["test/a"] < head, "what isn't persisted yet may be of any time"
    await query.drain()
    assert query.rows == [], "rows are exact"
    early = world.query(startingTimestamp="1")
    await early.drain()
    assert early.ids == [0, 1]


async def test_starting_times_by_journal(world):
    await world.create("a", "b", "c")
    late = int(time.time() * 1000) + 3_600_000
    for name in "abc":
        await world.publish(name, [0])
        await world.persist(name)
        await world.publish(name, [1])
    times = json.dumps({"test/a": late, "test/b": 1})
    query = world.query(startingTimestamp=times, maxClockSkew="1s")
    begin = json.loads(await query.begin())["j"]
    assert begin == {"test/a": await world.head("a") // 2, "test/b": 0, "test/c": 0}
    await query.drain()
    assert Counter(row["_journal"] for row in query.rows) == {"test/b": 2, "test/c": 2}
    stray = world.query(startingTimestamp='{"test/x": 3}')
    with pytest.raises(ConfigurationError, match="startingTimestamp names journal test/x"):
        await stray.trigger()


async def test_journals_which_are_named_must_be_there(world):
    with pytest.raises(ConfigurationError, match="JOURNAL_NOT_FOUND"):
        await world.query(journals="test/none").trigger()
    query = world.query()
    await query.trigger()
    await world.create("a")
    await world.publish("a", [1])
    await query.drain()
    assert query.ids == [1], "others may appear"


async def test_restart_from_a_checkpoint(world):
    await world.create("a")
    producer = Producer()
    query = world.query(startingOffsets="earliest")
    for number in range(6):
        await world.publish("a", [number], producer)
        planned = await query.plan()
        if number % 2:
            query.restart()  # A batch which wasn't committed is run again.
        await query.run(*planned)
        if number % 3 == 2:
            query.restart()
    await query.drain()
    assert query.ids == list(range(6))
    assert [len(batch) for batch in query.batches] == [1] * 6


@pytest.mark.parametrize("planner", [StreamPlanner, LegacyStreamPlanner])
async def test_the_schema_is_checked_when_it_is_planned(world, planner):
    match = "column 'id': messages of content type 'text/plain' have no columns"
    await world.create("a")
    await world.publish("a", [0])
    query = world.query(startingOffsets="earliest", planner=planner)
    planned = await query.plan()
    await query.run(*planned)
    await world.create("raw", content_type="text/plain")
    with pytest.raises(ConfigurationError, match=match):
        await query.plan()
    query.restart()
    await query.run(*planned)  # It's of other journals.
    with pytest.raises(ConfigurationError, match=match):
        await world.query(planner=planner).plan()


# --- Limits and targets.


@pytest.mark.parametrize("isolation", ["read-committed", "read-uncommitted"])
async def test_limits_are_split_by_lag(world, isolation):
    await world.create("a", "b")
    await world.publish("a", range(900))
    await world.publish("b", range(900, 1000))
    query = world.query(startingOffsets="earliest", isolation=isolation)
    total = await world.head("a") + await world.head("b")
    sizes = []
    while await query.trigger(max_bytes=total // 10):
        sizes.append(Counter(row["_journal"] for row in query.batches[-1]))
    assert query.ids == list(range(1000))
    assert len(sizes) in range(10, 14)
    for size in sizes[:9]:
        assert 85 <= size["test/a"] <= 95
        assert 8 <= size["test/b"] <= 12


async def test_a_tiny_limit_goes_on_by_a_record(world):
    await world.create("a", "b")
    await world.publish("a", range(20))
    await world.publish("b", range(20, 30))
    query = world.query(startingOffsets="earliest")
    assert await query.drain(max_bytes=1) == 20
    assert query.ids == list(range(30))
    assert max(len(batch) for batch in query.batches) == 2


@pytest.fixture
def idle(monkeypatch):
    """Set while nothing is read ahead."""
    idle = asyncio.Event()
    idle.set()
    real = tail.QueryTail.read_ahead

    async def read_ahead(self, ranges):
        idle.clear()
        try:
            await real(self, ranges)
        finally:
            idle.set()

    monkeypatch.setattr(tail.QueryTail, "read_ahead", read_ahead)
    return idle


async def test_limited_batches_are_read_ahead(world, monkeypatch, idle):
    monkeypatch.setattr(tail, "AHEAD_BYTES", 0)
    await world.create("a", "b")
    await world.publish("a", range(600))
    await world.publish("b", range(600, 700))
    query = world.query(startingOffsets="earliest")
    await query.planner.fix_targets()
    await world.publish("a", [1000])
    scans = []

    def scan(client, journal, content_type, begin, end, options, **kwargs):
        scans.append((journal, begin, end))
        return scan_uuids(client, journal, content_type, begin, end, options, **kwargs)

    monkeypatch.setattr(stream_planner, "scan_uuids", scan)
    planned = await query.plan(max_bytes=7000)
    assert len(scans) == 2
    while planned is not None:
        await query.run(*planned)
        await idle.wait()
        scans.clear()
        planned = await query.plan(max_bytes=7000)
        # Of a limit that's split, a journal may go on by a byte more than before.
        assert all(end - begin < 200 for _, begin, end in scans), "the rest was read before"
    assert query.ids == list(range(700)), "and nothing was read behind the target"
    assert len(query.batches) > 5


async def test_a_read_ahead_which_fails_or_is_ended(world, monkeypatch, idle):
    await world.create("a")
    await world.publish("a", range(100))
    query = world.query(startingOffsets="earliest")
    begun = asyncio.Event()

    async def fails(client, journal, content_type, begin, end, options, **kwargs):
        raise DataLossError("gone", journal=journal, offset=begin, missing=((begin, end),))
        yield

    async def hangs(*args, **kwargs):
        begun.set()
        await asyncio.Event().wait()
        yield

    for scan in (fails, hangs):
        begin, end = await query.plan(max_bytes=500)
        query.restart()  # Forgets what was read ahead.
        with monkeypatch.context() as patch:
            patch.setattr(stream_planner, "scan_uuids", scan)
            await query.run(begin, end)
            await (begun.wait() if scan is hangs else idle.wait())
    await query.drain(max_bytes=500)
    assert query.ids == list(range(100))
    await query.planner.aclose()
    await query.planner.aclose()


async def test_limits_of_rows(world):
    await world.create("a", "b")
    await world.publish("a", range(60))
    await world.publish("b", range(60, 100))
    query = world.query(startingOffsets="earliest")
    await query.drain(max_rows=10)
    assert query.ids == list(range(100))
    assert {len(batch) for batch in query.batches[:-2]} <= {9, 10}
    single = world.query(startingOffsets="earliest", journals="test/a")
    assert await single.drain(max_rows=1) == 60
    assert [row["id"] for row in single.rows] == list(range(60))


async def test_other_framings_are_cut_at_fragments(world):
    await world.create("c", content_type=CONTENT_TYPE_CSV)
    commits = []
    for number in range(3):
        lines = "".join(f",{number},{at}\n" for at in range(50))
        commits.append(await world.append("c", lines.encode()))
        await world.persist("c")
    query = world.query(
        startingOffsets="earliest",
        isolation="read-uncommitted",
        format="raw",
        schema=SCHEMA.remove(0),
    )
    for commit in commits:
        await query.trigger(max_bytes=1)
        assert query.end["j"]["test/c"] == commit.end
    assert await query.plan(max_bytes=1) is None
    begins = {row["_begin"] for row in query.rows}
    assert len(begins) == len(query.rows) == 150


@pytest.mark.parametrize("isolation", ["read-committed", "read-uncommitted"])
async def test_available_now_ends_at_its_target(world, isolation):
    await world.create("a", "b", "gone")
    await world.publish("a", range(100))
    await world.publish("b", range(100, 120))
    query = world.query(startingOffsets="earliest", isolation=isolation, failOnDataLoss="false")
    await query.planner.fix_targets()
    number, more = 0, Producer()
    while await query.trigger(max_bytes=700):
        await world.publish("a", [1000 + number], more)
        if number == 2:
            await world.create("new")
            await world.publish("new", [2000])
            await world.delete("gone")
        number += 1
        assert number < 60
    assert number > 10
    assert query.ids == list(range(120))
    query.restart()
    await query.drain()
    assert query.ids == sorted([*range(120), *range(1000, 1000 + number), 2000])


@pytest.mark.parametrize("anew", [False, True])
async def test_available_now_takes_what_is_gone_for_done(world, caplog, anew):
    await world.create("a", "b")
    await world.publish("a", [0, 1])
    await world.publish("b", [2, 3])
    query = world.query(startingOffsets="earliest", failOnDataLoss="false")
    await query.planner.fix_targets()
    await query.trigger(max_bytes=1)
    await world.delete("b")
    if anew:
        await world.create("b")
        await world.publish("b", [4, 5])
    await query.drain(max_bytes=1)
    await query.drain()
    assert query.ids == [0, 1, 2]
    said = [r for r in caplog.records if r.name == "gazette_aio.spark.streaming.planner"]
    assert [r.journal for r in said] == ["test/b"], "it's told of once"


# --- Committed messages.


async def publish_histories(world, rng, names, steps, query, limits):
    """Publish transactions of some producers, with triggers in between; return what commits."""
    producers = [Producer() for _ in range(4)]
    pending = {(n, p): [] for n in names for p in range(4)}
    committed, number = [], 0
    for _ in range(steps):
        name, index = rng.choice(names), rng.randrange(4)
        producer, content = producers[index], b""
        match rng.randrange(8):
            case 0:
                content = producer.ack()
                committed += pending[name, index]
                pending[name, index] = []
            case 1 if not pending[name, index]:
                content = producer.outside({"id": number})
                committed.append(number)
                number += 1
            case _:
                for _ in range(rng.randrange(1, 4)):
                    content += producer.pending({"id": number})
                    pending[name, index].append(number)
                    number += 1
        if rng.random() < 0.2:
            content += content  # Its append was repeated.
        await world.append(name, content)
        if rng.random() < 0.3:
            await query.trigger(**rng.choice(limits))
        if rng.random() < 0.05:
            query.restart()
    return committed


@pytest.mark.parametrize("planner", [StreamPlanner, LegacyStreamPlanner])
@pytest.mark.parametrize("seed", range(3))
async def test_each_committed_message_once(world, planner, seed):
    rng = random.Random(seed)
    await world.create("a", "b")
    query = world.query(planner=planner, startingOffsets="earliest")
    limits = [{}, {"max_bytes": 300}, {"max_rows": 5}]
    committed = await publish_histories(world, rng, ["a", "b"], 80, query, limits)
    while await query.trigger(**rng.choice(limits)):
        pass
    await query.drain()
    assert query.ids == sorted(committed)
    assert len(committed) > 20


async def test_a_transaction_of_three_batches_and_its_neighbours(world):
    await world.create("a")
    query = world.query(startingOffsets="earliest")
    await query.trigger()
    one, other, silent = Producer(), Producer(), Producer()
    await world.append("a", silent.pending({"id": 99}))
    expected = []
    for batch in range(3):
        await world.append("a", one.pending({"id": batch}))
        await world.append("a", other.pending({"id": 10 + batch}))
        if batch == 1:
            await world.append("a", other.ack())
        await query.trigger()
        expected.append([10, 11] if batch == 1 else [])
    await world.append("a", one.ack() + other.ack())
    await query.trigger()
    found = [[row["id"] for row in batch] for batch in query.batches[1:]]
    assert found == [*expected, [0, 1, 2, 12]]
    (task,) = query.tasks
    assert isinstance(task.kind, CommittedFrom)
    state = query.end["s"]["test/a"]["producers"]
    assert [len(entry) for entry in state.values()].count(3) == 1, "one is pending"


async def test_producers_which_are_silent_are_forgotten(world):
    await world.create("a")
    query = world.query(startingOffsets="earliest", producerHorizon="1h")
    old, new = Producer(), Producer()
    old.clock = type(old.clock)(int(old.clock) - (2 * 3600 * 10_000_000 << 4))
    pending = Producer()
    pending.clock = type(old.clock)(int(old.clock))
    await world.append("a", old.outside({"id": 0}) + pending.pending({"id": 1}))
    await query.trigger()
    assert len(query.end["s"]["test/a"]["producers"]) == 2
    await world.append("a", new.outside({"id": 2}))
    await query.trigger()
    assert query.end["s"]["test/a"]["producers"].keys() == {pending.id.hex(), new.id.hex()}


async def test_a_start_in_the_middle(world):
    await world.create("a")
    producer = Producer()
    await world.append("a", producer.pending({"id": 0}))
    query = world.query()
    await query.trigger()
    await world.append("a", producer.pending({"id": 1}) + producer.ack())
    await query.drain()
    assert query.ids == [1], "as a consumer which starts there"


async def test_isolation_of_a_checkpoint(world):
    await world.create("a")
    await world.publish("a", [0])
    query = world.query(isolation="read-uncommitted", startingOffsets="earliest")
    await query.trigger()
    query.restart(brokers=world.broker.endpoint, prefix="test/")
    with pytest.raises(ConfigurationError, match="isolation can't be changed"):
        await query.trigger()


async def test_journals_of_several_content_types(world):
    await world.create("a")
    await world.create("raw", content_type="text/plain")
    query = world.query(startingOffsets="earliest", schema=SCHEMA.remove(0))
    producer = Producer()
    await world.append("a", producer.pending({"id": 0}))
    await world.append("raw", b"anything")
    begin, end = await query.plan()
    kinds = {
        task.journal: type(task.kind).__name__
        for partition in await query.planner.partitions(json.loads(begin), json.loads(end))
        for task in partition
    }
    assert kinds == {"test/a": "CommittedFrom", "test/raw": "All"}
    assert json.loads(end)["s"].keys() == {"test/a"}
    query.restart()
    assert await query.plan() is None


@pytest.mark.parametrize("planner", [StreamPlanner, LegacyStreamPlanner])
@pytest.mark.parametrize("isolation", ["read-committed", "read-uncommitted"])
async def test_lines_in_several_appends(world, isolation, planner):
    await world.create("a")
    query = world.query(startingOffsets="earliest", isolation=isolation, planner=planner)
    one, other, last = (Producer().outside({"id": number}) for number in range(3))
    await world.append("a", one[:20])
    await query.drain()
    await world.append("a", one[20:] + other + last[:-1])
    await query.drain()
    assert query.ids == [0, 1]
    assert query.end["j"]["test/a"] == len(one + other)
    query.restart()
    await query.drain()
    await world.append("a", last[-1:])
    query.restart()
    await query.drain()
    assert query.ids == [0, 1, 2]


@pytest.mark.parametrize("isolation", ["read-committed", "read-uncommitted"])
async def test_a_limit_within_a_line_which_is_not_complete(world, isolation):
    await world.create("a")
    query = world.query(startingOffsets="earliest", isolation=isolation)
    one, other = (Producer().outside({"id": number}) for number in range(2))
    await world.append("a", one + other[:20])
    await query.drain(max_bytes=len(one) + 10)
    await query.drain(max_bytes=5)
    assert query.ids == [0]
    assert query.end["j"]["test/a"] == len(one)
    await world.append("a", other[20:])
    await query.drain(max_bytes=5)
    assert query.ids == [0, 1]


@pytest.mark.parametrize("isolation", ["read-committed", "read-uncommitted"])
async def test_a_target_within_a_line_which_cannot_be_cut(world, isolation):
    await world.create("c", content_type=CONTENT_TYPE_CSV)
    uuid = "00000000-0000-1000-8000-010203040506,"
    query = world.query(startingOffsets="earliest", isolation=isolation, schema=SCHEMA.remove(0))
    await world.append("c", uuid[:20].encode())
    await query.planner.fix_targets()
    await world.append("c", f"{uuid[20:]}a\n".encode())
    await query.drain()
    assert query.rows == []
    query.restart()
    await query.drain()
    assert [row["_begin"] for row in query.rows] == [0]


@pytest.mark.parametrize("content_type", [NDJSON, CONTENT_TYPE_CSV])
@pytest.mark.parametrize("isolation", ["read-committed", "read-uncommitted"])
async def test_an_old_reader_ends_at_the_last_complete_line(
    world, isolation, content_type, monkeypatch
):
    monkeypatch.setattr(line_ends, "WINDOW_BYTES", 8)
    await world.create("a", content_type=content_type)
    lines = [Producer().outside({"id": number}) for number in range(3)]
    if content_type == CONTENT_TYPE_CSV:
        lines = [
            b'%s,"%d\n"\n' % (json.loads(line)["_meta"]["uuid"].encode(), at)
            for at, line in enumerate(lines)
        ]
    query = world.query(
        startingOffsets="earliest",
        isolation=isolation,
        planner=LegacyStreamPlanner,
        schema=SCHEMA.remove(0),
    )
    await world.append("a", lines[0])
    await query.drain()
    await world.append("a", lines[1] + lines[2][:20])
    for _ in range(2):
        query.restart()
        await query.trigger()
        assert query.end["j"]["test/a"] == len(lines[0] + lines[1])
    await world.append("a", lines[2][20:])
    query.restart()
    await query.drain()
    sizes = [len(line) for line in lines]
    assert [row["_begin"] for row in query.rows] == [0, sizes[0], sizes[0] + sizes[1]]


@pytest.mark.parametrize("planner", [StreamPlanner, LegacyStreamPlanner])
async def test_the_last_csv_record_is_looked_for_in_the_last_fragment(world, monkeypatch, planner):
    await world.create("a", content_type=CONTENT_TYPE_CSV)
    size = 0
    for number in range(3):
        uuid = json.loads(Producer().outside({}))["_meta"]["uuid"]
        size = (await world.append("a", f"{uuid},{number}\n".encode())).end
        await world.persist("a")
    await world.append("a", b"begin of a rec")
    begins = []
    real = line_ends.BoundedReader

    def reader(client, journal, begin, *args, **kwargs):
        begins.append(begin)
        return real(client, journal, begin, *args, **kwargs)

    monkeypatch.setattr(line_ends, "BoundedReader", reader)
    query = world.query(
        startingOffsets="earliest",
        isolation="read-uncommitted",
        schema=SCHEMA.remove(0),
        planner=planner,
    )
    await query.trigger()
    assert query.end["j"]["test/a"] == size
    assert len(query.rows) == 3
    assert min(begins) == size, "nothing before is read"


async def test_a_limit_far_before_the_end_of_a_line(world, monkeypatch):
    monkeypatch.setattr(line_ends, "WINDOW_BYTES", 8)
    await world.create("a")
    query = world.query(startingOffsets="earliest", isolation="read-uncommitted")
    one, other = (Producer().outside({"id": number}) for number in range(2))
    await world.append("a", one + other[:-1])
    await query.drain(max_bytes=len(one) + 5)
    assert query.ids == [0]
    assert query.end["j"]["test/a"] == len(one)
    await world.append("a", other[-1:])
    await query.drain(max_bytes=len(one) + 5)
    assert query.ids == [0, 1]


async def test_a_planned_batch_is_run_again_by_a_replica_which_is_behind(world, monkeypatch):
    await world.create("a")
    lines = [Producer().outside({"id": number}) for number in range(3)]
    await world.append("a", b"".join(lines))
    query = world.query(startingOffsets="earliest", isolation="read-uncommitted")
    planned = await query.plan(max_bytes=len(lines[0]) + 5)
    real = stream_listing.list_journals

    async def list_journals(*args, **kwargs):
        return [replace(one, head=len(lines[0])) for one in await real(*args, **kwargs)]

    query.restart()
    with monkeypatch.context() as patch:
        patch.setattr(stream_listing, "list_journals", list_journals)
        await query.run(*planned)
    await query.drain()
    assert query.ids == [0, 1, 2], "the line which goes on behind the end is of this batch"


async def test_bad_lines_at_the_head(world):
    await world.create("a")
    query = world.query(startingOffsets="earliest", mode="PERMISSIVE")
    await world.append("a", b"not JSON\n")
    await query.drain()
    assert [row["id"] for row in query.rows] == [None]
    await world.publish("a", [1])
    await query.drain()
    assert [row["id"] for row in query.rows] == [None, 1]


# --- Brokers which are away.


@pytest.fixture
def absences(monkeypatch):
    """Errors which the next listings meet."""
    errors = []
    real = stream_listing.list_journals

    async def list_journals(*args, **kwargs):
        if errors:
            raise errors.pop(0)
        return await real(*args, **kwargs)

    monkeypatch.setattr(stream_listing, "list_journals", list_journals)
    monkeypatch.setattr(stream_listing, "PAUSE_SECONDS", 0.0)
    return errors


def unavailable():
    return TransportError("UNAVAILABLE", "no broker answers", retryable=True)


async def test_brokers_which_restart_are_waited_for(world, absences):
    await world.create("a")
    query = world.query(startingOffsets="earliest", fetchTimeout="60s")
    absences.append(unavailable())
    with pytest.raises(TransportError):
        await query.trigger()
    absences.clear()
    await query.drain()
    for number in range(2):
        await world.publish("a", [number])
        absences += [unavailable(), unavailable()]
        await query.drain()
    assert query.ids == [0, 1]
    planned = json.dumps((await query.planner.initial()).to_json()), query.log[-1]
    absences.append(unavailable())
    await query.run(*planned)
    assert query.ids == [0, 0, 1, 1]
    assert not absences


@pytest.mark.parametrize(
    ("seconds", "error"),
    [("0.001s", unavailable()), ("60s", TransportError("PERMISSION_DENIED", "no"))],
)
async def test_brokers_are_not_waited_for_in_vain(world, absences, seconds, error):
    await world.create("a")
    query = world.query(fetchTimeout=seconds)
    await query.drain()
    absences += [error] * 1000
    with pytest.raises(TransportError, match=error.code):
        await query.trigger()


# --- Cost.


async def test_positions_for_progress(world):
    await world.create("a")
    await world.publish("a", range(10))
    query = world.query(startingOffsets="earliest")
    assert await query.planner.latest() is None
    await query.trigger(max_bytes=1)
    head = await world.head("a")
    latest = await query.planner.latest()
    assert latest["j"] == {"test/a": head}
    assert latest["c"] == query.end["c"]
    assert query.end["j"]["test/a"] < head


async def test_an_idle_trigger_asks_for_heads_only(world, monkeypatch):
    await world.create("a", "b")
    await world.publish("a", range(10))
    query = world.query(startingOffsets="earliest")
    await query.drain()
    client = await spark_client(query.options.connection)
    calls = Counter()
    for name in ("list", "read", "list_fragments"):
        real = getattr(client.context.rpc, name)

        def counted(*args, real=real, name=name, **kwargs):
            calls[name] += 1
            return real(*args, **kwargs)

        monkeypatch.setattr(client.context.rpc, name, counted)
    assert not await query.trigger()
    assert calls == {"list": 1, "read": 2}
    calls.clear()
    await world.publish("a", [10])
    planned = await query.plan()
    assert calls == {"list": 1, "read": 3}, "and UUIDs of what's new"
    calls.clear()
    await query.planner.partitions(*map(json.loads, planned))
    assert calls == {}, "tasks are planned by the same listing"
