"""Batches of streaming queries, as they're planned and read, without Spark."""

from __future__ import annotations

import json
import random
import time
from collections import Counter

import pyarrow as pa
import pytest

import gazette_aio.protocol as pb
from gazette_aio.protocol.errors import ConfigurationError, DataLossError
from gazette_aio.protocol.well_known import CONTENT_TYPE_CSV
from gazette_aio.spark import bridge, stream_planner
from gazette_aio.spark.legacy_planner import LegacyStreamPlanner
from gazette_aio.spark.options import SourceOptions
from gazette_aio.spark.planning import CommittedFrom
from gazette_aio.spark.reading import read_task
from gazette_aio.spark.stream_planner import StreamPlanner
from gazette_aio.testing import create_journals, journal_spec
from tests.pyspark.journals import Producer

NDJSON = "application/x-ndjson"
SCHEMA = pa.schema([("id", pa.int64()), ("_journal", pa.string()), ("_begin", pa.int64())])


@pytest.fixture
def gazette_broker_options(tmp_path):
    (tmp_path / "fragments").mkdir()
    return {"file_root": tmp_path / "fragments", "persist_delay": 0.0}


class World:
    """Journals below `test/`, and queries of them."""

    def __init__(self, broker, client, root):
        self.broker = broker
        self.client = client
        self.root = root
        self.calls = Counter()

    async def create(self, *names, content_type=NDJSON, length=1 << 24):
        labels = {"content-type": content_type}
        specs = [
            journal_spec(f"test/{n}", labels=labels, stores=["file:///"], length=length)
            for n in names
        ]
        await create_journals(self.client, *specs)

    async def delete(self, *names):
        changes = [
            pb.ApplyRequest.Change(delete=f"test/{n}", expect_mod_revision=-1) for n in names
        ]
        await self.client.apply(changes)

    async def append(self, name, content):
        return (await self.client.append(f"test/{name}", content)).commit

    async def publish(self, name, ids, producer=None):
        producer = producer or Producer()
        return await self.append(name, b"".join(producer.outside({"id": one}) for one in ids))

    async def persist(self, name):
        await self.broker.flush(f"test/{name}")
        await self.broker.refresh(f"test/{name}")

    async def lose_fragments(self, name, count):
        for file in sorted((self.root / "test" / name).rglob("*-*-*"))[:count]:
            file.unlink()
        await self.broker.refresh(f"test/{name}")

    async def head(self, name):
        return (await self.append(name, b"")).end

    def query(self, *, planner=StreamPlanner, **options):
        given = {"brokers": self.broker.endpoint, "fetchTimeout": "2s", **options}
        if not given.keys() & {"journals", "selector", "prefix"}:
            given["prefix"] = "test/"
        return Query(given, planner)


class Query:
    """What Spark does for a query: a log of the ends of batches, and the rows which came."""

    def __init__(self, options, planner_type):
        self.options = SourceOptions.parse(options, streaming=True)
        self.planner_type = planner_type
        self.log = []
        self.rows = []
        self.batches = []
        self.tasks = []
        self.restart()

    def restart(self, **changes):
        """Go on in a new process."""
        if changes:
            self.options = SourceOptions.parse(changes, streaming=True)
        self.planner = self.planner_type(self.options)

    async def begin(self, *, anew=False):
        """Return where the next batch begins; or the first one, which isn't in the log."""
        if self.log and not anew:
            return self.log[-1]
        first, again = [json.dumps((await self.planner.initial()).to_json()) for _ in range(2)]
        assert first == again
        return first

    async def plan(self, **limits):
        """Plan a batch; return its begin and its end, if it's not empty."""
        if self.planner_type is LegacyStreamPlanner:
            end = json.dumps(await self.planner.next_end(**limits))
            begin = await self.begin()
        else:
            begin = await self.begin()
            end = json.dumps(await self.planner.end(json.loads(begin), **limits))
        if end == begin:
            return None
        self.log.append(end)
        return begin, end

    async def run(self, begin, end):
        """Run the tasks of a batch."""
        partitions = await self.planner.partitions(json.loads(begin), json.loads(end))
        self.tasks = [task for partition in partitions for task in partition]
        rows = []
        for task in self.tasks:
            async for batch in read_task(task, self.options, SCHEMA):
                assert batch.schema == SCHEMA
                rows += batch.to_pylist()
        self.batches.append(rows)
        self.rows += rows

    async def trigger(self, **limits):
        """Plan and run a batch; return whether there was one."""
        planned = await self.plan(**limits)
        if planned is not None:
            await self.run(*planned)
        return planned is not None

    async def drain(self, most=1000, **limits):
        for number in range(most):
            if not await self.trigger(**limits):
                return number
        raise AssertionError("batches don't end")

    @property
    def ids(self):
        return sorted(row["id"] for row in self.rows)

    @property
    def end(self):
        return json.loads(self.log[-1])


