"""The program of `etl.py` with its state in PostgreSQL, and invoices in a table as well.

The checkpoint, the acknowledgements of the transaction and the rows are one transaction of the
database. The program may continue on any machine: it fences off the one before.

    python -m examples.etl_postgres --postgres postgresql://localhost/shop --follow
"""

from __future__ import annotations

import argparse
import asyncio

import psycopg

from examples.etl import INVOICES, ORDERS, Invoice, Order, create_journals, invoice_key, transform
from gazette_aio import Publisher, ReadCommittedIter, connect, json_adapter, modulo_mapping
from gazette_aio.contrib.postgres import CREATE_TABLE, PostgresIntents
from gazette_aio.message import SequencerCheckpoint

CREATE_INVOICES = "CREATE TABLE IF NOT EXISTS invoices (id BIGINT PRIMARY KEY, cents BIGINT)"
INSERT = "INSERT INTO invoices SELECT * FROM unnest(%s::bigint[], %s::bigint[])"


async def run(url: str, *, follow: bool) -> None:
    """Transform orders up to the end of their journals, or for ever."""
    database = await psycopg.AsyncConnection.connect(url, autocommit=True)
    async with database:
        await database.execute(CREATE_TABLE)
        await database.execute(CREATE_INVOICES)
        log = PostgresIntents(database, "invoices")
        async with connect() as client:
            await create_journals(client)
            checkpoint = await log.recover(client.appends)
            assert checkpoint is None or isinstance(checkpoint, SequencerCheckpoint)

            partitions = await client.list("app.gazette.dev/message-type=Invoice")
            assert [entry.spec.name for entry in partitions.journals] == INVOICES
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
                    invoices = [transform(order) for order in batch.messages]
                    async with publisher.transaction(intents=log) as transaction:
                        for invoice in invoices:
                            await publisher.publish_uncommitted(mapping, invoice)
                        log.execute(
                            INSERT,
                            (
                                [invoice.order for invoice in invoices],
                                [invoice.total_cents for invoice in invoices],
                            ),
                        )
                        transaction.state = orders.checkpoint()


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postgres", required=True, help="URL of the database")
    parser.add_argument("--follow", action="store_true", help="wait for further orders")
    options = parser.parse_args()
    asyncio.run(run(options.postgres, follow=options.follow))


if __name__ == "__main__":
    main()
