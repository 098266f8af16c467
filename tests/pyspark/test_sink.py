"""Journals as sinks of batches and streams, in Spark."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json

import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import functions as fn

import gazette_aio.protocol as pb
from benchmarks.soaks.spark import Query, kill, start_driver
from benchmarks.soaks.spark_faults import HOLD, KILL
from gazette_aio.client import connect
from gazette_aio.message import protobuf_adapter
from gazette_aio.spark.sink.commit_records import CommitKind, decode_line, encode_record
from gazette_aio.spark.sink.committing import recover_sink
from tests.pyspark.journals import PROTOBUF, Producer
from tests.pyspark.limits import DEADLINE_SECONDS, TEST_SECONDS, was_too_slow
from tests.pyspark.messages import NGramCount
from tests.pyspark.probes import StumblingSource
from tests.pyspark.versions import BATCHES, HAS_STREAMS, STREAMS
from tests.waiting import eventually

SUSPENDED = pb.JournalSpec.Suspend.Level
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


def test_keys_that_are_members_go_out_and_come_back(spark, journals, sink):
    frame = spark.range(60).selectExpr("id", "named_struct('code', id % 5) AS item")
    save(frame, sink(keyColumn="item.code"))
    options = {"brokers": sink()["brokers"], "prefix": sink()["prefix"], "keyColumn": "item.code"}
    found = spark.read.format("gazette").options(**options).load()
    rows = found.selectExpr("_journal", "cast(_key AS STRING) AS key", "_value").collect()
    assert len(rows) == 60
    assert all(json.loads(row._value)["item"]["code"] == int(row.key) for row in rows)
    assert len({(row._journal, row.key) for row in rows}) == 5


def test_partitions_go_to_journals(spark, journals, sink):
    save(spark.range(0, 90, numPartitions=4), sink(mapping="partition"))
    found = [[message["id"] for message in journals.committed(name)] for name in PARTS]
    bounds = [0, 22, 45, 67, 90]
    first, second, third, fourth = (list(range(a, b)) for a, b in itertools.pairwise(bounds))
    assert sorted(found[0]) == first + fourth
    assert found[1:] == [second, third]


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
    assert [record.kind for record in records(journals)] == [CommitKind.COMMIT, CommitKind.RETIRE]
    save(documents(spark.range(20, 30)), sink(txnId="daily-2024-01-02"))
    assert ids(journals) == list(range(30))


@pytest.mark.parametrize("commit_journal", [LOG, None], ids=["record", "no record"])
def test_tasks_are_run_twice(spark, journals, sink, commit_journal):
    spark.dataSource.register(StumblingSource)
    options = sink() if commit_journal else sink(commitJournal=None)
    writer = documents(spark.range(20).repartition(2)).write.format("stumbling").mode("append")
    writer.options(**options).save()
    assert ids(journals) == list(range(20))
    published = b"".join(journals.content(name) for name in PARTS).count(b'"id"')
    assert published == 40, "the first attempts published all of it, too"
    assert sum(record.rows for record in records(journals)) == (20 if commit_journal else 0)


def test_suspended_journals_are_resumed(spark, journals, sink):
    options = sink(txnId="one")
    for name in (LOG, *PARTS):
        assert journals.suspend(name).level == SUSPENDED.FULL
    save(documents(spark.range(100)), options)
    for name in (LOG, *PARTS):
        assert journals.suspend(name).level == SUSPENDED.PARTIAL
    save(documents(spark.range(100)), options)
    save(documents(spark.range(100, 200)), options | {"txnId": "two"})
    assert ids(journals) == list(range(200))


def test_a_bad_row_fails_the_job_and_nothing_is_visible(spark, journals, sink):
    frame = spark.sql(
        "SELECT CASE WHEN id = 70 THEN '[]' ELSE '{\"id\":1}' END AS value FROM range(100)"
    )
    with pytest.raises(PythonException, match=r"row [0-9]+, column '_value'"):
        save(frame.repartition(4), sink())
    assert ids(journals) == []
    assert {record.kind for record in records(journals)} <= {CommitKind.ABORT}


@pytest.mark.parametrize(("given", "error"), [
    ({"mapping": "modulo"}, "mapping=modulo needs a column 'key'"),
    ({"prefix": "none/"}, "JOURNAL_NOT_FOUND: prefix 'none/' matches no journal"),
])  # fmt: skip
def test_what_cannot_be_published_fails_before_the_job(spark, sink, given, error):
    with pytest.raises(AnalysisException, match=error):
        save(documents(spark.range(1)), sink(**given))


@STREAMS
def test_a_stream_of_which_nothing_can_be_published_fails(spark, sink, tmp_path):
    lines(tmp_path / "in", 0, 10, "0.json")
    with pytest.raises(StreamingQueryException, match="JOURNAL_NOT_FOUND: prefix 'none/'"):
        drain(files(spark, tmp_path / "in"), sink(prefix="none/"), tmp_path / "checkpoint")


def test_overwriting_is_refused(spark, sink):
    with pytest.raises(AnalysisException, match="journals are append-only"):
        save(documents(spark.range(1)), sink(), mode="overwrite")


@STREAMS
def test_complete_mode_is_refused(spark, sink, tmp_path):
    counted = rate(spark).groupBy(fn.lit("k").alias("k")).count()
    with pytest.raises(StreamingQueryException, match="journals are append-only"):
        start(counted, sink(), tmp_path / "checkpoint", mode="complete").awaitTermination(
            DEADLINE_SECONDS
        )


@pytest.mark.skipif(HAS_STREAMS, reason="streams are supported")
def test_streams_are_refused_at_once(spark, sink, tmp_path):
    lines(tmp_path / "in", 0, 10, "0.json")
    with pytest.raises(StreamingQueryException, match=r"streams need PySpark 4\.1 or newer"):
        drain(files(spark, tmp_path / "in"), sink(), tmp_path / "checkpoint")


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
        assert query.awaitTermination(DEADLINE_SECONDS)
    finally:
        query.stop()
    return query


@STREAMS
def test_batches_of_a_stream_use_producers_again(spark, journals, sink, tmp_path):
    for number in range(4):
        lines(tmp_path / "in", number * 10, number * 10 + 10, f"{number}.json")
    query = drain(files(spark, tmp_path / "in").repartition(2), sink(), tmp_path / "checkpoint")
    assert ids(journals) == list(range(40))
    found = records(journals)
    assert [(record.kind, record.batch, record.rows) for record in found] == [
        (CommitKind.COMMIT, batch, 10) for batch in range(4)
    ]
    assert {record.key.query for record in found} == {query.id}
    assert {record.run for record in found} == {query.runId}
    # Tasks of one batch in one process have producers of their own, which the next ones use again.
    assert all(len(record.spans) == 2 for record in found)
    assert len({producer for record in found for producer in record.producers}) < 8


@STREAMS
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
    assert [record.kind for record in records(journals)] == [
        CommitKind.COMMIT,
        CommitKind.COMMIT,
        CommitKind.RETIRE,
    ]
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


@STREAMS
def test_a_failed_commit_is_not_rolled_back(spark, journals, sink, tmp_path):
    """Acknowledgements fail behind the record. The query is started again beside the workers."""
    for number in range(3):
        lines(tmp_path / "in", number * 10, number * 10 + 10, f"{number}.json")
    # Each batch has rows for each of the journals.
    one_of = fn.element_at(
        fn.array(*(fn.lit(journals.name(name)) for name in PARTS)), fn.expr("int(id % 3) + 1")
    )
    frame = files(spark, tmp_path / "in").withColumn("journal", one_of)
    options = sink(prefix=None)
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
        drain(frame, options, checkpoint)
    assert fault.hits == 1
    fault.remove()
    decided.remove()
    assert 0 < len(ids(journals)) < 10
    lost, retired = records(journals)
    assert retired.producers == lost.producers
    drain(frame, options, checkpoint)
    assert ids(journals) == list(range(30))
    kinds = [record.kind for record in records(journals)]
    assert kinds == [CommitKind.COMMIT, CommitKind.RETIRE, CommitKind.COMMIT, CommitKind.COMMIT]
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
            assert query.awaitTermination(DEADLINE_SECONDS)
    assert not failures
    found = journals.committed(*PARTS)
    assert sorted((message["id"], message["count"]) for message in found) == [
        *((0, 5), (0, 10), (1, 5), (1, 10)),
        *((10, 5), (10, 10), (11, 5), (11, 10)),
    ]
    commits = [record for record in records(journals) if record.kind is CommitKind.COMMIT]
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
            writer.trigger(availableNow=True).start().awaitTermination(DEADLINE_SECONDS)
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
        writer.trigger(availableNow=True).start().awaitTermination(DEADLINE_SECONDS)
    assert writer.trigger(availableNow=True).start().awaitTermination(DEADLINE_SECONDS)
    assert ids(journals) == list(range(10))
    assert {record.run for record in records(journals)} == {"nightly"}


# A driver of its own, which copies journals


@pytest.mark.slow
@pytest.mark.timeout(2 * TEST_SECONDS)  # Two drivers run, one after the other.
@BATCHES
async def test_a_driver_is_killed(broker, spark, tmp_path):
    """It has three queries, each at another point of the protocol. `make soak` has all of them."""
    async with connect(broker.endpoint) as client:
        # Batches of the first one are of a row or two.
        queries = {
            point: Query(client, point, tmp_path, rows=rows, batches=batches)
            for point, rows, batches in (("append", 4, 4), ("acks", 40, 2), ("done", 40, 2))
        }
        for query in queries.values():
            await query.create()
        due = {query.log: f"{point}:{point != 'acks':d}" for point, query in queries.items()}
        await kill_driver(list(queries.values()), due, tmp_path)
        for query in queries.values():
            await query.check(is_done=False)
        # The broker has a loop of its own. In other threads, Spark doesn't know the sink.
        copy(spark, [query.given(2) for query in queries.values()])
        for query in queries.values():
            await query.check(is_done=True)


async def kill_driver(queries, due, directory):
    """Run a driver until each of its queries has come to the point at which it's killed."""
    for number in itertools.count():
        held = directory / f"held-{number}"
        held.mkdir()
        environment = {KILL: json.dumps(due), HOLD: str(held)}
        driver = await start_driver(directory, [query.given(2) for query in queries], environment)
        ended = asyncio.create_task(driver.communicate())
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DEADLINE_SECONDS):
                    await eventually(
                        lambda: len(list(held.iterdir())) == len(queries) or ended.done()  # noqa: B023
                    )
            reached, has_ended = sorted(path.name for path in held.iterdir()), ended.done()
        finally:
            kill(driver)
            _, told = await ended
            (held / "killed").touch()
        if len(reached) == len(queries) and not has_ended:
            return
        text = told.decode()
        assert has_ended, f"the driver has only come to {reached}: {text[-4000:]}"
        assert was_too_slow(text), text[-4000:]


def copy(spark, queries):
    """Run queries to their end. Each of their tasks fails once."""
    spark.dataSource.register(StumblingSource)
    running = []
    for given in queries:
        reader = spark.readStream.format("gazette").schema("id LONG").options(**given["source"])
        frame = reader.load().repartition(given["tasks"])
        writer = frame.writeStream.format("stumbling").options(**given["sink"])
        writer = writer.option("checkpointLocation", given["checkpoint"])
        running.append(writer.trigger(availableNow=True).start())
    try:
        for query in running:
            assert query.awaitTermination(DEADLINE_SECONDS)
    finally:
        for query in running:
            query.stop()
