"""What tasks of sinks publish, and how drivers have it committed, without Spark."""

from __future__ import annotations

import asyncio
import json
import pickle
from functools import partial
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import RetryPolicy, StrictAppendService, connect
from gazette_aio.message import ReadCommittedIter, csv_adapter, json_adapter, protobuf_adapter
from gazette_aio.message.mapping import content_type_of, modulo_mapping, rendezvous_mapping
from gazette_aio.spark import bridge
from gazette_aio.spark.connecting import spark_client
from gazette_aio.spark.options import SinkOptions
from gazette_aio.spark.sink import answers, commit_log, commit_rules, committing, publishing
from gazette_aio.spark.sink.commit_log import CommitLog
from gazette_aio.spark.sink.commit_records import (
    CommitKind,
    CommitRecord,
    SinkKey,
    commit_record,
    encode_record,
)
from gazette_aio.spark.sink.committing import (
    abort_batch,
    commit_batch,
    plan_sink,
    recover_batches,
    sink_name,
)
from gazette_aio.spark.sink.publishing import publish_rows
from gazette_aio.spark.sink.rows import classify_rows
from gazette_aio.testing import create_journals, journal_spec
from tests.waiting import eventually

LOG = "commits/of-query"
PARTS = [f"topic/part-{n:03}" for n in range(4)]
NDJSON, CSV, PROTOBUF = "application/x-ndjson", "text/csv", "application/x-protobuf-fixed"


def _sum_class():
    file = descriptor_pb2.FileDescriptorProto(
        name="sums.proto", package="appending", syntax="proto3"
    )
    kind = file.message_type.add(name="Sum")
    for number, (name, of) in enumerate([("uuid", 12), ("id", 3), ("value", 1), ("part", 12)], 1):
        kind.field.add(name=name, number=number, type=of, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("appending.Sum"))


Sum = _sum_class()


@pytest.fixture
async def broker(tmp_path):
    async with EmbeddedBroker(tmp_path / "broker", fsync="off") as broker:
        yield broker
        await asyncio.to_thread(bridge.close)


@pytest.fixture
async def client(broker):
    async with connect(broker.endpoint) as client:
        await create(client, LOG, *PARTS)
        yield client


async def create(client, *names, content_type=NDJSON):
    specs = [journal_spec(name, labels={"content-type": content_type}) for name in names]
    await create_journals(client, *specs)


def options_of(broker, **given):
    given = {"brokers": broker.endpoint, "prefix": "topic/", "commitJournal": LOG} | given
    given = {name: value for name, value in given.items() if value is not None}
    return SinkOptions.parse(given, streaming=True)


def table_of(rows, **types):
    names = list(rows[0])
    columns = {name: pa.array([row[name] for row in rows], types.get(name)) for name in names}
    return pa.table(columns)


def values(numbers):
    return pa.table({"value": pa.array([json.dumps({"id": n}) for n in numbers], pa.string())})


class Sink:
    """A sink of one query, whose batches have as many tasks as there are tables."""

    def __init__(self, options, query="query"):
        self.options = options
        self.key = SinkKey(query, sink_name(options))

    async def plan(self, table):
        """Plan as the driver does, and hand it to tasks."""
        plan = await on_bridge(
            plan_sink(self.options, classify_rows(table.schema, self.options.key_column))
        )
        return pickle.loads(pickle.dumps(plan))

    async def publish(self, batch, *tables, rows=1000, **given):
        plan = await self.plan(tables[0])
        return [
            await asyncio.to_thread(
                publish_rows, plan, self.key, batch, table.to_batches(rows), **given
            )
            for table in tables
        ]

    async def commit(self, batch, messages):
        return await on_bridge(commit_batch(self.options, messages, batch, run="run"))

    async def run(self, batch, *tables, **given):
        messages = await self.publish(batch, *tables, **given)
        await self.commit(batch, messages)
        return messages


async def on_bridge(coroutine):
    return await asyncio.to_thread(bridge.run, coroutine)


