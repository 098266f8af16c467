"""Adapters which depend on the specification of a journal, and specifications of envelopes."""

# pyright: basic

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import msgspec
import pytest

import gazette_aio.protocol as pb
from gazette_aio.message import (
    ACK_TXN,
    CONTINUE_TXN,
    OUTSIDE_TXN,
    CSVFraming,
    Envelope,
    ProducerID,
    ReadCommittedIter,
    ReadUncommittedIter,
    Sequencer,
    build_uuid,
    csv_adapter,
    json_adapter,
)
from gazette_aio.protocol.errors import ConfigurationError
from tests.message.fakes import FakeClient
from tests.waiting import eventually, turns

NDJSON, CSV = "application/x-ndjson", "text/csv"
PRODUCER = ProducerID(b"\x01abcde")
TOPIC = pb.LabelSelector()

pytestmark = pytest.mark.usefixtures("nothing_leaks", "quick_leaving")


class Order(msgspec.Struct):
    v: int


class Payment(msgspec.Struct):
    v: int


def line(clock, flags=OUTSIDE_TXN):
    return json_adapter().encode({"v": clock}, build_uuid(PRODUCER, clock, flags)) + b"\n"


def record(clock, flags=OUTSIDE_TXN):
    fields = csv_adapter().encode(["", str(clock)], build_uuid(PRODUCER, clock, flags))
    return CSVFraming().encode(fields)


class TextAdapter:
    """An adapter which has to decode messages for their UUIDs."""

    def __init__(self):
        self._json = json_adapter()

    def decode(self, frame):
        return "text", frame

    def encode(self, message, uuid):
        raise NotImplementedError

    def uuid(self, message):
        return self._json.frame_uuid(message[1])

    def acknowledgement(self, uuid):
        raise NotImplementedError


class Adapters:
    """A function of specifications, which notes its calls."""

    def __init__(self):
        self.calls = []
        self.by_topic = {
            "orders": json_adapter(Order),
            "payments": json_adapter(Payment),
            "text": TextAdapter(),
        }

    def __call__(self, spec):
        topic = pb.value_of(spec.labels, "topic")
        self.calls.append((spec.name, topic))
        if pb.value_of(spec.labels, "content-type") == CSV:
            return csv_adapter()
        return self.by_topic[topic]


@pytest.fixture
def adapters():
    return Adapters()


@pytest.fixture
def client():
    client = FakeClient({"a": NDJSON, "b": NDJSON, "c": CSV}, chunk=100)
    client.topics |= {"a": "orders", "b": "payments", "c": "rows"}
    client.append("a", line(1) + line(2, CONTINUE_TXN) + line(3, ACK_TXN))
    client.append("b", line(4))
    client.append("c", record(5))
    return client


MESSAGES = {
    ("a", 1): Order(1),
    ("a", 2): Order(2),
    ("b", 4): Payment(4),
    ("c", 5): [str(build_uuid(PRODUCER, 5, OUTSIDE_TXN)), "5"],
}


async def take(iterator, count):
    async with asyncio.timeout(30):
        return [await anext(iterator) for _ in range(count)]


@pytest.mark.parametrize("kind", [ReadCommittedIter, ReadUncommittedIter])
@pytest.mark.parametrize("source", [TOPIC, ["a", "b", "c"]], ids=["selector", "names"])
async def test_journals_of_several_types_and_framings_are_read_as_one(
    client, adapters, kind, source
):
    async with kind(source, adapters, client=client, skip_acks=True) as iterator:
        got = {(each.journal, each.clock): each.message async for each in iterator}

    assert got == MESSAGES
    assert sorted(adapters.calls) == [("a", "orders"), ("b", "payments"), ("c", "rows")]


async def test_batches_of_several_types(client, adapters):
    iterator = ReadCommittedIter(TOPIC, adapters, client=client, skip_acks=True)
    async with iterator:
        got = [batch async for batch in iterator.batches()]

    assert {(e.journal, e.clock): e.message for batch in got for e in batch} == MESSAGES