@pytest.fixture
async def world(gazette_broker, gazette_client, tmp_path):
    yield World(gazette_broker, gazette_client, tmp_path / "fragments")
    await bridge.close_clients()


# --- Where queries begin and end.


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


async def test_starting_time_passes_over_older_fragments(world, monkeypatch):
    monkeypatch.setattr(stream_planner, "MAX_SKEW_SECONDS", 0)
    await world.create("a")
    await world.publish("a", [0])
    await world.persist("a")
    late = int(time.time() * 1000) + 3_600_000
    await world.publish("a", [1])
    query = world.query(startingTimestamp=str(late))
    begin = json.loads(await query.begin())
    head = await world.head("a")
    assert 0 < begin["j"]["test/a"] < head, "what isn't persisted yet may be of any time"
    await query.drain()
    assert query.rows == [], "rows are exact"
    early = world.query(startingTimestamp="1")
    await early.drain()
    assert early.ids == [0, 1]


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
    query = world.query(startingOffsets="earliest", isolation="read-uncommitted", format="raw")
    schema = pa.schema([("_begin", pa.int64())])
    begins = []
    for _ in range(3):
        begin, end = await query.plan(max_bytes=1)
        for partition in await query.planner.partitions(json.loads(begin), json.loads(end)):
            for task in partition:
                async for batch in read_task(task, query.options, schema):
                    begins += batch.column(0).to_pylist()
        assert json.loads(end)["j"]["test/c"] in {commit.end for commit in commits}
    assert await query.plan(max_bytes=1) is None
    assert len(begins) == len(set(begins)) == 150


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


async def test_available_now_takes_what_is_gone_for_done(world, caplog):
    await world.create("a", "b")
    await world.publish("a", [0, 1])
    await world.publish("b", [2, 3])
    query = world.query(startingOffsets="earliest", failOnDataLoss="false")
    await query.planner.fix_targets()
    await query.trigger(max_bytes=1)
    await world.delete("b")
    await query.drain(max_bytes=1)
    assert query.ids == [0, 1, 2]
    said = [r for r in caplog.records if r.name == "gazette_aio.spark.stream_planner"]
    assert [r.journal for r in said] == ["test/b"], "it's told of once"


# --- Journals which come and go.


async def test_new_journals_are_read_from_their_first_byte(world):
    await world.create("a")
    await world.publish("a", [0])
    query = world.query()
    await query.trigger()
    await world.create("b")
    await world.publish("b", [1])
    await world.persist("b")
    await world.publish("b", [2])
    await world.publish("b", [3])
    await world.lose_fragments("b", 1)
    await query.drain()
    assert query.ids == [2, 3], "its first fragment isn't there any more"


@pytest.mark.parametrize("fails", [True, False])
async def test_journals_which_are_gone(world, fails, caplog):
    await world.create("a", "b")
    await world.publish("a", [0])
    await world.publish("b", [1, 2, 3])
    query = world.query(startingOffsets="earliest", failOnDataLoss=str(fails).lower())
    await query.trigger(max_bytes=1)
    await world.delete("b")
    await world.publish("a", [4])
    if fails:
        with pytest.raises(DataLossError, match="DATA_LOSS: journal test/b is gone: "):
            await query.trigger()
        return
    await query.drain()
    assert [r["id"] for r in query.rows if r["_journal"] == "test/a"] == [0, 4]
    said = [r for r in caplog.records if r.name == "gazette_aio.spark.stream_planner"]
    assert [r.journal for r in said] == ["test/b"], "it's told of once"
    # What was read of it isn't lost.
    await world.delete("a")
    assert not await query.trigger()


async def test_a_planned_batch_of_a_journal_which_is_gone(world):
    await world.create("a")
    await world.publish("a", [0])
    query = world.query(startingOffsets="earliest")
    planned = await query.plan()
    await world.delete("a")
    query.restart()
    with pytest.raises(DataLossError, match=r"test/a is gone: \[0, \d+\) can't be read"):
        await query.run(*planned)
    query.restart(brokers=world.broker.endpoint, prefix="test/", failOnDataLoss="false")
    await query.run(*planned)
    assert query.rows == []


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("isolation", ["read-committed", "read-uncommitted"])
async def test_journals_created_anew(world, fails, isolation):
    await world.create("a")
    await world.publish("a", range(5))
    query = world.query(
        startingOffsets="earliest", isolation=isolation, failOnDataLoss=str(fails).lower()
    )
    await query.drain()
    await world.delete("a")
    for file in (world.root / "test").rglob("*-*-*"):
        file.unlink()
    await world.create("a")
    await world.publish("a", range(10, 20))
    if fails:
        with pytest.raises(DataLossError, match="test/a was created anew"):
            await query.trigger()
        return
    await query.drain()
    assert query.ids == [*range(5), *range(10, 20)]


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("isolation", ["read-committed", "read-uncommitted"])
async def test_content_which_expired(world, fails, old, isolation, monkeypatch):
    if old:
        monkeypatch.setattr(stream_planner, "is_old", lambda fragment: fragment.mod_time > 0)
    await world.create("a")
    query = world.query(
        startingOffsets="earliest",
        isolation=isolation,
        failOnDataLoss=str(fails).lower(),
        fetchTimeout="0.2s",
    )
    await query.trigger()
    for number in range(3):
        await world.publish("a", [number])
        await world.persist("a")
    await world.lose_fragments("a", 1)
    if fails:
        # Content which isn't old is waited for, by who reads it.
        match = "test/a has lost its oldest fragments" if old else r"lost \[0, \d+\) of journal"
        with pytest.raises(DataLossError, match=match):
            await query.trigger()
        return
    await query.drain()
    assert query.ids == [1, 2]


