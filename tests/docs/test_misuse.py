"""Misuses of the library: each is one clear line with the thing, the reason and the remedy."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import re
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import gazette_aio.protocol as pb
from gazette_aio import (
    BearerAuth,
    EmbeddedBroker,
    JournalClient,
    KeyedAuth,
    Publisher,
    ReadCommittedIter,
    ReadUncommittedIter,
    RetryPolicy,
    connect,
    json_adapter,
    load_journal_space,
    modulo_mapping,
    parse_label_selector,
    protobuf_adapter,
)
from gazette_aio.testing import create_journals, journal_spec
from tests.waiting import eventually

NDJSON = "application/x-ndjson"
TARGET = ("shop/orders", NDJSON)
LISTED = pb.ListResponse.Journal(spec=journal_spec("shop/orders"))


class Order(msgspec.Struct):
    item: str


@pytest.fixture
async def client(gazette_client: JournalClient) -> JournalClient:
    labels = {"content-type": NDJSON}
    await create_journals(gazette_client, journal_spec("shop/orders", labels=labels))
    return gazette_client


def orders(client: JournalClient, adapter: Any = None) -> Publisher[Any]:
    return Publisher(client.appends, adapter or json_adapter())


async def publish(client: JournalClient, message: object, adapter: Any = None) -> None:
    await orders(client, adapter).publish_uncommitted(lambda _: TARGET, message)


# Without a broker.


def plain_with(owner: Any) -> None:
    with owner:
        pass


def plain_for() -> None:
    messages: Any = ReadCommittedIter("a/bcd", json_adapter(), client=connect("http://h"))
    for _ in messages:
        pass


def selector_as_text(client: Any) -> None:
    ReadCommittedIter("label in (a, b)", json_adapter(), client=client)


WITHOUT_BROKER: list[tuple[str, Callable[[], object], type[Exception], str]] = [
    ("address without a scheme", lambda: connect("localhost:8080"), pb.ValidationError,
     "write an address such as http://localhost:8080"),
    ("empty address", lambda: connect(""), pb.ConfigurationError,
     r"the address is empty: .* `async with EmbeddedBroker\(\) as broker`; None is .*\$BROKER_ADDRESS"),
    ("broker that doesn't run", lambda: EmbeddedBroker("d").endpoint, pb.ConfigurationError,
     "isn't running: use `async with EmbeddedBroker"),
    ("option of a client", lambda: connect("http://h", time_out=3), TypeError,
     r"connect\(\) has no option time_out: did you mean 'timeout'\?"),
    ("option of a broker", lambda: EmbeddedBroker(http_prot=3), pb.ConfigurationError,
     r"EmbeddedBroker\(\) has no option http_prot: did you mean 'http_port'\?"),
    ("value of an option", lambda: EmbeddedBroker(fsync="often"), pb.ConfigurationError,
     "fsync must be commit, interval or off"),
    ("time-out of zero", lambda: connect("http://h", timeout=0), pb.ConfigurationError,
     "timeout must be positive, not 0"),
    ("token in place of its class", lambda: connect("http://h", auth="x.y.z"), pb.ConfigurationError,
     r"can't authorize by a str: pass .*auth=BearerAuth\(token\)"),
    ("broker in place of its endpoint", lambda: connect(EmbeddedBroker()), TypeError,
     "address: expected a str, such as .* or the endpoint of a broker, not EmbeddedBroker"),
    ("name of a journal as bytes", lambda: connect("http://h").read(b"a/bcd"), TypeError,
     r"request: expected the name of a journal, or ReadRequest\(…\), not bytes"),
    ("short name of a journal", lambda: connect("http://h").read("a/b"), pb.ValidationError,
     r"invalid length .*\(of journal 'a/b'\)"),
    ("number as the value of a register", lambda: pb.label_set("author", 5), TypeError,
     "a label has a name and a value of type str, not 'author' and 5"),
    ("listing in place of a function", lambda: modulo_mapping(str.encode, pb.ListResponse()),
     TypeError, "partitions: expected a plain function that returns a ListResponse"),
    ("key that isn't bytes",
     lambda: modulo_mapping(str, lambda: pb.ListResponse(journals=[LISTED]))("tea"), TypeError,
     "key: expected bytes, not str: encode it"),
    ("messages of no protobuf class", lambda: protobuf_adapter(dict), pb.ConfigurationError,
     "expected a generated class of messages, not <class 'dict'>"),
    ("messages without a UUID", lambda: protobuf_adapter(pb.Label), pb.ConfigurationError,
     "protocol.Label has no bytes field uuid for the UUID: name that field by uuid_field="),
    ("path in place of a log",
     lambda: Publisher(connect("http://h").appends, json_adapter()).transaction(intents="log"),
     TypeError, r"intents: expected a log, such as IntentLog\(path\), not str"),
    ("offset as the start",
     lambda: ReadCommittedIter("a/bcd", json_adapter(), client=connect("http://h"), start=5),
     pb.ConfigurationError, "start is 5 .expected offsets by journal"),
    ("option of an iterator",
     lambda: ReadCommittedIter("a/bcd", json_adapter(), client=connect("http://h"), blok=True),
     TypeError, "unknown option 'blok': did you mean 'block'"),
    ("address in place of a client",
     lambda: ReadCommittedIter("a/bcd", json_adapter(), client="http://h"), pb.ConfigurationError,
     r"client: expected that of connect\(\), not 'http://h'"),
    ("half of a selector", lambda: parse_label_selector("name:prefx=a/"), pb.ValidationError,
     r'could not match "name:prefx=a/" .*: write .* name:prefix=a/'),
    ("list without brackets", lambda: parse_label_selector("region in eu, us"), pb.ValidationError,
     r"could not match .*: write .* label in \(a,b\)"),
    ("key of a document", lambda: load_journal_space("name: a/b\nfragment:\n  lenght: 5"),
     pb.ValidationError, r"<string>:3: fragment\.lenght: unknown key: did you mean 'length'\?"),
    ("name twice in a document",
     lambda: load_journal_space("children: [{name: a/one}, {name: a/one}]"), pb.ValidationError,
     r"<string>:1: .*a/one vs a/one"),
    ("producer of five bytes",
     lambda: Publisher(connect("http://h").appends, json_adapter(), producer=b"short"),
     pb.ValidationError, "a producer ID has six bytes"),
    ("client in place of its appends", lambda: Publisher(connect("http://h"), json_adapter()),
     TypeError, r"expected client\.appends, not <JournalClient"),
    ("class in place of an adapter", lambda: Publisher(connect("http://h").appends, Order),
     TypeError, r"expected an Adapter, such as json_adapter\(\), not <class"),
    ("checkpoint as text",
     lambda: ReadCommittedIter("a/b", json_adapter(), client=connect("http://h"), checkpoint="{}"),
     pb.ConfigurationError, r"must be a SequencerCheckpoint, not str: .*from_json\(\)"),
    ("selector as text", lambda: selector_as_text(connect("http://h")), pb.ConfigurationError,
     r"is a selector, and text names a journal here: .* parse_label_selector\("),
    ("with in place of async with", lambda: plain_with(connect("http://h")), TypeError,
     "JournalClient is an async context manager: write `async with`"),
    ("for in place of async for", plain_for, TypeError,
     "ReadCommittedIter is an async iterator: write `async for`"),
    ("no journals", lambda: ReadCommittedIter([], json_adapter(), client=connect("http://h")),
     pb.ConfigurationError, "no journals to read"),
    ("no client", lambda: ReadCommittedIter("a/b", json_adapter()), pb.ConfigurationError,
     "by name or selector takes a client"),
    ("path of the UUID", lambda: json_adapter(uuid_path="a..b"), pb.ConfigurationError, r"a\.\.b"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [row[1:] for row in WITHOUT_BROKER],
    ids=[row[0] for row in WITHOUT_BROKER],
)
def test_without_a_broker(call: Callable[[], object], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as raised:
        call()
    check(raised.value, text)


def check(error: BaseException, text: str) -> None:
    line = str(error)
    assert re.search(text, line), line
    assert "\n" not in line


# With one.

Misuse = Callable[[JournalClient], Awaitable[object]]


async def read_only(client: JournalClient) -> None:
    spec = journal_spec("shop/archive")
    spec.flags = pb.JournalSpec.Flag.O_RDONLY
    await create_journals(client, spec)
    await client.append("shop/archive", b"x")


async def created_twice(client: JournalClient) -> None:
    await client.apply([pb.ApplyRequest.Change(upsert=journal_spec("shop/orders"))])


async def two_tasks(client: JournalClient) -> None:
    async with ReadCommittedIter(
        "shop/orders", json_adapter(), client=client, block=True
    ) as iterator:
        first = asyncio.ensure_future(anext(iterator))
        await asyncio.sleep(0)
        try:
            await anext(iterator)
        finally:
            first.cancel()


async def wrong_type(client: JournalClient) -> None:
    await client.append("shop/orders", b'{"item": 5}\n')
    async for _ in ReadUncommittedIter("shop/orders", json_adapter(Order), client=client):
        pass


async def no_partitions(client: JournalClient) -> None:
    listing = await client.list("name:prefix=shop/nothing/")
    mapping = modulo_mapping(lambda order: order["item"].encode(), lambda: listing)
    await orders(client).publish_uncommitted(mapping, {"item": "tea"})


async def other_content_type(client: JournalClient) -> None:
    fixed = ("shop/orders", "application/x-protobuf-fixed")
    await orders(client).publish_committed(lambda _: fixed, {"item": "tea"})


async def not_awaited(client: JournalClient) -> None:
    publisher = orders(client)
    pending: Any = None
    try:
        async with publisher.transaction():
            pending = publisher.publish_uncommitted(lambda _: TARGET, {"item": "tea"})
    finally:
        pending.close()


async def nested(client: JournalClient) -> None:
    publisher = orders(client)
    async with publisher.transaction(), publisher.transaction():
        pass


async def outside_of_a_block(client: JournalClient) -> None:
    publisher = orders(client)
    async with publisher.transaction():
        await publisher.publish_uncommitted(lambda _: TARGET, {"item": "tea"})
    await publisher.publish_uncommitted(lambda _: TARGET, {"item": "milk"})


async def before_the_first_block(client: JournalClient) -> None:
    publisher = orders(client)
    await publisher.publish_uncommitted(lambda _: TARGET, {"item": "milk"})
    async with publisher.transaction():
        pass


async def outliving_the_block(client: JournalClient) -> None:
    publisher, ended = orders(client), asyncio.Event()

    async def late() -> None:
        await ended.wait()
        await publisher.publish_uncommitted(lambda _: TARGET, {"item": "milk"})

    async with publisher.transaction():
        task = asyncio.create_task(late())
    ended.set()
    await task


async def state_without_a_log(client: JournalClient) -> None:
    async with orders(client).transaction() as transaction:
        transaction.state = {"orders": 1}


async def transaction_twice(client: JournalClient) -> None:
    transaction = orders(client).transaction()
    for _ in range(2):
        async with transaction:
            pass


async def too_many_transactions(client: JournalClient) -> None:
    publisher = Publisher(client.appends, json_adapter(), max_waiting=2)

    async def transact() -> None:
        async with publisher.transaction():
            await asyncio.sleep(0)

    await asyncio.gather(*(transact() for _ in range(9)))


async def other_loop(client: JournalClient) -> None:
    await client.list()
    await asyncio.to_thread(asyncio.run, client.list())


async def closed(client: JournalClient) -> None:
    await client.aclose()
    await client.list()


WITH_BROKER: list[tuple[str, Misuse, type[Exception], str]] = [
    ("missing journal, appended to", lambda c: c.append("no/such", b"x"), pb.JournalNotFoundError,
     "journal no/such at .*no such journal"),
    ("missing journal, read", lambda c: c.read("no/such").read(), pb.JournalNotFoundError,
     "journal no/such at .*no such journal"),
    ("missing journal, of messages",
     lambda c: anext(ReadCommittedIter("no/such", json_adapter(), client=c)),
     pb.JournalNotFoundError, "named journal does not exist .*no/such at http://"),
    ("invalid name", lambda c: c.append("shop/new orders", b"x"), pb.ValidationError, "not a valid token .*shop/new orders"),
    ("spec in place of a change", lambda c: c.apply([journal_spec("shop/other")]), TypeError,
     r"expected changes, such as .*upsert=spec.*, not JournalSpec"),
    ("number in place of a selector", lambda c: c.list(5), TypeError,
     "expected a selector, its text, or a ListRequest, not int"),
    ("append without its name", lambda c: c.append(b"x"), TypeError,
     r"request: expected the name of a journal, or AppendRequest\(…\), not bytes"),
    ("text as content", lambda c: c.append("shop/orders", "x"), TypeError, "bytes"),
    ("read-only journal", read_only, pb.NotAllowedError,
     "journal shop/archive at .*flags, such as O_RDONLY"),
    ("journal that exists", created_twice, pb.EtcdTransactionFailedError,
     "exists already, or was changed"),
    ("offset beyond the end", lambda c: c.read("shop/orders", offset=99).read(),
     pb.OffsetNotYetAvailableError, "journal shop/orders at .*beyond the journal's write head"),
    ("two tasks on one iterator", two_tasks, pb.UsageError, "two tasks use one .*its own"),
    ("member of another type", wrong_type, pb.FramingError,
     r"shop/orders at offset 0: Expected `str`, got `int` - at `\$\.item`"),
    ("mapping without partitions", no_partitions, pb.EmptyListResponseError,
     "no journal matches the partitions"),
    ("content type of another framing", other_content_type, pb.MappingError,
     "gives shop/orders the content type 'application/x-protobuf-fixed', and the journal has"),
    ("object that JSON lacks", lambda c: publish(c, {"item": object()}), pb.ValidationError,
     "item.*object"),
    ("number that JSON lacks", lambda c: publish(c, {"item": {"price": float("inf")}}),
     pb.ValidationError, r"item\.price.*inf"),
    ("message of another type", lambda c: publish(c, 5), TypeError,
     "message: expected dict, not int"),
    ("publish that isn't awaited", not_awaited, pb.NotAwaitedError,
     r"publish_uncommitted\(\); the transaction is abandoned"),
    ("transaction within another", nested, pb.TransactionError, "publish in that block"),
    ("message outside of a block", outside_of_a_block, pb.TransactionError,
     "belong to the block of a transaction.*publish_committed"),
    ("message before the first block", before_the_first_block, pb.TransactionError,
     r"outside of a transaction\(\): commit them by build_ack_intents"),
    ("task that outlives its block", outliving_the_block, pb.TransactionError,
     "has ended: await the task"),
    ("state without a log", state_without_a_log, pb.ConfigurationError, r"needs a log: trans"),
    ("transaction that began before", transaction_twice, pb.TransactionError, "call transaction"),
    ("too many transactions", too_many_transactions, pb.TooManyTransactionsError,
     "3 transactions of this Publisher are open.*raise max_waiting"),
    ("client of another loop", other_loop, pb.UsageError, "create a client in each event loop"),
    ("closed client", closed, pb.UsageError, "is closed"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("misuse", "error", "text"),
    [row[1:] for row in WITH_BROKER],
    ids=[row[0] for row in WITH_BROKER],
)
async def test_with_a_broker(
    client: JournalClient, misuse: Misuse, error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as raised:
        await misuse(client)
    check(raised.value, text)


# Servers of another kind.


async def test_servers_that_dont_speak_as_the_address_says() -> None:
    async with EmbeddedBroker(fsync="off") as broker:
        for address, text in (
            (broker.http_endpoint, "speaks HTTP/1, not gRPC: give the port of gRPC"),
            (broker.endpoint.replace("http:", "https:"), "doesn't speak TLS: write http://"),
        ):
            retry = RetryPolicy(max_attempts=1)
            async with connect(address, connect_timeout=5, retry=retry) as client:
                with pytest.raises(pb.TransportError) as raised:
                    await client.append("shop/orders", b"x")
            check(raised.value, f"{address}.*{text}")


async def test_tokens() -> None:
    reading = pb.Claims(pb.Capability.READ)
    token = KeyedAuth("c2VjcmV0LXNlY3JldA==").sign(reading, dt.timedelta(days=1), time.time())
    async with EmbeddedBroker(auth_keys="c2VjcmV0LXNlY3JldA==", fsync="off") as broker:
        for auth, text in (
            (None, r"missing .*: pass auth=KeyedAuth\(…\) or auth=BearerAuth\(…\)"),
            (BearerAuth("x.y.z"), "malformed"),
            (BearerAuth(token), "APPEND capability: ask for a token that has it"),
            (
                KeyedAuth("b3RoZXItb3RoZXI="),
                "signature is invalid: none of the server's keys made it: sign it with a key",
            ),
        ):
            async with connect(broker.endpoint, auth=auth) as client:
                with pytest.raises(pb.TransportError) as raised:
                    await client.append("shop/orders", b"x")
            check(raised.value, f"UNAUTHENTICATED: broker {broker.endpoint}: .*{text}")


async def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(pb.ListenError) as raised:
            await EmbeddedBroker(tmp_path, port=port).start()
    check(raised.value, f"127.0.0.1:{port}: address already in use .*choose another port")


# What isn't an error, and isn't silent either.


@pytest.mark.parametrize("block", [False, True])
async def test_a_selector_that_matches_nothing(
    client: JournalClient, caplog: pytest.LogCaptureFixture, block: bool
) -> None:
    selector = parse_label_selector("name:prefix=shop/ordres/")
    with caplog.at_level(logging.WARNING):
        async with ReadCommittedIter(
            selector, json_adapter(), client=client, block=block
        ) as iterator:
            reading = asyncio.ensure_future(anext(iterator, None))
            await eventually(lambda: caplog.messages)
            reading.cancel()
            await asyncio.wait([reading])
    assert caplog.messages == ["no journal matches the selector 'name:prefix=shop/ordres/'"]


async def acknowledged(publisher: Publisher[Any]) -> None:
    for journal, content in publisher.build_ack_intents():
        async with publisher.appends.append(journal) as pending:
            pending.write(content)


async def abandoned(publisher: Publisher[Any]) -> None:
    publisher.abandon()


async def forgotten(publisher: Publisher[Any]) -> None:
    pass


@pytest.mark.parametrize(("end", "count"), [(acknowledged, 0), (abandoned, 0), (forgotten, 1)])
async def test_messages_that_nobody_commits(
    client: JournalClient,
    caplog: pytest.LogCaptureFixture,
    end: Callable[[Publisher[Any]], Awaitable[None]],
    count: int,
) -> None:
    async with connect(client.endpoint) as other:
        publisher = orders(other)
        await publisher.publish_uncommitted(lambda _: TARGET, {"item": "milk"})
        async with (another := orders(other)).transaction():
            await another.publish_uncommitted(lambda _: TARGET, {"item": "tea"})
        await end(publisher)
    text = r"uncommitted messages of shop/orders stay pending.* within a transaction\(\)"
    assert len([line for line in caplog.messages if re.search(text, line)]) == count