async def committed(client, *journals, adapter=None):
    """What a reader of committed messages gets, by journal."""
    found = {journal: [] for journal in journals}
    async with ReadCommittedIter(
        journals, adapter or json_adapter(dict), client=client, block=False, skip_acks=True
    ) as iterator:
        async for envelope in iterator:
            found[envelope.journal].append(envelope.message)
    return found


async def ids(client, *journals):
    found = await committed(client, *(journals or PARTS))
    return sorted(message["id"] for messages in found.values() for message in messages)


async def test_a_batch_is_published_and_committed(broker, client):
    sink = Sink(options_of(broker))
    messages = await sink.publish(0, values(range(50)), values(range(50, 100)))
    assert await ids(client) == []
    assert len({message.producer for message in messages}) == 2
    record = await sink.commit(0, messages)
    assert await ids(client) == list(range(100))
    assert record.rows == 100
    assert record.run == "run"
    for message in messages:
        assert message == pickle.loads(pickle.dumps(message))


async def test_producers_are_used_again_for_the_next_batches(broker, client):
    sink = Sink(options_of(broker))
    used = [
        {message.producer for message in await sink.run(batch, values([batch]), values([10]))}
        for batch in range(3)
    ]
    assert used[0] == used[1] == used[2]
    # Those of a batch which isn't committed have messages pending, and aren't.
    poisoned = await sink.publish(3, values([77]))
    assert await sink.run(3, values([3]), values([10]))
    again = await sink.run(4, values([4]), values([10]), values([10]))
    assert {message.producer for message in again}.isdisjoint(
        message.producer for message in poisoned
    )
    assert 77 not in await ids(client)


async def test_tasks_without_rows_need_no_producer(broker, client):
    sink = Sink(options_of(broker))
    messages = await sink.publish(0, values([]))
    assert messages[0].journals == ()
    assert messages[0].rows == 0
    assert await sink.commit(0, messages) is None
    assert await sink.commit(1, await sink.publish(1, values([]), values([5])))
    assert await ids(client) == [5]


async def listing_of(client):
    labels = [pb.Label(name="name", value="topic/", prefix=True)]
    listing = await client.list(pb.LabelSelector(include=pb.LabelSet(labels=labels)))
    assert [content_type_of(each.spec) for each in listing.journals] == [NDJSON] * len(PARTS)
    return listing


@pytest.mark.parametrize(
    ("mapping", "make"),
    [
        (None, modulo_mapping),
        ("modulo", modulo_mapping),
        ("rendezvous", rendezvous_mapping),
    ],
)
@pytest.mark.parametrize("binary", [False, True])
async def test_keys_are_mapped_as_publishers_map_them(broker, client, mapping, make, binary):
    sink = Sink(options_of(broker, mapping=mapping))
    keys = [f"key-{n % 37}-é" for n in range(300)]
    table = pa.table(
        {
            "value": [json.dumps({"id": n}) for n in range(300)],
            "key": [key.encode() for key in keys] if binary else keys,
        }
    )
    await sink.run(0, table)
    listing = await listing_of(client)
    expected = {journal: [] for journal in PARTS}
    choose = make(lambda key: key, lambda: listing)
    for n, key in enumerate(keys):
        expected[choose(key.encode())[0]].append({"id": n})
    found = await committed(client, *PARTS)
    for messages in found.values():
        for message in messages:
            del message["_meta"]
    assert found == expected


async def test_rows_without_keys_are_spread_at_random(broker, client):
    sink = Sink(options_of(broker))
    await sink.run(0, values(range(400)))
    found = await committed(client, *PARTS)
    assert all(len(messages) > 40 for messages in found.values())
    for messages in found.values():
        numbers = [message["id"] for message in messages]
        assert numbers == sorted(numbers)


