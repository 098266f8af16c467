"""Journals as sinks of batches and streams, in Spark."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import random
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import Row
from pyspark.sql import functions as fn
from pyspark.sql.types import StructType

from benchmarks.soaks.spark import run_points
from gazette_aio.client import connect
from gazette_aio.message import protobuf_adapter
from gazette_aio.spark.sink.commit_records import Kind, decode_line, encode_record
from gazette_aio.spark.sink.committing import recover_sink
from gazette_aio.spark.sink.row_batches import arrow_batches
from gazette_aio.spark.types import parse_schema
from tests.pyspark.journals import PROTOBUF, Producer
from tests.pyspark.messages import NGramCount

BATCHES = pytest.mark.skipif(
    importlib.util.find_spec("pyspark.sql.streaming.datasource") is None,
    reason="before PySpark 4.2, what's there is one batch",
)
LOG = "commits"
PARTS = ["out/a", "out/b", "out/c"]


@pytest.fixture(autouse=True)
def log(journals):
    journals.create(LOG, *PARTS)


@pytest.fixture
def sink(journals):
    """Options of an exactly-once sink, and further ones."""

    def options(**given):
        options = {
            "brokers": journals.broker.endpoint,
            "prefix": journals.name("out/"),
            "commitJournal": journals.name(LOG),
        } | given
        return {name: value for name, value in options.items() if value is not None}

    return options


def ids(journals, *names):
    return sorted(message["id"] for message in journals.committed(*(names or PARTS)))


def records(journals):
    return [decode_line(line) for line in journals.content(LOG).splitlines()[1:]]


def save(frame, options, mode="append"):
    frame.write.format("gazette").mode(mode).options(**options).save()


def documents(frame):
    return frame.select(fn.to_json(fn.struct("id")).alias("value"))


def test_a_batch_is_saved(spark, journals, sink):
    save(documents(spark.range(1000).repartition(3)), sink())
    assert ids(journals) == list(range(1000))
    (record,) = records(journals)
    assert record.rows == 1000
    assert len(record.spans) == 3
    assert record.key.is_of_run


def test_members_and_keys(spark, journals, sink):
    frame = spark.range(100).selectExpr(
        "id", "concat('n', id) AS name", "array(id) AS list", "cast(id % 5 AS STRING) AS key"
    )
    save(frame, sink(mapping="rendezvous"))
    by_key = {}
    for name in PARTS:
        for message in journals.committed(name):
            assert message["name"] == f"n{message['id']}"
            assert message["list"] == [message["id"]]
            by_key.setdefault(message["id"] % 5, set()).add(name)
    assert all(len(names) == 1 for names in by_key.values())
    assert ids(journals) == list(range(100))


def test_protobuf_messages(spark, journals, sink):
    journals.create("proto", content_type=PROTOBUF)
    frame = spark.sql("SELECT 'a b' AS n_gram, 3L AS count")
    options = sink(prefix=None, journal=journals.name("proto"))
    save(frame, options | {"messageType": "tests.pyspark.messages:NGramCount"})
    (message,) = journals.committed("proto", adapter=protobuf_adapter(NGramCount))
    assert (message.n_gram, message.count) == ("a b", 3)


def test_a_journal_is_copied_by_loading_and_saving_it(spark, journals, sink):
    journals.create("in/a")
    journals.transaction("in/a", [{"id": n} for n in range(20)])
    source = journals.options(prefix=journals.name("in/"))
    save(spark.read.format("gazette").options(**source).load(), sink())
    assert ids(journals) == list(range(20))


def test_an_empty_batch(spark, journals, sink):
    save(documents(spark.range(0)), sink())
    assert records(journals) == []


def test_without_a_commit_journal(spark, journals, sink):
    save(documents(spark.range(50)), sink(commitJournal=None))
    save(documents(spark.range(50, 60)), sink(commitJournal=None, exactlyOnce="false"))
    assert ids(journals) == list(range(60))
    assert not journals.content(LOG)


def test_a_transaction_which_is_run_again_is_published_once(spark, journals, sink):
    for _ in range(2):
        save(documents(spark.range(20).repartition(2)), sink(txnId="daily-2024-01-01"))
    assert ids(journals) == list(range(20))
    assert [record.kind for record in records(journals)] == [Kind.COMMIT, Kind.RETIRE]
    save(documents(spark.range(20, 30)), sink(txnId="daily-2024-01-02"))
    assert ids(journals) == list(range(30))


def test_a_bad_row_fails_the_job_and_nothing_is_visible(spark, journals, sink):
    frame = spark.sql(
        "SELECT CASE WHEN id = 70 THEN '[]' ELSE '{\"id\":1}' END AS value FROM range(100)"
    )
    with pytest.raises(PythonException, match=r"row [0-9]+, column '_value'"):
        save(frame.repartition(4), sink())
    assert ids(journals) == []
    assert {record.kind for record in records(journals)} <= {Kind.ABORT}


@pytest.mark.parametrize(("given", "error"), [
    ({"mapping": "modulo"}, "mapping=modulo needs a column 'key'"),
    ({"prefix": "none/"}, "JOURNAL_NOT_FOUND: prefix 'none/' matches no journal"),
])  # fmt: skip
def test_what_cannot_be_published_fails_before_the_job(spark, sink, given, error):
    with pytest.raises(AnalysisException, match=error):
        save(documents(spark.range(1)), sink(**given))


def test_a_stream_of_which_nothing_can_be_published_fails(spark, sink, tmp_path):
    lines(tmp_path / "in", 0, 10, "0.json")
    with pytest.raises(StreamingQueryException, match="JOURNAL_NOT_FOUND: prefix 'none/'"):
        drain(files(spark, tmp_path / "in"), sink(prefix="none/"), tmp_path / "checkpoint")


def test_overwriting_is_refused(spark, sink, tmp_path):
    with pytest.raises(AnalysisException, match="journals are appended to only"):
        save(documents(spark.range(1)), sink(), mode="overwrite")
    counted = rate(spark).groupBy(fn.lit("k").alias("k")).count()
    with pytest.raises(StreamingQueryException, match="journals are appended to only"):
        start(counted, sink(), tmp_path / "checkpoint", mode="complete").awaitTermination(30)


# Streams


def rate(spark, rows=10):
    """A stream of ids, of so many more in each batch."""
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).load()
    return stream.select(fn.col("value").alias("id"))


def start(frame, options, checkpoint, mode="append"):
    writer = frame.writeStream.format("gazette").options(**options).outputMode(mode)
    return writer.option("checkpointLocation", str(checkpoint)).start()


def lines(path, first, last, name):
    """Write a file of ids, which a stream of files reads as a batch of its own."""
    path.mkdir(exist_ok=True)
    (path / name).write_text("".join(f'{{"id":{n}}}\n' for n in range(first, last)))


def files(spark, path):
    stream = spark.readStream.schema("id LONG").option("maxFilesPerTrigger", 1)
    return stream.json(str(path))


def drain(frame, options, checkpoint, **given):
    writer = frame.writeStream.format("gazette").options(**options).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    try:
        query.awaitTermination(60)
    finally:
        query.stop()
    return query


def test_batches_of_a_stream_use_producers_again(spark, journals, sink, tmp_path):
    for number in range(4):
        lines(tmp_path / "in", number * 10, number * 10 + 10, f"{number}.json")
    query = drain(files(spark, tmp_path / "in").repartition(2), sink(), tmp_path / "checkpoint")
    assert ids(journals) == list(range(40))
    found = records(journals)
    assert [(record.kind, record.batch, record.rows) for record in found] == [
        (Kind.COMMIT, batch, 10) for batch in range(4)
    ]
    assert {record.key.query for record in found} == {query.id}
    assert {record.run for record in found} == {query.runId}
    # Tasks of one batch in one process have producers of their own, which the next ones use again.
    assert all(len(record.spans) == 2 for record in found)
    assert len({producer for record in found for producer in record.producers}) < 8


def test_a_batch_which_was_decided_is_finished_not_published_again(spark, journals, sink, tmp_path):
    """The driver died behind the record, amid the acknowledgements."""
    lines(tmp_path / "in", 0, 10, "0.json")
    checkpoint = tmp_path / "checkpoint"
    drain(files(spark, tmp_path / "in"), sink(), checkpoint)
    (first,) = records(journals)
    lines(tmp_path / "in", 10, 20, "1.json")
    # The record of batch 1, of a driver which is gone.
    producer = Producer()
    for n in range(10, 20):
        journals.append(PARTS[n % 3], producer.pending({"id": n}))
    spans = [
        first.spans[0]._replace(producer=producer.id, ack=producer.clock.tick(), journals=(0, 1, 2))
    ]
    template = first.templates[0]
    record = dataclasses.replace(
        first, batch=1, nonce="gone", spans=tuple(spans),
        journals=tuple(journals.name(name) for name in PARTS),
        templates=(template,), template_of=(0, 0, 0),
    )  # fmt: skip
    journals.append(LOG, encode_record(record))
    journals.append(PARTS[0], template.frame(producer.id, record.spans[0].ack))
    drain(files(spark, tmp_path / "in"), sink(), checkpoint)
    assert ids(journals) == list(range(20))
    assert [record.kind for record in records(journals)] == [Kind.COMMIT, Kind.COMMIT, Kind.RETIRE]
    # Nothing is left to be recovered, by whoever does it.
    recover_sink(journals.broker.endpoint, journals.name(LOG))
    assert ids(journals) == list(range(20))


def test_a_half_acknowledged_batch_is_recovered_without_spark(spark, journals, sink):
    save(documents(spark.range(5)), sink(txnId="one"))
    (first,) = records(journals)
    producer = Producer()
    journals.append(PARTS[0], producer.pending({"id": 100}))
    journals.append(PARTS[1], producer.pending({"id": 101}))
    span = first.spans[0]._replace(producer=producer.id, ack=producer.clock.tick(), journals=(0, 1))
    record = dataclasses.replace(
        first, key=first.key._replace(query="lost"), nonce="n", spans=(span,),
        journals=tuple(journals.name(name) for name in PARTS[:2]), template_of=(0, 0),
    )  # fmt: skip
    journals.append(LOG, encode_record(record))
    recovered = recover_sink(journals.broker.endpoint, journals.name(LOG))
    assert [each.key.query for each in recovered if each.key.query == "lost"] == ["lost"]
    assert ids(journals) == [*range(5), 100, 101]
    assert recover_sink(journals.broker.endpoint, journals.name(LOG)) == []


def test_a_failed_commit_is_not_rolled_back(spark, journals, sink, tmp_path):
    """Acknowledgements fail behind the record. The query is started again beside the workers."""
    for number in range(3):
        lines(tmp_path / "in", number * 10, number * 10 + 10, f"{number}.json")
    checkpoint = tmp_path / "checkpoint"
    control = journals.broker.embedded.control
    decided = control.observe("append", journal=journals.name(LOG), where=lambda r: r.offset > 0)
    fault = control.keep(
        "append",
        journal=journals.name(PARTS[1]),
        where=lambda _: decided.hits > 0,
        fail="PERMISSION_DENIED",
    )
    with pytest.raises(StreamingQueryException, match="PERMISSION_DENIED"):
        drain(files(spark, tmp_path / "in"), sink(), checkpoint)
    assert fault.hits == 1
    fault.remove()
    decided.remove()
    assert 0 < len(ids(journals)) < 10
    lost, retired = records(journals)
    assert retired.producers == lost.producers
    drain(files(spark, tmp_path / "in"), sink(), checkpoint)
    assert ids(journals) == list(range(30))
    kinds = [record.kind for record in records(journals)]
    assert kinds == [Kind.COMMIT, Kind.RETIRE, Kind.COMMIT, Kind.COMMIT]
    later = [record.producers for record in records(journals)[2:]]
    assert all(lost.producers.isdisjoint(producers) for producers in later)


def test_an_aggregation_is_updated_exactly_once(spark, journals, sink, tmp_path):
    """Its first run fails behind the end of a write, so that Spark runs the batch again."""
    for number in range(2):
        lines(tmp_path / "in", 0, 10, f"{number}.json")
    counted = files(spark, tmp_path / "in").groupBy((fn.col("id") % 2).alias("id")).count()
    options, failures = sink(sinkId="counts"), [1]

    def write(frame, batch):
        save(frame, options)
        save(frame.selectExpr("id + 10 AS id", "count"), options | {"sinkId": "others"})
        if batch and failures:
            raise RuntimeError(f"failure {failures.pop()}")

    for _ in range(2):
        writer = counted.writeStream.foreachBatch(write).outputMode("update")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        with contextlib.suppress(StreamingQueryException):
            query.awaitTermination(60)
    assert not failures
    found = journals.committed(*PARTS)
    assert sorted((message["id"], message["count"]) for message in found) == [
        *((0, 5), (0, 10), (1, 5), (1, 10)),
        *((10, 5), (10, 10), (11, 5), (11, 10)),
    ]
    commits = [record for record in records(journals) if record.kind is Kind.COMMIT]
    assert sorted((record.key.sink, record.batch) for record in commits) == [
        *(("counts", 0), ("counts", 1), ("others", 0), ("others", 1))
    ]


def test_a_batch_which_writes_twice_is_told_of_sink_ids(spark, journals, sink, tmp_path):
    lines(tmp_path / "in", 0, 10, "0.json")

    def write(frame, batch):
        save(frame, sink())
        save(frame.limit(0), sink())  # Nothing is lost of this one.
        save(frame, sink())

    writer = files(spark, tmp_path / "in").writeStream.foreachBatch(write)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    for _ in range(2):  # It isn't forgotten by whoever just starts it again.
        with pytest.raises(StreamingQueryException, match="each write needs an option 'sinkId'"):
            writer.trigger(availableNow=True).start().awaitTermination(60)
    assert ids(journals) == list(range(10))


def test_a_batch_is_run_again_below_a_group_of_jobs(spark, journals, sink, tmp_path):
    """Groups which users name are the same in all runs of a query."""
    lines(tmp_path / "in", 0, 10, "0.json")
    failures = [1]

    def write(frame, batch):
        spark.sparkContext.setJobGroup("nightly", "copies rows")
        save(frame, sink())
        if failures:
            raise RuntimeError(f"failure {failures.pop()}")

    writer = files(spark, tmp_path / "in").writeStream.foreachBatch(write)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(StreamingQueryException, match="failure 1"):
        writer.trigger(availableNow=True).start().awaitTermination(60)
    writer.trigger(availableNow=True).start().awaitTermination(60)
    assert ids(journals) == list(range(10))
    assert {record.run for record in records(journals)} == {"nightly"}


def test_rows_become_arrow(spark):
    """As a stream's writer of PySpark 4.0 needs them."""
    schema = StructType.fromDDL(
        "id LONG, at TIMESTAMP, local TIMESTAMP_NTZ, day DATE, name STRING, raw BINARY,"
        " price DECIMAL(5,2), inner STRUCT<a: INT, at: TIMESTAMP>, list ARRAY<DATE>,"
        " map MAP<STRING, INT>"
    )
    at, day = datetime(2024, 5, 1, 12, 30, 1, 500), date(2024, 5, 1)  # noqa: DTZ001
    one = Row(1, at, at, day, "a", b"b", Decimal("1.50"), Row(2, at), [day, None], {"k": 1})
    rows = [one, Row(*[None] * len(schema))] * 6000
    batches = list(arrow_batches(iter(rows), schema))
    assert [batch.num_rows for batch in batches] == [10_000, 2000]
    assert {batch.schema for batch in batches} == {parse_schema(schema.json())}
    first, second = batches[0].slice(0, 2).to_pylist()
    utc = at.astimezone(UTC)
    assert first == {
        "id": 1, "at": utc, "local": at, "day": day, "name": "a", "raw": b"b",
        "price": Decimal("1.50"), "inner": {"a": 2, "at": utc}, "list": [day, None],
        "map": [("k", 1)],
    }  # fmt: skip
    assert set(second.values()) == {None}


# Drivers of their own, which copy journals


@BATCHES
@pytest.mark.timeout(400)
async def test_drivers_are_killed(broker, tmp_path):
    """One at several points of the protocol, and then tasks fail. `make soak` has them all."""
    async with connect(broker.endpoint) as client:
        await run_points(client, tmp_path, random.Random(1), ["append", "acks", "done"])
