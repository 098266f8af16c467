"""Batches in Spark: schemas, formats, ranges, bad records, filters, errors, and reuse of workers."""

from __future__ import annotations

import itertools
import json
import re
from datetime import UTC, datetime, timedelta

import pytest

# Where it's missing, this module isn't imported.
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import functions as fn
from pyspark.sql.types import StructType

import gazette_aio.protocol as pb
from gazette_aio.message import FixedFraming, protobuf_adapter
from gazette_aio.message.uuid import OUTSIDE_TXN, build_uuid, new_producer_id
from gazette_aio.spark import source as source_module
from gazette_aio.spark.source import GazetteDataSource
from tests.pyspark.journals import CSV, PROTOBUF, Producer
from tests.pyspark.messages import NGramCount
from tests.pyspark.probes import ProbeSource, RegisteredSource
from tests.pyspark.streams import until

SUSPENDED = pb.JournalSpec.Suspend.Level


@pytest.fixture
def read(spark, journals):
    """Loads what options of the test's journals say."""

    def load(schema=None, source="gazette", **options):
        reader = spark.read.format(source).options(**journals.options(**options))
        return (reader if schema is None else reader.schema(schema)).load()

    return load


def ids(frame):
    return sorted(row["id"] for row in frame.collect())


def documents(*numbers):
    return [{"id": number} for number in numbers]


# --- Schemas and formats.


def test_the_default_schema_is_of_undecoded_messages(read, journals):
    (name,) = journals.create("one", labels={"region": "eu", "part": "7"})
    before = datetime.now(UTC)
    begin, end = journals.publish("one", documents(1, 2))
    frame = read(partitionColumns="region, part, none = not.there, all array<string> = part")
    assert frame.schema.simpleString() == (
        "struct<_value:binary,_journal:string,_begin:bigint,_end:bigint,_timestamp:timestamp,"
        "region:string,part:string,none:string,all:array<string>>"
    )
    first, second = frame.orderBy("_begin").collect()
    assert [json.loads(row["_value"])["id"] for row in (first, second)] == [1, 2]
    assert (first["_journal"], first["_begin"], second["_end"]) == (name, begin, end)
    assert first["_end"] == second["_begin"]
    assert first["region"] == "eu"
    assert first["part"] == "7"
    assert first["none"] is None
    assert first["all"] == ["7"]
    (seconds,) = frame.select(fn.min(fn.unix_micros("_timestamp"))).first()
    assert abs(seconds / 1e6 - before.timestamp()) < 60


def test_documents_and_metadata_by_the_users_schema(read, journals):
    journals.create("one")
    producer = Producer()
    journals.append(
        "one",
        producer.outside({"id": 1, "name": "é", "at": {"x": 1.5}, "tags": ["a", "b"]})
        + producer.outside({"id": 2, "other": True}),
    )
    schema = (
        "_uuid STRING, tags ARRAY<STRING>, id BIGINT, name STRING, at STRUCT<x: DOUBLE>,"
        "_producer STRING, _clock STRING, _flags INT"
    )
    first, second = read(schema).orderBy("id").collect()
    assert first[1:5] == (["a", "b"], 1, "é", (1.5,))
    assert second[1:5] == (None, 2, None, None)
    assert first["_producer"] == second["_producer"] == producer.id.hex()
    assert first["_flags"] == OUTSIDE_TXN
    assert first["_clock"] < second["_clock"] == f"{producer.clock.value:016x}"
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", first["_uuid"])


def test_raw_messages_of_journals_without_a_content_type_are_chunks(read, journals):
    journals.create("one", content_type=None)
    journals.append("one", b"\x00any\nbytes")
    (row,) = read().collect()
    assert (row["_value"], row["_begin"], row["_end"], row["_timestamp"]) == (
        b"\x00any\nbytes",
        0,
        10,
        None,
    )