async def test_rows_name_their_journals(broker, client):
    await create(client, "other/one")
    table = pa.table({"id": [1, 2, 3], "journal": ["other/one", PARTS[0], "other/one"]})
    await Sink(options_of(broker, prefix=None)).run(0, table)
    assert await ids(client, "other/one") == [1, 3]
    assert await ids(client, PARTS[0]) == [2]
    # The option has precedence, and a selection is a limit.
    await Sink(options_of(broker, prefix=None, journal=PARTS[1]), "q2").run(0, table)
    assert await ids(client, PARTS[1]) == [1, 2, 3]
    with pytest.raises(pb.ValidationError, match="'other/one', which options don't select"):
        await Sink(options_of(broker), "q3").publish(0, table)
    with pytest.raises(pb.ValidationError, match="names the commit journal"):
        await Sink(options_of(broker, prefix=None)).publish(
            0, pa.table({"id": [1], "journal": [LOG]})
        )
    with pytest.raises(pb.ValidationError, match="JOURNAL_NOT_FOUND: a row names journal 'no/ne'"):
        await Sink(options_of(broker, prefix=None), "q4").publish(
            0, pa.table({"id": [1], "journal": ["no/ne"]})
        )


async def test_what_a_source_has_read_is_published_as_it_is(broker, client):
    """Its columns are taken, and UUIDs replaced."""
    source = Sink(options_of(broker, prefix=None, journal=PARTS[0]))
    await source.run(0, values(range(5)))
    content = await content_of(client, PARTS[0])
    lines = content.splitlines()[:-1]
    table = pa.table(
        {
            "_value": pa.array(lines, pa.binary()),
            "_journal": [PARTS[0]] * 5,
            "_begin": range(5),
            "_end": range(5),
            "_uuid": ["x"] * 5,
            "_timestamp": pa.array([0] * 5, pa.timestamp("us", "UTC")),
        }
    )
    await Sink(options_of(broker, prefix=None, journal=PARTS[1]), "copy").run(0, table)
    copied = (await committed(client, PARTS[1]))[PARTS[1]]
    assert [message["id"] for message in copied] == list(range(5))
    uuids = {message["_meta"]["uuid"] for message in copied}
    assert len(uuids) == 5
    assert uuids.isdisjoint(json.loads(line)["_meta"]["uuid"] for line in lines)


async def content_of(client, journal):
    head = (await client.append(journal)).commit.end
    content = b""
    async with client.read(journal, end_offset=head) as reader:
        while len(content) < head:
            content += await reader.read()
    return content


@pytest.mark.parametrize("document", [
    b'{}', b'{ }', b'{"id":1}', b'{"a":"\\u005f","id":1}', b'{"_meta":{"uuid":"x","ack":true},"id":1}',
    b'{"\\u005fmeta":{"\\u0075uid":null},"id":1}', b'{"id":"_meta"}', b'{"_meta":null}',
    b'{"x":{"_meta":{"uuid":1}}}', b' {"id":1} ', b'\t{"_meta":{}}\r',
    b'{"_meta":{"uuid":"1b671a64-40d5-101d-97d8-0123456789ab"},"_meta":{"uuid":"x"}}',
    b'{"_meta":{"uuid":"1b671a64-40d5-101d-97d8-0123456789ab","uuid":"x"},"id":1}',
    b'{"_meta":{"uuid":"1b671a64-40d5-101d-97d8-0123456789ab","\\u0075uid":"x"},"id":1}',
    b'{"_meta":{"uuid":"1b671a64-40d5-101d-97d8-0123456789ab"},"\\u005fmeta":{"uuid":"x"}}', b'{"_meta":{"uuid":"1b671a64-40d5-101d-97d8-0123456789ab"}}',
])  # fmt: skip
def test_uuids_are_set_in_documents_of_others(document):
    uuid = "1b671a64-40d5-101d-97d8-ffffffffffff"
    head, rest = json_adapter(dict).split_unchecked(document)
    stamped = head + uuid.encode() + rest
    expected = json.loads(document)
    expected["_meta"] = {**(expected.get("_meta") or {}), "uuid": uuid}
    assert json.loads(stamped) == expected
    # No reader finds another UUID, whichever one of several members it takes.
    assert uuids_of(stamped) == [uuid]
    if document.startswith(b"{"):
        assert json_adapter(bytes).encode(document, UUID(uuid)) == stamped


