"""Mistakes which type checkers find; each line which has one ends in the code of its error."""

# Of mypy: pyright has other names for them.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import msgspec

import gazette_aio
import gazette_aio.protocol as pb
from gazette_aio import (
    EmbeddedBroker,
    JournalClient,
    Publisher,
    ReadCommittedIter,
    connect,
    json_adapter,
    modulo_mapping,
)


class Order(msgspec.Struct):
    id: int


def order_key(order: Order) -> bytes:
    return b"%d" % order.id


async def rpcs(client: JournalClient) -> None:
    connect(8080)  # error: arg-type
    connect(colour="blue")  # error: call-arg
    connect(cache_size="256")  # error: arg-type
    await client.append("a/journal", "text")  # error: arg-type
    await client.apply("a/journal")  # error: arg-type
    response = await client.list("a=b")
    _ = response.journal  # error: attr-defined
    async for chunk in client.read("a/journal"):
        chunk.encode()  # error: attr-defined
    _ = gazette_aio.no_such_name  # error: attr-defined


async def messages(client: JournalClient, listing: pb.ListResponse) -> None:
    adapter = json_adapter(Order)
    async for envelope in ReadCommittedIter(["a"], adapter, client=client):
        _ = envelope.message.name  # error: attr-defined
        _ = envelope.offset  # error: attr-defined
    ReadCommittedIter(pb.ListRequest(), adapter, client=client)  # error: arg-type
    ReadCommittedIter("a", lambda spec: spec.nonsense, client=client)  # error: attr-defined
    ReadCommittedIter("a", order_key, client=client)  # error: arg-type
    publisher = Publisher(client.appends, adapter)
    Publisher(client, adapter)  # error: arg-type
    mapping = modulo_mapping(order_key, lambda: listing)
    await publisher.publish_uncommitted(mapping, "text")  # error: arg-type
    await publisher.publish_uncommitted("a/journal", Order(1))  # error: arg-type


async def broker() -> None:
    EmbeddedBroker(8080)  # error: arg-type
    EmbeddedBroker(colour="blue")  # error: call-arg
    EmbeddedBroker(port="8080")  # error: arg-type
