"""Read committed orders, transform them, and publish invoices: exactly once, whatever crashes.

Each batch of orders is one transaction. Its invoices commit together with the checkpoint of the
orders that were read, or neither does. Kill the program at any moment and run it again with the
same log: it resumes after the last order whose invoice is committed.

    python -m examples.etl --log invoices.intents --follow
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from pathlib import Path

import msgspec

from gazette_aio import (
    Fence,
    IntentLog,
    JournalClient,
    Publisher,
    ReadCommittedIter,
    connect,
    json_adapter,
    load_journal_space,
    modulo_mapping,
)
from gazette_aio.message import SequencerCheckpoint
from gazette_aio.protocol import EtcdTransactionFailedError

ORDERS = ["etl/orders/part-00", "etl/orders/part-01"]
INVOICES = ["etl/invoices/part-00", "etl/invoices/part-01"]
FENCE = Fence(journal="etl/fences", name="invoices")
JOURNALS = """
name: etl/
replication: 1
labels:
  - {name: content-type, value: application/x-ndjson}
fragment: {length: 1048576, compression_codec: GZIP, refresh_interval: 1m0s}
children:
  - name: etl/fences
  - name: etl/invoices/
    labels: [{name: app.gazette.dev/message-type, value: Invoice}]
    children: [{name: etl/invoices/part-00}, {name: etl/invoices/part-01}]
  - name: etl/orders/
    labels: [{name: app.gazette.dev/message-type, value: Order}]
    children: [{name: etl/orders/part-00}, {name: etl/orders/part-01}]
"""


class Order(msgspec.Struct):
    id: int
    cents: int


class Invoice(msgspec.Struct):
    order: int
    total_cents: int


def transform(order: Order) -> Invoice:
    """Return the invoice of an order, with a tax of 20 %."""
    return Invoice(order.id, order.cents + order.cents // 5)


def invoice_key(invoice: Invoice) -> bytes:
    return str(invoice.order).encode()


async def create_journals(client: JournalClient) -> None:
    """Create the journals, unless they exist."""
    request = load_journal_space(JOURNALS).to_apply_request()
    for change in request.changes:
        change.expect_mod_revision = 0
    with contextlib.suppress(EtcdTransactionFailedError):
        await client.apply(request)


async def run(log_path: Path, *, follow: bool) -> None:
    """Transform orders up to the end of their journals, or for ever."""
    async with connect() as client, IntentLog(log_path, fence=FENCE) as log:
        await create_journals(client)
        # Commits what a process before has decided, and fences it off if it's still there.
        checkpoint = await log.recover(client.appends)
        assert checkpoint is None or isinstance(checkpoint, SequencerCheckpoint)

        partitions = await client.list("app.gazette.dev/message-type=Invoice")
        mapping = modulo_mapping(invoice_key, lambda: partitions)
        publisher = Publisher(client.appends, json_adapter(Invoice))
        orders = ReadCommittedIter(
            ORDERS,
            json_adapter(Order),
            client=client,
            checkpoint=checkpoint,
            block=follow,
            skip_acks=True,
        )
        async with orders:
            async for batch in orders.batches():
                async with publisher.transaction(intents=log) as transaction:
                    for order in batch.messages:
                        await publisher.publish_uncommitted(mapping, transform(order))
                    transaction.state = orders.checkpoint()


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", type=Path, required=True, help="file of the intent log")
    parser.add_argument("--follow", action="store_true", help="wait for further orders")
    options = parser.parse_args()
    asyncio.run(run(options.log, follow=options.follow))


if __name__ == "__main__":
    main()