def uuids_of(document):
    """All of the UUIDs which a document may be said to have."""
    pairs = [("", json.loads(document, object_pairs_hook=list))]
    for name in ("_meta", "uuid"):
        pairs = [pair for _, members in pairs for pair in members if pair[0] == name]
    return [value for _, value in pairs]


@pytest.mark.parametrize("document", [
    b"", b" ", b"\xef\xbb\xbf{}", b"null", b"[]", b'"a"', b'{"id":1', b'{"id":1}}', b'{"id":1}{"id":2}', b'{"_meta":1}',
    b'{"_meta":{"uuid":"1b671a64-40d5-101d-97d8-0123456789ab"}', b'{"id":\xff}', b'{"id":NaN}',
    b'{"id":"\xff"}', b'{"\xc3":1}',
])  # fmt: skip
def test_what_is_no_document_is_refused(document):
    with pytest.raises((pb.ValidationError, msgspec.MsgspecError, UnicodeDecodeError)):
        json_adapter(dict).split_unchecked(document)


async def test_journals_are_listed_from_time_to_time(broker, client, monkeypatch):
    sink = Sink(options_of(broker))
    listings = broker.control.observe("list")
    assert [name for name, _ in (await sink.plan(values([1]))).targets] == PARTS
    await create(client, "topic/part-004")
    before = listings.hits
    assert len((await sink.plan(values([1]))).targets) == len(PARTS)
    assert listings.hits == before
    monkeypatch.setattr(committing, "TARGETS_SECONDS", -1.0)
    assert [name for name, _ in (await sink.plan(values([1]))).targets] == [
        *PARTS,
        "topic/part-004",
    ]


async def test_rows_name_journals_which_appeared_meanwhile(broker, client):
    sink = Sink(options_of(broker))
    await sink.run(0, values([1]))
    await create(client, "topic/part-004")
    await sink.run(1, pa.table({"id": [2], "journal": ["topic/part-004"]}))
    assert await ids(client, "topic/part-004") == [2]


async def test_columns_become_members(broker, client):
    rows = [{"id": 1, "name": "ä", "tags": ["x"], "nested": {"a": None}, "key": "k"}]
    await Sink(options_of(broker, uuid="/meta/id")).run(0, table_of(rows))
    found = await committed(client, *PARTS, adapter=json_adapter(dict, uuid_path="meta.id"))
    (message,) = [message for messages in found.values() for message in messages]
    assert message.pop("meta").keys() == {"id"}
    assert message == {"id": 1, "name": "ä", "tags": ["x"], "nested": {"a": None}}


async def test_csv_and_protobuf(broker, client):
    await create(client, "csv/one", content_type=CSV)
    await create(client, "proto/one", content_type=PROTOBUF)
    table = pa.table({"id": [1, 2], "name": ["a,b", "c"]})
    await Sink(options_of(broker, prefix=None, journal="csv/one")).run(0, table)
    found = await committed(client, "csv/one", adapter=csv_adapter())
    assert [message[1:] for message in found["csv/one"]] == [["1", "a,b"], ["2", "c"]]

    sums = [Sum(id=n, value=n * 0.5, part=b"p%d" % n) for n in range(3)]
    given = {
        "messageType": "tests.spark.test_appending:Sum",
        "prefix": None,
        "journal": "proto/one",
    }
    fields = pa.table(
        {
            "id": [each.id for each in sums],
            "value": [each.value for each in sums],
            "part": [each.part for each in sums],
        }
    )
    await Sink(options_of(broker, **given)).run(0, fields)
    encoded = pa.table({"value": [each.SerializeToString() for each in sums]})
    await Sink(options_of(broker, **given), "q2").run(0, encoded)
    found = (await committed(client, "proto/one", adapter=protobuf_adapter(Sum)))["proto/one"]
    for message in found:
        message.ClearField("uuid")
    assert found == sums * 2
    with pytest.raises(pb.ValidationError, match="rows 0 to 1: DecodeError"):
        await Sink(options_of(broker, **given)).publish(0, pa.table({"value": [b"", b"\xff"]}))
    with pytest.raises(pb.ValidationError, match="rows 0 to 0: ValueError"):
        await Sink(options_of(broker, **given)).publish(0, pa.table({"unknown": [1]}))


