"""Programs which type checkers accept; not imported, only checked."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any, assert_type
from uuid import UUID

import msgspec

import gazette_aio.protocol as pb
from gazette_aio import (
    Adapter,
    AppendService,
    AsyncAppend,
    AsyncJournalClient,
    EmbeddedBroker,
    Envelope,
    Flags,
    IntentLog,
    JournalClient,
    Publisher,
    ReadCommittedIter,
    ReadUncommittedIter,
    RetryReader,
    connect,
    json_adapter,
    modulo_mapping,
)
from gazette_aio.consumer import (
    Application,
    BatchConsumer,
    MemoryStore,
    Shard,
    run_consumer,
)


class Order(msgspec.Struct):
    id: int


@dataclasses.dataclass
class Payment:
    cents: int


def order_key(order: Order) -> bytes:
    return b"%d" % order.id


async def rpcs() -> None:
    async with connect("http://localhost:8080", zone="here") as client:
        assert_type(client, JournalClient)
        assert_type(await client.list("a=b"), pb.ListResponse)
        assert_type(await client.apply(pb.ApplyRequest()), pb.ApplyResponse)
        assert_type(await client.append("a/journal", b"content"), pb.AppendResponse)
        reader = client.read("a/journal", offset=3, block=True)
        assert_type(reader, RetryReader)
        async for chunk in reader:
            assert_type(chunk, bytes)


async def appends(service: AppendService) -> None:
    async with service.append("a/journal") as pending:
        assert_type(pending, AsyncAppend)
        pending.write(b"content")
    assert_type(await pending, pb.AppendResponse)
    assert_type(pending.result(), pb.AppendResponse)
    assert_type(pending.commit_range, tuple[int, int])
    waited: list[asyncio.Future[Any]] = [pending, asyncio.create_task(service.flush())]
    await asyncio.wait(waited)
    await service.start_append("a/journal", [pending, asyncio.create_task(service.flush())])


async def async_journal_clients(client: JournalClient, other: AsyncJournalClient) -> None:
    appends: AsyncJournalClient = client.appends
    assert_type(await appends.list("a=b"), pb.ListResponse)
    assert_type(await appends.start_append("a/journal"), AsyncAppend)
    assert_type(Publisher(other, json_adapter(Order)), Publisher[Order])


async def messages(client: JournalClient) -> None:
    adapter = json_adapter(Order)
    orders: Adapter[Order] = adapter
    payments: Adapter[Payment] = json_adapter(Payment)
    assert_type(orders.decode(b"{}"), Order)
    assert_type(payments.decode(b"{}"), Payment)
    async for envelope in ReadCommittedIter(["a", "b"], adapter, client=client):
        assert_type(envelope, Envelope[Order])
        assert_type(envelope.message, Order)
        assert_type(envelope.uuid, UUID)
        assert_type(envelope.flags, Flags)
    selector = pb.parse_label_selector("topic=orders")
    async for batch in ReadCommittedIter(selector, adapter, client=client, block=True).batches():
        assert_type(batch[0], Envelope[Order])
        assert_type(batch.messages, list[Order])
    async with client.watch(selector) as watched:
        async for envelope in ReadUncommittedIter(watched, adapter, client=client, direct=True):
            assert_type(envelope, Envelope[Order])
    async for payment in ReadUncommittedIter("a", json_adapter(Payment), client=client):
        assert_type(payment.message.cents, int)
    async for untyped in ReadUncommittedIter("a", json_adapter(), client=client):
        assert_type(untyped.message, dict[str, Any])


async def adapters_by_spec(client: JournalClient) -> None:
    selector = pb.parse_label_selector("topic=orders")
    orders, others = json_adapter(Order), json_adapter(Order, "meta.id")
    chosen = ReadCommittedIter(
        selector, lambda spec: orders if spec.name.startswith("new/") else others, client=client
    )
    async for envelope in chosen:
        assert_type(envelope, Envelope[Order])
        assert_type(envelope.spec, pb.JournalSpec)
        assert_type(envelope.labels, pb.LabelSet)

    def adapter_of(spec: pb.JournalSpec) -> Adapter[Any]:
        return orders if spec.name.startswith("orders/") else json_adapter(Payment)

    async for mixed in ReadUncommittedIter(selector, adapter_of, client=client):
        assert_type(mixed, Envelope[Any])


async def publishing(client: JournalClient, listing: pb.ListResponse) -> None:
    publisher = Publisher(client.appends, json_adapter(Order))
    assert_type(publisher, Publisher[Order])
    assert_type(publisher.view(json_adapter(Payment)), Publisher[Payment])
    mapping = modulo_mapping(order_key, lambda: listing)
    assert_type(await publisher.publish_committed(mapping, Order(1)), pb.AppendResponse)
    assert_type(await publisher.start_publish_committed(mapping, Order(1)), AsyncAppend)
    async with publisher.transaction(intents=IntentLog("intents")):
        await publisher.publish_uncommitted(mapping, Order(2))


class Counting(Application[Order, MemoryStore[int]]):
    def adapter(self, spec: pb.JournalSpec) -> Adapter[Order]:
        return json_adapter(Order)

    def new_store(self, shard: Shard, recorder: Any) -> MemoryStore[int]:
        return MemoryStore(0)

    def consume_message(
        self,
        shard: Shard,
        store: MemoryStore[int],
        envelope: Envelope[Order],
        publisher: Publisher[Any],
    ) -> None:
        store.state += envelope.message.id


class Batching(Application[Order, MemoryStore[int]]):
    def adapter(self, spec: pb.JournalSpec) -> Adapter[Order]:
        return json_adapter(Order)

    async def new_store(self, shard: Shard, recorder: Any) -> MemoryStore[int]:
        return MemoryStore(0)

    async def consume_batch(
        self,
        shard: Shard,
        store: MemoryStore[int],
        envelopes: Sequence[Envelope[Order]],
        publisher: Publisher[Any],
    ) -> int:
        store.state += len(envelopes)
        return len(envelopes)


async def consumers() -> None:
    # Optional hooks may be left out.
    assert_type(await run_consumer(Counting()), bool)
    assert_type(await run_consumer(Batching()), bool)
    batches: BatchConsumer[Order, MemoryStore[int]] = Batching()
    _ = batches


async def broker() -> None:
    async with EmbeddedBroker(fsync="off") as running:
        assert_type(running.endpoint, str)