def test_csv_by_position(read, journals):
    journals.create("one", content_type=CSV)
    producer, clock = new_producer_id(), Producer().clock
    uuids = [build_uuid(producer, clock.tick(), OUTSIDE_TXN) for _ in range(3)]
    journals.append(
        "one", f'{uuids[0]},1,"a, ""b"""\n{uuids[1]},2,"two\nlines"\n{uuids[2]},3,\n'.encode()
    )
    rows = read("id INT, text STRING, _uuid STRING").orderBy("id").collect()
    assert [(row["id"], row["text"] or "") for row in rows] == [
        (1, 'a, "b"'),
        (2, "two\nlines"),
        (3, ""),
    ]
    assert [row["_uuid"] for row in rows] == list(map(str, uuids))


def test_protobuf_by_its_class(read, journals):
    journals.create("one", content_type=PROTOBUF)
    adapter, framing, clock = protobuf_adapter(NGramCount), FixedFraming(), Producer().clock
    producer = new_producer_id()
    for count in (1, 2):
        uuid = build_uuid(producer, clock.tick(), OUTSIDE_TXN)
        message = adapter.encode(NGramCount(n_gram="to be", count=count), uuid)
        journals.append("one", framing.encode(message))
    values = [row["_value"] for row in read().orderBy("_begin").collect()]
    assert [NGramCount.FromString(value).count for value in values] == [1, 2]
    given = {"messageType": "tests.pyspark.messages:NGramCount"}
    typed = read("n_gram STRING, count BIGINT, _timestamp TIMESTAMP", **given)
    assert typed.agg(fn.sum("count"), fn.max("n_gram"), fn.count("_timestamp")).first() == (
        3,
        "to be",
        2,
    )
    inferred = read(inferSchema="true", **given)
    assert inferred.schema.simpleString() == "struct<n_gram:string,count:bigint>"
    with pytest.raises(AnalysisException, match="'count': columns of protobuf messages need"):
        read("count BIGINT").collect()


def test_schemas_are_inferred(read, journals):
    journals.create("a", "b", labels={"region": "eu"})
    journals.publish("a", [{"id": 1, "at": {"x": 1}}])
    journals.publish("b", [{"id": 2.5, "name": "b"}])
    frame = read(inferSchema="true", partitionColumns="region")
    assert frame.schema.simpleString() == (
        "struct<at:struct<x:bigint>,id:double,name:string,region:string>"
    )
    assert [tuple(row) for row in frame.orderBy("id").collect()] == [
        ((1,), 1.0, None, "eu"),
        (None, 2.5, "b", "eu"),
    ]
    journals.create("c", content_type=CSV)
    with pytest.raises(AnalysisException, match="content types 'application/x-ndjson', 'text/csv'"):
        read(inferSchema="true")


def test_what_spark_cannot_hold_is_refused_at_once(read, journals):
    journals.create("one")
    with pytest.raises(AnalysisException, match="column 'id': type VARIANT isn't supported"):
        read("id VARIANT").collect()
    with pytest.raises(AnalysisException, match="column '_begin' must be BIGINT, and not INT"):
        read("_begin INT").collect()


# --- Ranges.


def test_offsets(read, journals):
    a, b = journals.create("a", "b")
    cuts = [journals.publish("a", documents(number))[1] for number in range(4)]
    journals.publish("b", documents(10))
    schema = "id BIGINT"
    assert ids(read(schema)) == [0, 1, 2, 3, 10]
    assert ids(read(schema, startingOffsets="latest")) == []
    for start, end, expected in (
        ({a: cuts[0]}, {}, [1, 2, 3, 10]),
        ({a: cuts[0] + 1}, {a: cuts[2] + 1}, [2, 3, 10]),
        ({a: -1, b: -2}, {}, [10]),
        ({b: -1}, {a: cuts[0]}, [0]),
        ({a: -2}, {a: -1, b: 0}, [0, 1, 2, 3]),
    ):
        given = {"startingOffsets": json.dumps(start), "endingOffsets": json.dumps(end)}
        assert ids(read(schema, **given)) == expected, given
    assert ids(read(schema, journals=b, prefix=None)) == [10]
    assert ids(read(schema, selector=f"name={a}", prefix=None)) == [0, 1, 2, 3]


