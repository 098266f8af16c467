"""Streams in Spark: restarts, limits, transactions over batches, journals which come and go."""

from __future__ import annotations

import json
import pickle
import time

import pyarrow as pa
import pytest

# Where it's missing, this module isn't imported.
from pyspark.errors import StreamingQueryException

from gazette_aio.protocol.errors import ConfigurationError
from gazette_aio.spark import GazetteProgressListener
from gazette_aio.spark.options import SourceOptions
from gazette_aio.spark.streaming.lag import lag
from gazette_aio.spark.streaming.reports import JournalProgress
from gazette_aio.spark.streaming.source import stream_reader
from tests.pyspark.journals import Producer
from tests.pyspark.limits import DEADLINE_SECONDS
from tests.pyspark.streams import documents, offsets_of, rows_of, runs, until

streaming = pytest.importorskip(
    "pyspark.sql.streaming.datasource",
    reason="before 4.2, Spark has readers of another kind: see test_legacy_streams.py",
)
SCHEMA = pa.schema([("id", pa.int64()), ("_journal", pa.string())])


@pytest.fixture
def run(spark, journals, tmp_path):
    yield from runs(spark, journals, tmp_path)


def ends_of(query):
    """Return where batches of a query of one journal ended."""
    for progress in query.recentProgress:
        for source in progress["sources"]:
            yield from offsets_of(source["endOffset"]).values()


def heads_of(query):
    """Return the write heads which a query of one journal reported."""
    for progress in query.recentProgress:
        for source in progress["sources"]:
            yield from offsets_of(source["latestOffset"]).values()


# --- Queries. To start one takes seconds, so each test has as few of them as it can.


def test_restarts_of_a_limited_query(run, journals):
    (name,) = journals.create("a")
    journals.publish("a", documents(range(100)))
    stream = run(maxRowsPerTrigger=3)
    assert stream.finish() == [], "it begins at the latest offset"
    # As if it had been killed before the first commit. More is appended before it's restarted.
    stream.uncommit(0)
    journals.publish("a", documents(range(100, 110)))
    assert stream.finish() == list(range(100, 110)), "the begin was kept"
    assert stream.sizes == [0, 3, 3, 3, 1]
    first, *_, last = [each for each in stream.query.recentProgress if each["numInputRows"]]
    read = offsets_of(first["sources"][0]["endOffset"])[name]
    assert lag(first) == {name: journals.head("a") - read}
    assert lag(first, "rows") == {name: 7}
    assert 0 < lag(first, "seconds")[name] < DEADLINE_SECONDS
    assert lag(last) == {name: 0}
    # As if the last batch had failed.
    before = dict(stream.batches)
    stream.uncommit(max(before))
    stream.batches.clear()
    journals.publish("a", documents([110]))
    stream.finish()
    assert stream.batches == {4: before[4], 5: [110]}, "it was run again as it was"


@pytest.fixture
def reports(spark):
    """Reports on queries of this test."""
    found = []
    listener = GazetteProgressListener(found.append)
    spark.streams.addListener(listener)
    yield found
    spark.streams.removeListener(listener)


def test_batches_wait_for_their_least_size(run, journals, reports):
    (name,) = journals.create("a")
    stream = run(minRowsPerTrigger=3)
    query = stream.start(processingTime="0 seconds")
    until(lambda: stream.batches)
    producer = Producer()
    for number in range(3):
        journals.publish("a", documents([number]), producer)
        head = journals.head("a")
        until(lambda: any(known == head for known in heads_of(query)))  # noqa: B023
    until(lambda: stream.ids)
    until(lambda: any(report.batch == 1 for report in reports))
    query.stop()
    (source,) = next(report for report in reports if report.batch == 1).sources
    head = journals.head("a")
    assert str(source) == f"gazette prefix={journals.prefix}: 3 rows, 0 bytes, 0 rows, 0.0 s behind"
    assert source.journals == {name: JournalProgress(head, head, 0, 0, 0.0)}
    journals.publish("a", documents([3]), producer)
    stream.finish()
    assert stream.sizes == [0, 3, 1], "a run which ends doesn't wait"