async def test_acknowledgements_have_the_constants_of_a_template(broker, client):
    sink = Sink(options_of(broker, ackTemplate='{"kind": "ack"}', prefix=None, journal=PARTS[0]))
    await sink.run(0, values([1]))
    last = json.loads((await content_of(client, PARTS[0])).splitlines()[-1])
    assert last.pop("_meta")["ack"] is True
    assert last == {"kind": "ack"}
    assert await ids(client) == [1]


@pytest.mark.parametrize("template", ['{"_meta":5}', '{"a":1e999}', '{"a":"\\ud800"}'])
async def test_templates_of_acknowledgements_which_hold_no_uuid(broker, client, template):
    sink = Sink(options_of(broker, ackTemplate=template))
    with pytest.raises(pb.ConfigurationError, match="option 'ackTemplate': "):
        await sink.plan(values([1]))


@pytest.mark.parametrize(("table", "error"), [
    (pa.table({"value": ['{"id":1}', "[1]"]}), "row 1, column '_value'"),
    (pa.table({"value": ['{"id":1}', '{"id":1']}), "row 1, column '_value'"),
    (pa.table({"value": ['{"id":1}', None]}), "row 1, column '_value'"),
    (pa.table({"value": ['{"id":1}', '{"id":\n1}']}), "row 1, column '_value'"),
    (pa.table({"id": [1.0, float("nan")]}), "row 1, column 'id'"),
    (pa.table({"id": [1, 2], "key": ["a", None]}), "row 1, column 'key'"),
    (pa.table({"id": [1, 2], "_corrupt_record": [None, "{"]}), "_corrupt_record"),
])  # fmt: skip
async def test_a_bad_row_has_nothing_of_its_slice_published(broker, client, table, error):
    sink = Sink(options_of(broker))
    with pytest.raises(pb.ValidationError, match=error):
        await sink.publish(0, table)
    assert [(await client.append(journal)).commit.end for journal in PARTS] == [0] * len(PARTS)


async def test_what_was_published_before_a_bad_row_is_rolled_back(broker, client):
    journal = PARTS[0]
    sink = Sink(options_of(broker, prefix=None, journal=journal))
    table = pa.table({"value": ['{"id":1}', '{"id":2}', "{"]})
    with pytest.raises(pb.ValidationError):
        await sink.publish(0, table, rows=1, memory_bytes=1)
    content = (await content_of(client, journal)).splitlines()
    # The second append may have been given up.
    assert len(content) in {2, 3}
    assert b'"ack":true' in content[-1]
    assert await ids(client) == []
    # The next batch isn't affected.
    await sink.run(0, values([3]))
    assert await ids(client) == [3]


async def test_a_failed_append_fails_the_task(broker, client, monkeypatch):
    monkeypatch.setattr(publishing, "RETRY", RetryPolicy(max_attempts=1))
    sink = Sink(options_of(broker))
    broker.control.once("append", journal=PARTS[2], fail="UNAVAILABLE")
    with pytest.raises(pb.TransportError):
        await sink.publish(0, values(range(100)))
    await sink.run(0, values(range(100)))
    assert await ids(client) == list(range(100))


async def test_an_append_which_is_repeated_is_read_once(broker, client):
    sink = Sink(options_of(broker, prefix=None, journal=PARTS[0]))
    cut = broker.control.cut("append", journal=PARTS[0], at="after_commit")
    messages = await sink.publish(0, values(range(10)), rows=3)
    assert cut.hits == 1
    lines = (await content_of(client, PARTS[0])).splitlines()
    assert lines[:10] == lines[10:]
    assert [json.loads(line)["id"] for line in lines[:10]] == list(range(10))
    await sink.commit(0, messages)
    assert await ids(client) == list(range(10))


