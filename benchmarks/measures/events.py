"""The messages which measures send, and journals for them."""

from __future__ import annotations

import dataclasses
import os
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc.aio
import msgspec

import gazette_aio.protocol as pb
from benchmarks.server_process import server_process
from examples.flights.data import Flight, flights
from gazette_aio import Publisher, connect, json_adapter
from gazette_aio.message import ACK_TXN, CONTINUE_TXN, Clock, build_uuid, new_producer_id
from gazette_aio.protocol.service import READ
from gazette_aio.testing import BrokerProcess, create_journals, journal_spec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from benchmarks.harness import Run
    from gazette_aio.client import JournalClient

MESSAGES = 150_000
APPLIED = 100
"""Journals which are created at a time."""
JOURNAL = "bench/messages"


class Event(msgspec.Struct):
    """A small message: some 180 bytes, UUID included."""

    id: int
    user: str
    kind: str
    amount: float
    at: str
    country: str
    tags: list[str]


def events() -> list[Any]:
    """Return small messages."""
    kinds = ("click", "view", "purchase", "refund")
    return [
        Event(
            id=number,
            user=f"user-{number % 9973:05}",
            kind=kinds[number % len(kinds)],
            amount=number % 1000 / 8,
            at=f"2024-05-{1 + number % 28:02}T12:{number % 60:02}:00Z",
            country="DE",
            tags=["web", "new"],
        )
        for number in range(MESSAGES)
    ]


class Address(msgspec.Struct):
    street: str
    city: str
    zip: str
    phone: str


class Item(msgspec.Struct):
    sku: str
    title: str
    count: int


class Purchase(msgspec.Struct):
    """A larger message: some 1 KB, UUID included."""

    event: Event
    total: float
    tax: float
    paid: bool
    coupon: str | None
    address: Address
    items: list[Item]


def purchases() -> list[Any]:
    """Return larger messages."""
    address = Address("Unter den Linden 77", "Berlin", "10117", "030")
    return [
        Purchase(
            event=event,
            total=event.id % 1000 / 4,
            tax=event.id % 1000 / 32,
            paid=event.id % 3 == 0,
            coupon=f"spring-{event.id % 50}",
            address=address,
            items=[
                Item(f"sku-{event.id % 10_007:06}-{part}", "A book of verses", 2)
                for part in range(11)
            ],
        )
        for event in events()
    ]


@dataclasses.dataclass(frozen=True)
class Workload:
    """Messages of one type."""

    suffix: str
    """Behind the name of a measure."""
    about: str
    kind: type[Any]
    messages: Callable[[], list[Any]]


WORKLOADS = (
    Workload("", "flights of 380 bytes", Flight, lambda: list(flights(end=MESSAGES))),
    Workload(".small", "messages of 180 bytes", Event, events),
    Workload(".large", "messages of 1 KB", Purchase, purchases),
)


def mapping(_message: object) -> tuple[str, str]:
    """Send all messages to one journal."""
    return JOURNAL, pb.CONTENT_TYPE_JSON_LINES


async def publish_transactions(
    client: JournalClient, kind: type[Any], messages: list[Any], size: int
) -> int:
    """Publish messages in transactions of `size`, and return the head of the journal."""
    publisher = Publisher(client.appends, json_adapter(kind))
    for begin in range(0, len(messages), size):
        async with publisher.transaction():
            await publisher.publish_uncommitted_batch(mapping, messages[begin : begin + size])
    return (await client.append(JOURNAL)).commit.end


async def append_transactions(
    client: JournalClient,
    kind: type[Any],
    messages: list[Any],
    size: int,
    *,
    producers: int = 1,
    is_uuid_last: bool = False,
) -> int:
    """Append what publishers of transactions of `size` write, and return the head of the journal.

    It's one append per MiB or so, rather than two per transaction, which would take minutes.
    Several producers take turns after each message. `is_uuid_last` makes the UUID the last member.
    """
    adapter = json_adapter(kind)
    clock, identities = Clock.now(), [new_producer_id() for _ in range(producers)]
    content = bytearray()
    for begin in range(0, len(messages), size * producers):
        part = messages[begin : begin + size * producers]
        for number, message in enumerate(part):
            producer = identities[number % producers]
            line = adapter.encode(message, build_uuid(producer, clock.tick(), CONTINUE_TXN))
            if is_uuid_last:
                meta, _, members = line.partition(b"},")
                line = b"{" + members[:-1] + b"," + meta[1:] + b"}}"
            content += line + b"\n"
        for producer in identities[: len(part)]:
            content += adapter.acknowledgement(build_uuid(producer, clock.tick(), ACK_TXN)) + b"\n"
        if len(content) >= 1 << 20:
            await client.append(JOURNAL, bytes(content))
            content.clear()
    return (await client.append(JOURNAL, bytes(content))).commit.end


@asynccontextmanager
async def bare_read(client: JournalClient, head: int) -> AsyncIterator[Run]:
    """Yield a loop over the responses of a stub, which returns its MB/s."""
    # As code that grpcio-tools generates sets them up.
    channel = grpc.aio.insecure_channel(
        client.endpoint.removeprefix("http://"), [("grpc.max_receive_message_length", 16 << 20)]
    )
    stub: Any = channel.unary_stream(
        READ,
        request_serializer=pb.ReadRequest.SerializeToString,
        response_deserializer=pb.ReadResponse.FromString,
    )

    async def read() -> float:
        count = 0
        request = pb.ReadRequest(journal=JOURNAL, end_offset=head)
        begun = time.perf_counter()
        async for response in stub(request):
            count += len(response.content)
        elapsed = time.perf_counter() - begun
        assert count == head, count
        return count / elapsed / 1e6

    try:
        await read()
        yield read
    finally:
        await channel.close()


async def read_speed(client: JournalClient, head: int) -> float:
    """Read the journal up to its head, and return the MB/s."""
    count = 0
    begun = time.perf_counter()
    async with client.read(JOURNAL, end_offset=head) as reader:
        async for chunk in reader:
            count += len(chunk)
    elapsed = time.perf_counter() - begun
    assert count == head, count
    return count / elapsed / 1e6


@asynccontextmanager
async def served_journals(
    *names: str, in_small_chunks: bool = False
) -> AsyncIterator[JournalClient]:
    """Yield a client of a broker which has these journals.

    It's a process of its own, which sends small chunks if asked to; or the broker at
    BROKER_ADDRESS, if that's set, which they're deleted from in the end.
    """
    labels = {pb.CONTENT_TYPE: pb.CONTENT_TYPE_JSON_LINES}
    specs = [
        journal_spec(name, labels=labels, length=1 << 30, codec=pb.CompressionCodec.NONE)
        for name in names
    ]
    async with _broker(in_small_chunks) as address, connect(address) as client:
        for begin in range(0, len(specs), APPLIED):
            await create_journals(client, *specs[begin : begin + APPLIED])
        try:
            yield client
        finally:
            for begin in range(0, len(names), APPLIED):
                await client.apply(
                    [
                        pb.ApplyRequest.Change(delete=name, expect_mod_revision=-1)
                        for name in names[begin : begin + APPLIED]
                    ]
                )


@asynccontextmanager
async def _broker(in_small_chunks: bool) -> AsyncIterator[str]:
    if address := os.environ.get("BROKER_ADDRESS"):
        yield address
        return
    if in_small_chunks:
        async with server_process("benchmarks.chunked_broker") as address:
            yield address
        return
    with tempfile.TemporaryDirectory(prefix="gazette-bench-") as directory:
        async with BrokerProcess(Path(directory) / "broker") as broker:
            yield broker.endpoint