def test_timestamps_are_exact(read, journals):
    (name,) = journals.create("one")
    producer = Producer()
    start = datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)
    epoch = datetime(1582, 10, 15, tzinfo=UTC)
    for number in range(4):
        micros = (start + timedelta(milliseconds=number) - epoch) // timedelta(microseconds=1)
        journals.append("one", producer.outside({"id": number}, micros * 10 << 4))
    at = int(start.timestamp() * 1000)
    for given, expected in (
        ({"startingTimestamp": at + 1}, [1, 2, 3]),
        ({"endingTimestamp": at + 2}, [0, 1]),
        ({"startingTimestamp": at + 1, "endingTimestamp": at + 3}, [1, 2]),
        ({"startingTimestamp": at + 9}, []),
        ({"startingTimestamp": "2024-01-02", "endingTimestamp": "2024-01-02T03:04:05.002"}, [0, 1]),
        ({"startingTimestamp": "2024-01-02T05:04:05.003+02:00"}, [3]),
        ({"startingTimestamp": json.dumps({name: "2024-01-02T03:04:05.002Z"})}, [2, 3]),
    ):
        assert ids(read("id BIGINT", **given)) == expected, given


@pytest.mark.parametrize("isolation", ["read-committed", "read-uncommitted"])
def test_journals_are_read_in_as_many_partitions(read, journals, isolation):
    journals.create("one", length=1024)
    for begin in range(0, 200, 20):
        journals.publish("one", [{"id": number} for number in range(begin, begin + 20)])
    frame = read("id BIGINT", isolation=isolation)
    assert frame.rdd.getNumPartitions() == 1
    split = read("id BIGINT", isolation=isolation, minPartitions=5)
    assert 4 <= split.rdd.getNumPartitions() <= 10
    assert ids(frame) == ids(split) == list(range(200))
    assert split.count() == 200


def test_many_small_journals_are_packed(read, journals):
    names = [f"small-{number:02}" for number in range(20)]
    journals.create(*names)
    for number, name in enumerate(names):
        journals.publish(name, documents(number))
    frame = read("id BIGINT")
    assert frame.rdd.getNumPartitions() <= 2
    assert ids(frame) == list(range(20))


def test_nothing_to_read_is_no_error(read, journals):
    journals.create("one")
    assert read("id BIGINT").count() == 0


def test_suspended_journals(read, journals):
    journals.create("kept", "expired", "new", "empty")
    for number, name in enumerate(("kept", "expired")):
        journals.publish(name, documents(number))
    journals.expire("expired")
    assert journals.suspend("kept").level == SUSPENDED.PARTIAL
    for name in ("expired", "new", "empty"):
        assert journals.suspend(name).level == SUSPENDED.FULL
    assert ids(read("id BIGINT")) == [0]
    assert ids(read("id BIGINT", inferSchema="true").select("id")) == [0]
    begin, end = journals.publish("expired", documents(2))
    assert begin > 0
    journals.publish("new", documents(3))
    assert ids(read("id BIGINT")) == [0, 2, 3]
    given = json.dumps({journals.name("expired"): end})
    assert ids(read("id BIGINT", startingOffsets=given)) == [0, 3]


@pytest.mark.parametrize("io", ["direct", "broker"])
def test_persisted_fragments_are_read(read, journals, io):
    journals.create("one")
    journals.publish("one", documents(1, 2))
    journals.persist("one")
    journals.publish("one", documents(3))
    given = {"io": io} | ({"fileRoot": None} if io == "broker" else {})
    assert ids(read("id BIGINT", **given)) == [1, 2, 3]


def test_lost_content_is_an_error_which_names_it(read, journals):
    (name,) = journals.create("one")
    ends = []
    for number in range(3):
        ends.append(journals.publish("one", documents(number))[1])
        journals.persist("one")
    frame = read("id BIGINT", fetchTimeout="100ms")
    files = journals.files("one")
    files[1].unlink()
    text = rf"lost \[{ends[0]}, {ends[1]}\) of journal {name}"
    with pytest.raises(Exception, match=text):
        frame.collect()
    assert ids(read("id BIGINT", fetchTimeout="100ms", failOnDataLoss="false")) == [0, 2]