async def test_an_idle_query_whose_last_content_expired(world, monkeypatch):
    await world.create("a")
    await world.publish("a", [0])
    query = world.query(startingOffsets="earliest")
    await query.drain()
    await world.persist("a")
    await world.lose_fragments("a", 1)
    await world.publish("a", [1])
    monkeypatch.setattr(stream_planner, "_FRESH_SECONDS", -1.0)  # It was long ago.
    await query.drain()
    assert query.ids == [0, 1]


async def test_write_heads_which_are_behind_for_a_moment(world, monkeypatch):
    await world.create("a")
    await world.publish("a", [0])
    query = world.query(startingOffsets="earliest")
    await query.drain()
    real = stream_planner.list_journals

    async def list_journals(*args, **kwargs):
        found = await real(*args, **kwargs)
        return [
            stream_planner.replace(one, head=one.head - 3) if not kwargs["fragments"] else one
            for one in found
        ]

    monkeypatch.setattr(stream_planner, "list_journals", list_journals)
    assert not await query.trigger()
    await world.publish("a", [1])
    monkeypatch.setattr(stream_planner, "list_journals", real)
    await query.drain()
    assert query.ids == [0, 1]


@pytest.mark.parametrize("fails", [True, False])
async def test_write_heads_which_stay_behind(world, monkeypatch, fails):
    monkeypatch.setattr(stream_planner, "_PROBE_SECONDS", 0.05)
    await world.create("a")
    await world.publish("a", [0])
    query = world.query(startingOffsets="earliest", failOnDataLoss=str(fails).lower())
    await query.drain()
    end = query.end
    end["j"]["test/a"] += 50
    query.log.append(json.dumps(end))
    if fails:
        with pytest.raises(DataLossError, match="test/a fell behind"):
            await query.trigger()
        return
    await query.trigger()
    await world.publish("a", [1])
    await query.drain()
    assert query.ids == [0, 1]


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
    query = world.query(startingOffsets="earliest")
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


async def test_bad_lines_at_the_head(world):
    await world.create("a")
    query = world.query(startingOffsets="earliest", mode="PERMISSIVE")
    await world.append("a", b"not JSON\n")
    await query.drain()
    assert [row["id"] for row in query.rows] == [None]
    await world.publish("a", [1])
    await query.drain()
    assert [row["id"] for row in query.rows] == [None, 1]


# --- Cost.


async def test_positions_for_progress(world):
    await world.create("a")
    await world.publish("a", range(10))
    query = world.query(startingOffsets="earliest")
    assert query.planner.latest() is None
    await query.trigger(max_bytes=1)
    head = await world.head("a")
    latest = query.planner.latest()
    assert latest["j"] == {"test/a": head}
    assert latest["c"] == query.end["c"]
    assert query.end["j"]["test/a"] < head


async def test_an_idle_trigger_asks_for_heads_only(world, monkeypatch):
    await world.create("a", "b")
    await world.publish("a", range(10))
    query = world.query(startingOffsets="earliest")
    await query.drain()
    client = next(iter(bridge._clients.values())).copy().popitem()[1]
    calls = Counter()
    for name in ("list", "read", "list_fragments"):
        real = getattr(client.rpc, name)

        def counted(*args, real=real, name=name, **kwargs):
            calls[name] += 1
            return real(*args, **kwargs)

        monkeypatch.setattr(client.rpc, name, counted)
    assert not await query.trigger()
    assert calls == {"list": 1, "read": 2}
    calls.clear()
    await world.publish("a", [10])
    planned = await query.plan()
    assert calls == {"list": 1, "read": 3}, "and UUIDs of what's new"
    calls.clear()
    await query.planner.partitions(*map(json.loads, planned))
    assert calls == {}, "tasks are planned by the same listing"