async def test_a_reader(client, adapters):
    reader = client.read(pb.ReadRequest(journal="a;meta", end_offset=len(client.journals["a"])))
    async with ReadCommittedIter(reader, adapters, skip_acks=True) as iterator:
        got = [(each.journal, each.spec.name, each.message) async for each in iterator]

    assert got == [("a;meta", "a", Order(1)), ("a;meta", "a", Order(2))]


async def test_envelopes_share_the_specification_of_their_journal(client):
    async with ReadCommittedIter(["a", "b"], json_adapter(), client=client) as iterator:
        by_clock = {each.clock: each async for each in iterator}
        first, second, other = by_clock[1], by_clock[2], by_clock[4]

    assert first.spec == client.listing(TOPIC).journals[0].spec
    assert first.spec is second.spec is not other.spec
    assert pb.value_of(first.labels, "topic") == "orders"
    copied = pickle.loads(pickle.dumps(first))
    assert copied == first
    assert copied.labels == first.labels


def test_envelopes_made_by_hand_know_only_the_name():
    envelope = Envelope("a/j;meta", 0, 1, 1, OUTSIDE_TXN, PRODUCER, None)

    assert envelope.spec == pb.JournalSpec(name="a/j")
    assert envelope.labels == pb.LabelSet()


@pytest.mark.parametrize("acks", [False, True])
async def test_arrow_batches_of_several_types(client, adapters, acks):
    pa = pytest.importorskip("pyarrow")
    schema = pa.schema([("v", pa.int64())])
    async with ReadCommittedIter(TOPIC, adapters, client=client) as iterator:
        got = [batch.to_pylist() async for batch in iterator.arrow(schema, acks=acks)]

    rows = sorted((row["_journal"], row["v"]) for rows in got for row in rows if row["v"])
    assert rows == [("a", 1), ("a", 2), ("b", 4), ("c", 5)]
    assert sum(map(len, got)) == 4 + acks


async def test_arrow_batches_of_an_adapter_without_columns(client, adapters):
    pa = pytest.importorskip("pyarrow")
    adapters.by_topic["payments"] = adapters.by_topic["text"]
    async with ReadCommittedIter(TOPIC, adapters, client=client) as iterator:
        batches = iterator.arrow(pa.schema([("v", pa.int64())]))
        with pytest.raises(ConfigurationError, match="can't be decoded to columns"):
            await anext(batches)
        rows = [batch.num_rows async for batch in batches]

    assert sum(rows) == 3  # Of the other journals.


async def test_arrow_refuses_schemas_before_anything_is_read(client, adapters):
    pa = pytest.importorskip("pyarrow")
    async with ReadCommittedIter(TOPIC, adapters, client=client) as iterator:
        with pytest.raises(ConfigurationError, match="reserved"):
            iterator.arrow(pa.schema([("_journal", pa.string())]))
    assert not adapters.calls


async def test_errors_of_the_function_are_raised_when_reading_starts(client, adapters):
    client.topics["b"] = "unknown"
    iterator = ReadCommittedIter(TOPIC, adapters, client=client, block=True, skip_acks=True)
    async with iterator:
        with pytest.raises(KeyError, match="unknown") as raised:
            await take(iterator, 4)
        assert raised.value.__notes__ == ["determining the adapter of b"]
        # The other journals are read.
        assert {each.journal for each in await take(iterator, 3)} == {"a", "c"}
        client.move("b", "payments")
        (payment,) = await take(iterator, 1)
    assert (payment.message, pb.value_of(payment.labels, "topic")) == (Payment(4), "payments")


async def test_errors_of_the_function_for_a_named_journal(client, adapters):
    client.topics["a"] = "unknown"
    async with ReadCommittedIter("a", adapters, client=client) as iterator:
        for _ in range(2):
            with pytest.raises(KeyError, match="unknown"):
                await anext(iterator)
        client.topics["a"] = "orders"
        assert (await anext(iterator)).message == Order(1)


