"""Streams in Spark: restarts, limits, transactions over batches, journals which come and go."""

from __future__ import annotations

import inspect
import itertools
import json
import pickle
import shutil
import time
from collections import Counter

import pyarrow as pa
import pytest

# Where it's missing, this module isn't imported.
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from gazette_aio.protocol.errors import ConfigurationError
from gazette_aio.spark.options import SourceOptions
from gazette_aio.spark.progress_lag import lag
from gazette_aio.spark.stream_source import LegacyGazetteStreamReader, stream_reader
from tests.pyspark.journals import Producer
from tests.pyspark.probes_streams import LegacySource

SCHEMA = pa.schema([("id", pa.int64()), ("_journal", pa.string())])
_NUMBERS = itertools.count(1)


def documents(ids):
    return [{"id": one} for one in ids]


class Run:
    """A query, its checkpoint, and the rows of its batches by their numbers."""

    def __init__(self, spark, options, path, source):
        self.spark = spark
        self.options = options
        self.path = path
        self.source = source
        self.batches = {}
        self.query = None

    def _take(self, frame, number):
        self.batches[number] = sorted(row["id"] for row in frame.collect())

    def start(self, **trigger):
        frame = self.spark.readStream.format(self.source).options(**self.options)
        writer = frame.schema("id BIGINT").load().writeStream.foreachBatch(self._take)
        writer = writer.option("checkpointLocation", str(self.path))
        self.query = writer.trigger(**trigger or {"availableNow": True}).start()
        return self.query

    def finish(self, **trigger):
        """Run to its end, and return the rows so far."""
        query = self.start(**trigger)
        assert query.awaitTermination(60)
        return self.ids

    @property
    def ids(self):
        return sorted(one for batch in self.batches.values() for one in batch)

    @property
    def sizes(self):
        return [len(batch) for _, batch in sorted(self.batches.items())]

    def uncommit(self, number):
        """Have Spark know no longer that a batch was run."""
        for name in (str(number), f".{number}.crc"):
            (self.path / "commits" / name).unlink(missing_ok=True)


@pytest.fixture
def run(spark, journals, tmp_path):
    runs = []

    def make(*, source="gazette", **options):
        given = journals.options(**options)
        runs.append(Run(spark, given, tmp_path / f"checkpoint-{len(runs)}", source))
        return runs[-1]

    yield make
    for one in runs:
        if one.query is not None:
            one.query.stop()