def test_available_now_ends_at_its_target(run, journals):
    journals.create("a", "b")
    journals.publish("a", documents(range(80)))
    journals.publish("b", documents(range(80, 100)))
    size = journals.head("a") + journals.head("b")
    stream = run(startingOffsets="earliest", maxBytesPerTrigger=size // 4)
    take, producer = stream.take, Producer()

    def take_and_publish(frame, number):
        take(frame, number)
        journals.publish("a", documents([1000 + number]), producer)

    stream.take = take_and_publish
    stream.finish()
    assert stream.ids == list(range(100)), "what arrived meanwhile is left to the next run"
    assert len(stream.batches) in {4, 5, 6}


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
    batches = [batch for _, batch in sorted(stream.batches.items())]
    assert len(batches) > ended
    early = [one for batch in batches[:-1] for one in batch]
    assert early == [10, 11], "nothing else was committed before"
    assert batches[-1] == [0, 1, 2, 12]
    journals.append("a", silent.ack())
    until(lambda: stream.ids == [0, 1, 2, 10, 11, 12, 99])


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
    journals.create("c")
    journals.publish("c", documents([4]))
    until(lambda: 4 in stream.ids)
    query.stop()
    # It's gone with content which a batch was to read.
    stream.uncommit(max(stream.batches))
    journals.delete("c")
    with pytest.raises(StreamingQueryException, match=r"DATA_LOSS: journal \S+/c is gone: \[0, "):
        stream.finish()
    stream.options["failOnDataLoss"] = "false"
    journals.publish("a", documents([5]))
    stream.finish()
    assert 5 in stream.ids
    assert 4 not in stream.ids, "its batch was run again, without it"


def test_suspended_journals(run, journals):
    journals.create("a", "b")
    journals.publish("a", documents([0]))
    journals.expire("a")
    offset = journals.suspend("a").offset
    assert offset > 0
    journals.suspend("b")
    stream = run(startingOffsets="earliest")
    assert stream.finish() == []
    # Who appends to them has them resumed.
    begin, _ = journals.publish("a", documents([1]))
    assert begin == offset
    query = stream.start(processingTime="0 seconds")
    until(lambda: stream.ids == [1])
    journals.publish("b", documents([2]))
    until(lambda: stream.ids == [1, 2])
    journals.persist("b")
    journals.suspend("b")
    journals.publish("a", documents([3]))
    until(lambda: stream.ids == [1, 2, 3])
    journals.publish("b", documents([4]))
    until(lambda: stream.ids == [1, 2, 3, 4])
    assert query.exception() is None


def test_errors_are_told_in_one_line(run, journals):
    journals.create("raw", content_type="text/plain")
    match = (
        r"ConfigurationError: column 'id': messages of content type 'text/plain' have no columns"
    )
    with pytest.raises(StreamingQueryException, match=match):
        run().finish()


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


def test_offsets_of_equal_positions_are_equal_texts(reader, journals):
    journals.create("b", "a")
    journals.publish("a", documents([0]))
    one, other = reader(), reader()
    first = one.initialOffset()
    assert json.dumps(first) == json.dumps(one.initialOffset()) == json.dumps(other.initialOffset())
    end = json.loads(json.dumps(one.latestOffset(first, streaming.ReadAllAvailable())))
    assert list(end) == sorted(end)
    assert one.latestOffset(end, streaming.ReadAllAvailable()) is end
    assert other.latestOffset(end, streaming.ReadAllAvailable()) is end
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
    assert limited.getDefaultReadLimit() == streaming.ReadMaxRows(2)
    bytewise = reader(startingOffsets="earliest", maxBytesPerTrigger="1k")
    assert bytewise.getDefaultReadLimit() == streaming.ReadMaxBytes(1024)
    assert reader().getDefaultReadLimit() == streaming.ReadAllAvailable()
    # Of another limit than all content, it may wait.
    assert reader(minRowsPerTrigger=3).getDefaultReadLimit() == streaming.ReadMinRows(3)
    assert reader(minBytesPerTrigger="1k").getDefaultReadLimit() == streaming.ReadMinRows(1)
    assert isinstance(limited, streaming.SupportsTriggerAvailableNow)
    start = limited.initialOffset()
    for limit, count in (
        (streaming.ReadMaxRows(7), 7),
        (streaming.ReadMaxBytes(1), 1),
        (streaming.ReadMinRows(3), 20),
        (streaming.ReadAllAvailable(), 20),
    ):
        assert len(rows_of(limited, start, limited.latestOffset(start, limit))) == count
    with pytest.raises(ConfigurationError, match="ReadMaxFiles"):
        limited.latestOffset(start, streaming.ReadMaxFiles(3))


def test_batches_wait_for_their_least_bytes(reader, journals):
    journals.create("a")
    one = reader(startingOffsets="earliest", minBytesPerTrigger=2000)
    limit = one.getDefaultReadLimit()
    start = one.latestOffset(one.initialOffset(), limit)
    journals.publish("a", documents([0]))
    assert one.latestOffset(start, limit) is start
    journals.publish("a", documents(range(1, 60)))
    assert len(rows_of(one, start, one.latestOffset(start, limit))) == 60


def test_journals_begin_at_times_of_their_own(reader, journals):
    a, _, c = journals.create("a", "b", "c")
    for number, name in enumerate("abc"):
        journals.publish(name, documents([number]))
    one = reader(startingTimestamp=json.dumps({a: "2100-01-01", c: "2013-01-01T00:00:00+02:00"}))
    start = one.initialOffset()
    end = one.latestOffset(start, one.getDefaultReadLimit())
    assert sorted(row["id"] for row in rows_of(one, start, end)) == [1, 2]


def test_a_reader_which_is_pickled_has_no_more_than_it_needs(reader, journals):
    journals.create("a")
    journals.publish("a", documents(range(1000)))
    one = reader(startingOffsets="earliest", maxRowsPerTrigger=1)
    size = len(pickle.dumps(one))
    one.latestOffset(one.initialOffset(), streaming.ReadMaxRows(1))
    assert len(pickle.dumps(one)) == size < 4000
    again = pickle.loads(pickle.dumps(one))
    assert (again.options, again.schema) == (one.options, one.schema)


def test_planning_is_quick(reader, journals):
    journals.create("a", "b", "c")
    one = reader(startingOffsets="earliest")
    start = one.latestOffset(one.initialOffset(), streaming.ReadAllAvailable())
    idle, small = [], []
    for number in range(20):
        began = time.process_time()
        assert one.latestOffset(start, streaming.ReadAllAvailable()) is start
        idle.append(time.process_time() - began)
        journals.publish("a", documents([number]))
        began = time.process_time()
        end = one.latestOffset(start, streaming.ReadAllAvailable())
        assert len(one.partitions(start, end)) == 1
        small.append(time.process_time() - began)
        start = end
    # Of this process alone, as others may be busy. It's generous: a few ms each is usual.
    assert sorted(idle)[10] < 0.1
    assert sorted(small)[10] < 0.2