# --- Bad records.


def test_modes_of_bad_records(read, journals):
    (name,) = journals.create("one")
    producer = Producer()
    good, odd = producer.outside({"id": 1}), producer.outside({"id": "x"})
    last = producer.outside({"id": 2})
    journals.append("one", good + b"no JSON\n" + odd + last)
    schema = "id BIGINT, _corrupt_record STRING, _begin BIGINT"
    rows = read(schema).orderBy("_begin").collect()
    assert [row["id"] for row in rows] == [1, None, None, 2]
    assert [row["_corrupt_record"] for row in rows][0::3] == [None, None]
    assert rows[1]["_corrupt_record"].strip() == "no JSON"
    assert rows[2]["_corrupt_record"].strip().encode() == odd.strip()
    assert ids(read("id BIGINT", mode="dropMalformed")) == [1, 2]
    with pytest.raises(Exception, match=rf"{name}.*{len(good)}"):
        read("id BIGINT", mode="FAILFAST").collect()
    renamed = read("id BIGINT, bad STRING", columnNameOfCorruptRecord="bad")
    assert renamed.where("bad is not null").count() == 2


# --- Committed messages.


def test_committed_messages_are_those_of_a_reader_which_is_not_spark(read, journals):
    journals.create("a", "b", length=2000)
    one, two, lost = Producer(), Producer(), Producer()
    for number in range(30):
        journals.append("a", b"".join(one.pending({"id": 100 * number + at}) for at in range(9)))
        journals.append("b", two.pending({"id": 10_000 + number}))
        journals.append("a", lost.pending({"id": 20_000 + number}))
        if number % 7 == 6:
            journals.append("a", one.ack())
        if number % 10 == 5:
            # They're rolled back.
            journals.append("b", two.ack(two.clock.value - (100 << 4)))
    journals.append("b", two.ack())
    journals.append("a", one.outside({"id": 30_000}))
    journals.persist("a", "b")
    expected = sorted(message["id"] for message in journals.committed("a", "b"))
    assert 0 < len(expected) < 300
    assert ids(read("id BIGINT")) == expected
    split = read("id BIGINT", minPartitions=8)
    assert split.rdd.getNumPartitions() >= 6
    assert ids(split) == expected
    everything = read("id BIGINT", isolation="read-uncommitted")
    assert everything.count() == 30 * 9 + 30 + 30 + 1
    acks = read("_flags INT", isolation="read-uncommitted", includeAcks="true")
    assert acks.where("_flags = 2").count() == 4 + 3 + 1


# --- Filters and limits.


@pytest.fixture
def regions(journals):
    for number, region in enumerate(("east", "west", "north")):
        journals.create(region, labels={"region": region})
        journals.publish(region, documents(*range(10 * number, 10 * number + 10)))


def test_filters_hold(read, journals, regions):
    frame = read("id BIGINT, region STRING", partitionColumns="region")
    assert ids(frame.where("region = 'west' and id > 12")) == list(range(13, 20))
    assert ids(frame.where("region like 'n%'")) == list(range(20, 30))


def test_frames_may_be_filtered_in_several_ways(spark, read, journals, regions):
    # A session which pushes filters down asks sources for it that can.
    setting = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(setting, "true")
    frame = read("id BIGINT, region STRING", partitionColumns="region")
    east, west = frame.where("region = 'east'"), frame.where("region = 'west'")
    assert ids(east.union(west)) == list(range(20))
    assert east.join(west.selectExpr("id - 10 as id"), "id").count() == 10
    assert frame.count() == 30
    spark.conf.unset(setting)


def test_limits_and_counts(read, journals):
    journals.create("one")
    for begin in range(0, 50_000, 10_000):
        journals.publish("one", [{"id": number} for number in range(begin, begin + 10_000)])
    frame = read("id BIGINT", batchRows=100)
    assert [row["id"] for row in frame.limit(3).collect()] == [0, 1, 2]
    assert frame.first()["id"] == 0
    assert frame.count() == 50_000
    assert frame.agg(fn.sum("id")).first()[0] == sum(range(50_000))