async def test_at_least_once_is_visible_at_once(broker, client):
    sink = Sink(options_of(broker, exactlyOnce="false"))
    first = await sink.publish(0, values([1]))
    assert await ids(client) == [1]
    second = await sink.publish(1, values([2]))
    assert [message.producer for message in first] == [message.producer for message in second]
    assert await sink.commit(0, first) is None
    await on_bridge(abort_batch(sink.options, first, 0))
    assert await ids(client) == [1, 2]


async def test_without_a_commit_journal_a_batch_is_visible_as_a_whole(broker, client):
    sink = Sink(options_of(broker, commitJournal=None))
    messages = await sink.publish(0, values(range(20)), values(range(20, 40)))
    assert await ids(client) == []
    await sink.commit(0, messages)
    assert await ids(client) == list(range(40))
    aborted = await sink.publish(1, values([77]))
    await on_bridge(abort_batch(sink.options, [None, *aborted], 1))
    assert aborted[0].producer not in {message.producer for message in messages}
    assert await ids(client) == list(range(40))


async def test_a_commit_which_fails_midway_is_not_rolled_back(broker, client, caplog):
    """Without a commit journal: readers have seen what was acknowledged before."""
    sink = Sink(options_of(broker, commitJournal=None))
    table = pa.table({"id": range(4), "journal": PARTS})
    messages = await sink.publish(0, table)
    with broker.control.keep("append", journal=PARTS[1], fail="INTERNAL"):
        with pytest.raises(pb.TransportError):
            await sink.commit(0, messages)
    await on_bridge(abort_batch(sink.options, messages, 0))
    assert await ids(client) == [0, 2, 3]
    assert "semantics are lost" not in caplog.text


async def test_an_aborted_batch_is_rolled_back_unless_it_is_committed(broker, client):
    sink = Sink(options_of(broker))
    messages = await sink.publish(0, values([1]))
    await on_bridge(abort_batch(sink.options, [None, *messages], 0))
    with pytest.raises(pb.FencedError):
        await sink.commit(0, messages)
    messages = await sink.run(0, values([2]))
    await on_bridge(abort_batch(sink.options, messages, 0))
    assert await ids(client) == [2]


async def test_what_is_rolled_back_alarms_no_reader(broker, client, caplog):
    """Be the producer a fresh one or not, and whatever journals it has published to before."""

    def rows(first, *parts):
        journals = [PARTS[part] for part in parts]
        return pa.table({"id": range(first, first + len(parts)), "journal": journals})

    sink = Sink(options_of(broker))
    for number in range(3):
        before = await sink.run(2 * number, rows(10 * number, 0, 0, 1))
        messages = await sink.publish(2 * number + 1, rows(100, 2, 1, 0, 2))
        assert messages[0].producer == before[0].producer
        if number == 1:
            messages = await sink.publish(2 * number + 1, rows(100, 2, 1, 0, 2))  # A fresh one.
        await on_bridge(abort_batch(sink.options, messages, 2 * number + 1))
    table = pa.table({"value": ['{"id":100}', "[]"], "journal": PARTS[2:]})
    with pytest.raises(pb.ValidationError):
        await sink.publish(6, table, rows=1)
    assert await ids(client) == [0, 1, 2, 10, 11, 12, 20, 21, 22]
    assert "semantics are lost" not in caplog.text


async def test_a_half_acknowledged_batch_is_recovered(broker, client):
    sink = Sink(options_of(broker))
    messages = await sink.publish(0, values(range(40)))
    record = commit_record(sink.key, 0, messages)
    log = CommitLog(client, LOG, sink.key)
    await log.refresh()
    await client.append(LOG, encode_record(record))
    journal = record.journals[0]
    await client.append(journal, record.acknowledgements()[journal])
    assert len(await ids(client)) < 40
    options = {"brokers": broker.endpoint}
    assert [r.batch for r in await on_bridge(recover_batches(options, LOG))] == [0]
    assert await ids(client) == list(range(40))
    assert await on_bridge(recover_batches(options, LOG)) == []


