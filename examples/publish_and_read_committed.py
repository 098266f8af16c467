"""Publish orders in a transaction over two journals, and read the committed ones back.

Messages of a transaction become visible together, once it ends, in all journals they went to. What
an abandoned transaction has sent is never seen.
"""

from __future__ import annotations

import asyncio

import msgspec

from gazette_aio import (
    EmbeddedBroker,
    JournalClient,
    Publisher,
    ReadCommittedIter,
    connect,
    json_adapter,
    load_journal_space,
    modulo_mapping,
)

PARTITIONS = ["orders/part-00", "orders/part-01"]
JOURNALS = """
name: orders/
replication: 1
labels:
  - {name: app.gazette.dev/message-type, value: Order}
  - {name: content-type, value: application/x-ndjson}
fragment: {length: 1048576, compression_codec: GZIP, refresh_interval: 1m0s}
children:
  - name: orders/part-00
  - name: orders/part-01
"""


class Order(msgspec.Struct):
    id: int
    item: str


def order_key(order: Order) -> bytes:
    return str(order.id).encode()


async def create_partitions(client: JournalClient) -> None:
    await client.apply(load_journal_space(JOURNALS).to_apply_request())


async def publish(client: JournalClient, orders: list[Order]) -> None:
    listing = await client.list("app.gazette.dev/message-type=Order")
    mapping = modulo_mapping(order_key, lambda: listing)
    publisher = Publisher(client.appends, json_adapter(Order))
    async with publisher.transaction():
        for order in orders:
            await publisher.publish_uncommitted(mapping, order)


async def main() -> None:
    async with EmbeddedBroker() as broker, connect(broker.endpoint) as client:
        await create_partitions(client)
        await publish(client, [Order(number, "tea") for number in range(1, 5)])

        envelopes = ReadCommittedIter(
            PARTITIONS, json_adapter(Order), client=client, skip_acks=True
        )
        async for envelope in envelopes:
            print(envelope.journal.removeprefix("orders/"), "order", envelope.message.id)


if __name__ == "__main__":
    asyncio.run(main())