def test_sql(spark, journals):
    journals.create("one")
    journals.publish("one", documents(1, 2, 3))
    given = ", ".join(f"`{name}` '{value}'" for name, value in journals.options().items())
    spark.sql(f"create temporary view v (id bigint) using gazette options ({given})")
    try:
        assert spark.sql("select sum(id) from v where id > 1").first()[0] == 5
    finally:
        spark.catalog.dropTempView("v")


# --- Options and errors.


def error_of(action):
    with pytest.raises(AnalysisException) as raised:
        action()
    return str(raised.value)


TABLE = "table_of_no_options"
HIDDEN_TRACEBACK = "spark.sql.execution.pyspark.udf.hideTraceback.enabled"


@pytest.fixture
def table(spark):
    """A table whose options Spark forgets."""
    spark.sql(f"CREATE TABLE {TABLE} (id BIGINT) USING gazette")
    yield TABLE
    spark.sql(f"DROP TABLE {TABLE}")


def test_options_of_a_table_are_given_where_it_is_used(spark, journals, table):
    journals.create("one")
    of_both = ("brokers", "prefix")
    options = ", ".join(f"'{key}' = '{journals.options()[key]}'" for key in of_both)
    spark.sql(f"INSERT INTO {table} WITH ({options}) VALUES (1), (2)")
    assert ids(spark.sql(f"SELECT * FROM {table} WITH ({options})")) == [1, 2]


@pytest.mark.parametrize("statement", ["SELECT * FROM {}", "INSERT INTO {} VALUES (1)"])
def test_errors_may_be_of_one_line(spark, table, statement):
    spark.conf.set(HIDDEN_TRACEBACK, "true")
    try:
        with pytest.raises(Exception, match="option 'brokers' is missing") as raised:
            spark.sql(statement.format(table)).collect()
    finally:
        spark.conf.unset(HIDDEN_TRACEBACK)
    text = str(raised.value)
    assert "WITH (" in text.splitlines()[0]
    assert "Traceback" not in text


def test_options_are_checked_when_it_is_loaded(spark, journals, read):
    journals.create("one")

    def load(**options):
        spark.read.format("gazette").options(**options).load()

    given = journals.options()
    del given["prefix"]
    for options, text in (
        ({}, "option 'brokers' is missing: expected URLs of brokers"),
        ({"brokers": "localhost"}, "option 'brokers': 'localhost' is invalid"),
        (given, "one of the options selector, journals and prefix is missing"),
        (
            journals.options(startingOffset="latest"),
            "unknown option 'startingoffset': did you mean 'startingOffsets'?",
        ),
        (journals.options(batchRows="many"), "option 'batchRows': 'many' is invalid"),
        (journals.options(selector="app=x"), "options 'selector' and 'prefix' exclude each other"),
        (given | {"selector": ""}, "option 'selector': '' is invalid: it selects every journal"),
    ):
        assert f"ConfigurationError: {text}" in error_of(lambda options=options: load(**options))
    # Those of other kinds, when it's known that a batch is read.
    assert "'maxBytesPerTrigger' is for streams only" in error_of(
        lambda: read(maxBytesPerTrigger="1m").collect()
    )
    assert "'commitJournal' is for sinks only" in error_of(lambda: read(commitJournal="a/b/c"))


def test_options_in_any_case(spark, journals):
    journals.create("one")
    journals.publish("one", documents(1))
    given = {name.upper(): value for name, value in journals.options(minPartitions=2).items()}
    frame = spark.read.format("GAZETTE").schema("id BIGINT").options(**given).load()
    assert ids(frame) == [1]


def test_missing_journals_are_named(read, journals):
    text = f"ConfigurationError: JOURNAL_NOT_FOUND: prefix '{journals.prefix}' matches no journal"
    assert text in error_of(lambda: read().collect())
    missing = journals.name("none")
    assert f"there's no '{missing}'" in error_of(
        lambda: read(prefix=None, journals=missing).collect()
    )