@pytest.mark.parametrize("bad", [None, "text", Order, json_adapter])
async def test_functions_which_return_no_adapter(client, bad):
    async with ReadCommittedIter("a", lambda spec: bad, client=client) as iterator:
        with pytest.raises(TypeError, match="expected an Adapter of a, not"):
            await anext(iterator)


@pytest.mark.parametrize("kind", [ReadCommittedIter, ReadUncommittedIter])
def test_a_type_is_no_adapter(client, kind):
    with pytest.raises(TypeError, match="not the type Order"):
        kind("a", Order, client=client)


async def test_the_function_is_called_once_for_each_specification(client, adapters):
    iterator = ReadCommittedIter(TOPIC, adapters, client=client, block=True, skip_acks=True)
    async with iterator:
        await take(iterator, 4)
        first = await listed(client, iterator, "b", 6)
        assert len(adapters.calls) == 3  # Journals were applied, and not changed.
        client.move("b", "orders")
        second = await listed(client, iterator, "b", 7, joins=True)
        client.move("b", "payments")
        third = await listed(client, iterator, "b", 8, joins=True)
        checkpoint = iterator.checkpoint()

    assert [each.message for each in (first, second, third)] == [Payment(6), Order(7), Payment(8)]
    assert [name for name, _ in adapters.calls[3:]] == ["b", "b"]
    assert [pb.value_of(each.labels, "topic") for each in (first, second, third)] == [
        "payments",
        "orders",
        "payments",
    ]
    assert checkpoint.offsets["b"] == third.end


async def listed(client, iterator, journal, clock, *, joins=False):
    """Append a message after the iterator knows the newest listing, and return its envelope.

    A journal leaves and joins again if its messages are to be read differently.
    """
    reads = len(client.reads)
    waiting = asyncio.create_task(anext(iterator))
    client.create("c", client.content_types["c"])
    await turns(200)
    if joins:
        await eventually(lambda: len(client.reads) > reads)
    assert {request.journal for request in client.reads[reads:]} == ({journal} if joins else set())
    client.append(journal, line(clock))
    return await waiting


async def test_specifications_of_one_adapter_are_updated_in_place(client):
    iterator = ReadCommittedIter(TOPIC, json_adapter(), client=client, block=True, skip_acks=True)
    del client.content_types["c"]
    async with iterator:
        first = {each.journal: each for each in await take(iterator, 3)}
        reads = len(client.reads)
        waiting = asyncio.create_task(anext(iterator))
        client.move("b", "refunds")
        await eventually(lambda: pb.value_of(first["b"].labels, "topic") == "refunds")
        client.append("b", line(9))
        last = await waiting
        assert len(client.reads) == reads

    assert pb.value_of(last.labels, "topic") == "refunds"


@pytest.mark.parametrize(("before", "after"), [("text", "orders"), ("orders", "text")])
@pytest.mark.parametrize("buffer", [1, 1000])
async def test_a_transaction_across_a_change_of_the_adapter(adapters, before, after, buffer):
    """Retained messages are decoded by the adapter that read them."""
    client: Any = FakeClient({"a": NDJSON})
    client.topics["a"] = before
    client.append("a", line(1) + line(2, CONTINUE_TXN))
    sequencer = Sequencer(buffer=buffer)
    iterator = ReadCommittedIter(
        TOPIC, adapters, client=client, block=True, skip_acks=True, sequencer=sequencer
    )
    async with iterator:
        first = await anext(iterator)
        waiting = asyncio.create_task(anext(iterator))
        await turns(200)
        client.move("a", after)
        await eventually(lambda: len(client.readers) == 2)
        client.append("a", line(3, CONTINUE_TXN) + line(4, ACK_TXN))
        second = await waiting
        (third,) = await take(iterator, 1)

    def type_of(envelope):
        return (
            "text"
            if envelope.message == ("text", line(envelope.clock, envelope.flags)[:-1])
            else "orders"
        )

    assert type_of(first) == before
    assert type_of(second) == (before if buffer > 1 else after)
    assert type_of(third) == after