def until(condition, seconds=30.0):
    """Wait for what another process does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.02)


def ends_of(query):
    """Return where batches of a query of one journal ended."""
    for progress in query.recentProgress:
        for source in progress["sources"]:
            yield from offsets_of(source["endOffset"]).values()


def offsets_of(value):
    """Return the positions of journals from what a progress tells."""
    value = json.loads(value) if isinstance(value, str) else value
    return {} if value is None else value["j"]


# --- Queries.


def test_the_latest_anchor_survives_a_crash(run, journals):
    journals.create("a")
    journals.publish("a", documents(range(100)))
    stream = run()
    assert stream.finish() == []
    # As if it had been killed before the first commit. More is appended before it's restarted.
    stream.uncommit(0)
    journals.publish("a", documents(range(100, 150)))
    assert stream.finish() == list(range(100, 150))
    assert stream.batches[0] == []


def test_batches_are_run_again_as_they_were(run, journals):
    journals.create("a", "b")
    for name, ids in (("a", range(60)), ("b", range(60, 100))):
        journals.publish(name, documents(ids))
    stream = run(startingOffsets="earliest", maxBytesPerTrigger=2000)
    stream.finish()
    first, last = dict(stream.batches), max(stream.batches)
    assert stream.ids == list(range(100))
    assert last >= 3
    stream.uncommit(last)
    journals.publish("a", documents([100]))
    assert stream.finish() == list(range(101))
    assert {number: stream.batches[number] for number in first} == first


@pytest.mark.parametrize("isolation", ["read-committed", "read-uncommitted"])
def test_available_now_ends_at_its_target(run, journals, isolation):
    journals.create("a", "b")
    journals.publish("a", documents(range(80)))
    journals.publish("b", documents(range(80, 100)))
    size = journals.head("a") + journals.head("b")
    stream = run(startingOffsets="earliest", isolation=isolation, maxBytesPerTrigger=size // 4)
    take, producer = stream._take, Producer()

    def take_and_publish(frame, number):
        take(frame, number)
        journals.publish("a", documents([1000 + number]), producer)

    stream._take = take_and_publish
    stream.finish()
    assert stream.ids == list(range(100)), "what arrived meanwhile is left to the next run"
    count = len(stream.batches)
    assert count in {4, 5, 6}
    stream._take = take
    stream.finish()
    assert stream.ids == [*range(100), *range(1000, 1000 + count)]


def test_limits_of_rows(run, journals):
    journals.create("a")
    journals.publish("a", documents(range(10)))
    stream = run(startingOffsets="earliest", maxRowsPerTrigger=3)
    assert stream.finish() == list(range(10))
    assert stream.sizes[:4] == [3, 3, 3, 1]


def test_transactions_over_batches_and_restarts(run, journals):
    journals.create("a")
    stream = run(startingOffsets="earliest")
    one, other, silent = Producer(), Producer(), Producer()
    journals.append("a", silent.pending({"id": 99}))
    query = stream.start(processingTime="0 seconds")
    ended = 0
    for number in range(3):
        if number == 2:
            query.stop()
            query = stream.start(processingTime="0 seconds")
        journals.append("a", one.pending({"id": number}) + other.pending({"id": 10 + number}))
        if number == 1:
            journals.append("a", other.ack())
        head = journals.head("a")
        until(lambda: any(end == head for end in ends_of(query)))  # noqa: B023
        ended += 1
    journals.append("a", one.ack() + other.ack())
    until(lambda: 12 in stream.ids)
    query.stop()
    batches = [batch for _, batch in sorted(stream.batches.items())]
    assert len(batches) > ended
    early = [one for batch in batches[:-1] for one in batch]
    assert early == [10, 11], "nothing else was committed before"
    assert batches[-1] == [0, 1, 2, 12]
    journals.append("a", silent.ack())
    assert stream.finish() == [0, 1, 2, 10, 11, 12, 99]


def test_journals_which_come_and_go(run, journals):
    journals.create("a")
    journals.publish("a", documents([0]))
    stream = run(startingOffsets="earliest")
    query = stream.start(processingTime="0 seconds")
    until(lambda: stream.ids == [0])
    journals.create("b")
    journals.publish("b", documents([1, 2]))
    until(lambda: stream.ids == [0, 1, 2])
    journals.delete("b")
    journals.publish("a", documents([3]))
    until(lambda: stream.ids == [0, 1, 2, 3])
    assert query.exception() is None
    query.stop()
    # It's gone with content which a batch was to read.
    journals.create("c")
    journals.publish("c", documents([4]))
    stream.finish()
    stream.uncommit(max(stream.batches))
    journals.delete("c")
    with pytest.raises(StreamingQueryException, match=r"DATA_LOSS: journal \S+/c is gone: \[0, "):
        stream.finish()
    stream.options["failOnDataLoss"] = "false"
    journals.publish("a", documents([5]))
    stream.finish()
    assert 5 in stream.ids
    assert 4 not in stream.ids, "its batch was run again, without it"


def test_progress_tells_the_lag(run, journals):
    (name,) = journals.create("a")
    journals.publish("a", documents(range(100)))
    head = journals.head("a")
    stream = run(startingOffsets="earliest", maxBytesPerTrigger=head // 2)
    stream.finish()
    first = next(each for each in stream.query.recentProgress if each["batchId"] == 0)
    (source,) = first["sources"]
    read = offsets_of(source["endOffset"])[name]
    assert 0 < read < head
    assert lag(first) == {name: head - read}
    assert lag(stream.query.recentProgress[-1]) == {name: 0}


def test_errors_are_told_in_one_line(run, journals):
    journals.create("a")
    stream = run(startingOffsets=json.dumps({journals.name("a"): 5}))
    with pytest.raises(StreamingQueryException, match=r"startingOffsets of journal \S+/a is 5, "):
        stream.finish()


# --- Spark before 4.2.


def test_an_old_reader_goes_on_from_a_checkpoint(run, journals, spark):
    spark.dataSource.register(LegacySource)
    journals.create("a")
    journals.publish("a", documents([0]))
    stream = run(source="gazette-legacy", startingOffsets="earliest")
    one, other = Producer(), Producer()
    expected = [0]
    assert stream.finish() == expected
    journals.append("a", one.pending({"id": 1}) + other.outside({"id": 2}))
    query = stream.start(processingTime="0 seconds")
    until(lambda: 2 in stream.ids)
    journals.append("a", other.outside({"id": 3}))
    until(lambda: 3 in stream.ids)
    query.stop()
    journals.append("a", one.pending({"id": 4}) + one.ack())
    query = stream.start(processingTime="0 seconds")
    until(lambda: stream.ids == list(range(5)))
    query.stop()


def test_an_old_reader_anchors_the_first_batch(run, journals, spark):
    spark.dataSource.register(LegacySource)
    journals.create("a")
    journals.publish("a", documents([0]))
    stream = run(source="gazette-legacy")
    assert stream.finish() == []
    shutil.rmtree(stream.path / "commits")
    journals.publish("a", documents([1]))
    stream.finish()  # It's one batch a run.
    assert stream.finish() == [1]


# --- Readers.


@pytest.fixture
def reader(journals):
    made = []

    def make(**options):
        parsed = SourceOptions.parse(journals.options(**options), streaming=True)
        made.append(stream_reader(parsed, SCHEMA))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def rows_of(reader, start, end):
    copy = pickle.loads(pickle.dumps(reader))
    return [
        row
        for partition in reader.partitions(start, end)
        for batch in copy.read(pickle.loads(pickle.dumps(partition)))
        for row in batch.to_pylist()
    ]


def test_offsets_of_equal_positions_are_equal_texts(reader, journals):
    journals.create("b", "a")
    journals.publish("a", documents([0]))
    one, other = reader(), reader()
    first = one.initialOffset()
    assert json.dumps(first) == json.dumps(one.initialOffset()) == json.dumps(other.initialOffset())
    end = json.loads(json.dumps(one.latestOffset(first, ReadAllAvailable())))
    assert list(end) == sorted(end)
    assert one.latestOffset(end, ReadAllAvailable()) is end
    assert other.latestOffset(end, ReadAllAvailable()) is end
    assert one.partitions(end, end) == []
    one.commit(end)
    assert one.reportLatestOffset()["j"] == {
        journals.name("a"): journals.head("a"),
        journals.name("b"): 0,
    }


def test_limits_which_spark_sets_count(reader, journals):
    journals.create("a")
    journals.publish("a", documents(range(20)))
    limited = reader(startingOffsets="earliest", maxRowsPerTrigger=2)
    assert limited.getDefaultReadLimit() == ReadMaxRows(2)
    bytewise = reader(startingOffsets="earliest", maxBytesPerTrigger="1k")
    assert bytewise.getDefaultReadLimit() == ReadMaxBytes(1024)
    assert reader().getDefaultReadLimit() == ReadAllAvailable()
    assert isinstance(limited, SupportsTriggerAvailableNow)
    start = limited.initialOffset()
    for limit, count in ((ReadMaxRows(7), 7), (ReadMaxBytes(1), 1), (ReadAllAvailable(), 20)):
        assert len(rows_of(limited, start, limited.latestOffset(start, limit))) == count
    with pytest.raises(ConfigurationError, match="ReadMinRows"):
        limited.latestOffset(start, ReadMinRows(3))


def test_a_reader_which_is_pickled_has_no_more_than_it_needs(reader, journals):
    journals.create("a")
    journals.publish("a", documents(range(1000)))
    one = reader(startingOffsets="earliest", maxRowsPerTrigger=1)
    size = len(pickle.dumps(one))
    one.latestOffset(one.initialOffset(), ReadMaxRows(1))
    assert len(pickle.dumps(one)) == size < 4000
    again = pickle.loads(pickle.dumps(one))
    assert (again.options, again.schema) == (one.options, one.schema)


def test_an_old_reader_has_no_arguments(journals):
    journals.create("a")
    parsed = SourceOptions.parse(journals.options(startingOffsets="earliest"), streaming=True)
    one = LegacyGazetteStreamReader(parsed, SCHEMA)
    assert not inspect.signature(one.latestOffset).parameters, "by which Spark tells"
    journals.publish("a", documents([1, 2]))
    end = one.latestOffset()
    rows = rows_of(one, one.initialOffset(), end)
    assert Counter(row["id"] for row in rows) == {1: 1, 2: 1}
    assert one.latestOffset() is end
    one.stop()


def test_planning_is_quick(reader, journals):
    journals.create("a", "b", "c")
    one = reader(startingOffsets="earliest")
    start = one.latestOffset(one.initialOffset(), ReadAllAvailable())
    idle, small = [], []
    for number in range(20):
        began = time.perf_counter()
        assert one.latestOffset(start, ReadAllAvailable()) is start
        idle.append(time.perf_counter() - began)
        journals.publish("a", documents([number]))
        began = time.perf_counter()
        end = one.latestOffset(start, ReadAllAvailable())
        assert len(one.partitions(start, end)) == 1
        small.append(time.perf_counter() - began)
        start = end
    # Generous, as other tests may be running: a few ms each is usual.
    assert sorted(idle)[10] < 0.1
    assert sorted(small)[10] < 0.2