def test_columns_that_are_not_null(spark, journals):
    journals.create("one")
    journals.publish("one", documents(1, 2))
    text = "id BIGINT NOT NULL, more STRUCT<a: BIGINT NOT NULL>, _begin BIGINT NOT NULL"
    schema = StructType.fromDDL(text)

    def load(schema, **options):
        reader = spark.read.format("gazette").options(**journals.options(**options))
        return reader.schema(schema).load()

    frame = load(schema)
    assert frame.schema == schema
    assert ids(frame) == [1, 2]
    assert ids(load(frame.schema)) == [1, 2]
    journals.publish("one", [{"id": 3, "more": {"a": 1}}, {"id": 4, "more": {}}, {"more": None}])
    text = r"column 'more.a': there's no value, or null .* read it by schema.toNullable\(\)"
    with pytest.raises(PythonException, match=text):
        load(schema).collect()
    assert ids(load(schema, mode="DROPMALFORMED")) == [1, 2, 3]
    rows = load(schema.toNullable()).select("id", "more.a").collect()
    assert {*rows} == {(1, None), (2, None), (3, 1), (4, None), (None, None)}


# --- Workers.


@pytest.fixture
def in_workers(spark, tmp_path):
    """Calls a function of the probes in the workers of two tasks, and returns what it told."""
    spark.dataSource.register(ProbeSource)
    spark.dataSource.register(RegisteredSource)
    numbers = itertools.count()

    def call(function, **options):
        (directory := tmp_path / f"call-{next(numbers)}").mkdir()
        options |= {"function": function, "directory": str(directory)}
        frame = spark.read.format("probe").options(**options).load()
        return [json.loads(row["told"]) for row in frame.collect()]

    return call


def test_workers_are_reused(read, journals, in_workers):
    journals.create("a", "b", length=1 << 20)
    for name in ("a", "b"):
        for _ in range(2):
            journals.publish(name, documents(*range(1000)))
    frame = read("id BIGINT", "registered", minPartitions=2, batchRows=200)
    found = {}

    def is_reused():
        assert frame.count() == 4000
        # Spark says which workers do this, and ends those which have nothing to do for a while.
        for told in in_workers("count_resources"):
            if told["has_read"]:
                found.setdefault(told["pid"], []).append(told)
        return max(map(len, found.values()), default=0) >= 3

    until(is_reused)
    for first, *others in found.values():
        # What a process opens as it begins is told from the second time on. Other tests may have
        # used it for connections of their own.
        assert others == others[:1] * len(others)
        assert {(told["loops"], told["clients"]) for told in others} == {(1, first["clients"])}
    # Spark ends the worker of a task which is left early, or fails.
    bad = read("id INT, nothing BINARY NOT NULL", "registered", mode="FAILFAST")
    assert frame.limit(1).count() == 1
    with pytest.raises(Exception, match="nothing"):
        bad.collect()
    assert frame.count() == 4000
    for told in in_workers("count_resources"):
        assert told["loops"] == told["has_read"]
        assert (told["clients"] > 0) == told["has_read"]


def test_a_worker_may_fork_after_a_read(read, journals, in_workers):
    journals.create("one")
    journals.publish("one", documents(1))
    frame = read("id BIGINT", "registered")
    found = []

    def has_forked():
        assert frame.count() == 1
        told = in_workers("list_in_child", endpoint=journals.broker.endpoint)
        found.extend(each["found"] for each in told if each["has_read"])
        return found

    until(has_forked)
    assert min(found) >= 1
    # The worker itself goes on.
    assert frame.count() == 1


def test_a_literal_token_is_warned_of_once(caplog):
    # Private: a process warns once, and an earlier test may have had it warn.
    source_module._warn_of_token.cache_clear()
    options = {"brokers": "http://localhost:1", "prefix": "a/", "Token": "secret"}
    for _ in range(2):
        GazetteDataSource(options)
    assert caplog.messages == [
        "option 'token' becomes part of Spark's plans: 'tokenProvider' keeps it out"
    ]