async def test_many_sinks_share_what_is_read_of_the_commit_journal(broker, client, monkeypatch):
    sinks = [Sink(options_of(broker), f"query-{n}") for n in range(10)]
    for batch in range(2):
        for number, sink in enumerate(sinks):
            await sink.run(batch, values([batch * 10 + number]))
    assert len(await ids(client)) == 20
    plan = await sinks[0].plan(values([1]))
    assert {key.query for key in plan.plans} == {f"query-{n}" for n in range(10)}
    monkeypatch.setattr(commit_log, "MOST_PRODUCERS", 3)
    latest = (await sinks[0].plan(values([1]))).plans
    assert {key.query for key in latest} == {"query-7", "query-8", "query-9"}
    assert all(each.decided == 1 and each.clean for each in plan.plans.values())
    run = Sink(options_of(broker))
    run.key = SinkKey.of_run("nonce", run.key.sink)
    await run.run(0, values([100]))
    assert run.key not in (await run.plan(values([1]))).plans


async def test_a_commit_journal_which_was_replaced_is_read_anew(broker, client):
    """Workers which plan live on, whatever becomes of the journal."""
    sink = Sink(options_of(broker))
    await sink.run(0, values([1]))
    spec = (await client.list(f"name={LOG}")).journals[0].spec
    await client.apply([pb.ApplyRequest.Change(delete=LOG, expect_mod_revision=-1)])
    await client.apply([pb.ApplyRequest.Change(upsert=spec)])
    with pytest.raises(pb.DataLossError, match="was replaced"):
        await sink.plan(values([2]))
    await sink.run(1, values([2]))
    assert await ids(client) == [1, 2]


@pytest.mark.slow
async def test_an_append_which_is_never_answered(broker, client, monkeypatch):
    sink = Sink(options_of(broker, prefix=None, journal=PARTS[0]))
    plan = await sink.plan(values([1]))
    monkeypatch.setattr(answers, "ANSWER_SECONDS", 6)  # A busy machine answers the others.
    rows = values([1]).to_batches()
    seen = iter([True])  # That which rolls it back is answered.
    with broker.control.hold("append", journal=PARTS[0], where=lambda _: next(seen, False)):
        with pytest.raises(pb.OperationTimeoutError, match=f"{PARTS[0]} timed out"):
            await asyncio.to_thread(publish_rows, plan, sink.key, 0, rows)
    monkeypatch.undo()
    await sink.run(0, values([1]))
    assert await ids(client) == [1]


async def test_what_is_kept_of_a_task_is_bounded(broker, client):
    """Far more rows than the bound are published, of which few wait to be appended."""
    sink = Sink(options_of(broker))
    table = pa.table({"id": range(5000), "text": ["x" * 100] * 5000})
    kept = []

    async def note():
        status = (await spark_client(sink.options.connection)).status()
        kept.append(status.appends.pending_bytes)

    def rows():
        for batch in table.to_batches(200):
            yield batch
            bridge.run(note())

    plan = await sink.plan(table)
    args = plan, sink.key, 0, rows()
    messages = [await asyncio.to_thread(publish_rows, *args, memory_bytes=50_000)]
    await sink.commit(0, messages)
    assert 0 < max(kept) <= 50_000
    assert await ids(client) == list(range(5000))


async def test_a_task_ends_soon_after_a_failed_append(broker, client):
    """Rather than after all of its rows: little is pending of a journal which fails each append."""
    sink = Sink(options_of(broker, prefix=None, journal=PARTS[0]))
    plan = await sink.plan(values([1]))

    async def failed():
        spark = await spark_client(sink.options.connection)
        await eventually(lambda: spark.status().appends.failed_journals)

    def rows():
        yield from values(range(20)).to_batches()
        bridge.run(failed())
        yield from values(range(20)).to_batches()
        pytest.fail("the task goes on")

    with broker.control.keep("append", journal=PARTS[0], status=pb.Status.JOURNAL_NOT_FOUND):
        with pytest.raises(pb.JournalNotFoundError):
            await asyncio.to_thread(publish_rows, plan, sink.key, 0, rows(), memory_bytes=4000)


async def test_a_task_which_fails_waits_for_no_append(broker, client, monkeypatch):
    unbounded = partial(StrictAppendService, drain_timeout=3600)
    monkeypatch.setattr(publishing, "StrictAppendService", unbounded)
    sink = Sink(options_of(broker, prefix=None, journal=PARTS[0]))
    seen = iter([True])  # That which rolls it back is answered.
    with broker.control.hold("append", journal=PARTS[0], where=lambda _: next(seen, False)):
        with pytest.raises(pb.ValidationError):
            await sink.publish(0, pa.table({"value": ['{"id":1}', "[]"]}), rows=1, memory_bytes=1)
    assert await ids(client) == []


async def test_a_sink_of_no_journals_is_refused(broker, client):
    async def refused(error, table=None, **given):
        with pytest.raises(pb.ConfigurationError, match=error):
            await Sink(options_of(broker, **given)).plan(values([1]) if table is None else table)

    await refused("JOURNAL_NOT_FOUND: prefix 'none/' matches no journal", prefix="none/")
    await refused(
        "JOURNAL_NOT_FOUND: journal 'none/a' doesn't exist", prefix=None, journal="none/a"
    )
    await refused("nothing names the journals of rows", prefix=None)
    await refused("mapping=modulo needs a column 'key'", mapping="modulo")
    table = pa.table({"id": [1], "key": ["a"], "journal": ["a/b"]})
    await refused("mapping=modulo contradicts column 'journal'", table, mapping="modulo")
    await refused("is also selected as a target", commitJournal=PARTS[0])
    await create(client, "raw/one", content_type="application/octet-stream")
    await refused("content type 'application/octet-stream'", prefix="raw/")
    await create(client, "proto/one", content_type=PROTOBUF)
    await refused("need option 'messageType'", prefix="proto/")


@pytest.mark.parametrize(("table", "error"), [
    ({"key": ["a"]}, "there's no column to publish"),
    ({"value": ["a"], "id": [1]}, "'value' is the whole message, but there is also column 'id'"),
    ({"_value": ["a"], "value": [1]}, "'_value' is the whole message, but there is also column 'value'"),
    ({"_value": [1]}, "'_value' must be STRING or BINARY"),
    ({"id": [1], "key": [1]}, "'key' must be STRING or BINARY"),
    ({"id": [1], "journal": [b"a"]}, "'journal' must be STRING"),
])  # fmt: skip
def test_columns_which_are_unclear_are_refused(table, error):
    with pytest.raises(pb.ConfigurationError, match=error):
        classify_rows(pa.table(table).schema)


def test_a_value_of_another_type_is_a_member():
    columns = classify_rows(pa.table({"value": [1.5], "id": [1]}).schema)
    assert columns.value is None
    assert columns.documents == ("value", "id")


def test_a_sink_is_known_by_its_targets():
    def name(**given):
        return sink_name(SinkOptions.parse({"brokers": "http://a:1", **given}, streaming=False))

    assert name(journals="a/aa,b/bb") == name(journals="b/bb,a/aa", brokers="http://b:2")
    assert name(journals="a/aa,b/bb") != name(journals="a/aa") != name(journal="a/aa")
    assert name(journal="a/aa", sinkId="x") == "x"


def test_runs_of_jobs_are_forgotten_at_some_time(monkeypatch):
    monkeypatch.setattr(commit_rules, "MOST_RUNS", 2)
    state = commit_rules.CommitState()
    keys = [SinkKey.of_run(str(n), "s") for n in range(3)]
    once = SinkKey.of_transaction("daily", "s")
    for key in (once, keys[0], keys[1], keys[0], keys[2], SinkKey("query", "s")):
        state.fold(CommitRecord(CommitKind.COMMIT, key, 0))
    assert list(state) == [once, keys[1], keys[2], SinkKey("query", "s")]
    assert [key.is_of_run for key in state] == [False, True, True, False]
    assert [key.is_of_one_batch for key in state] == [True, True, True, False]
