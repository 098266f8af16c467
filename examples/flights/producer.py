"""Publish a share of the flights in transactions: a process which may die at any moment.

The intent log of a producer holds, stored in one step, the acknowledgements of its latest
transaction and the row to go on with behind it. A producer which is started again first appends
these acknowledgements once more, which does no harm, and goes on with that row. What its
predecessor had sent of a later transaction is never acknowledged, and so nobody reads it.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
from pathlib import Path

import msgspec

from examples.flights.data import Flight, flights
from examples.flights.fleet import Event
from gazette_aio import IntentLog, Publisher, connect, json_adapter, modulo_mapping

SELECTOR = "app.gazette.dev/message-type=Flight"


def tell(event: Event) -> None:
    """Print `event` for the process which started this one."""
    print(msgspec.json.encode(event).decode(), flush=True)


def carrier_key(flight: Flight) -> bytes:
    """Return what chooses the partition of `flight`."""
    return flight.carrier.encode()


async def produce(options: argparse.Namespace) -> None:
    """Publish those rows of the share which aren't published yet."""
    async with connect(options.broker) as client, IntentLog(options.intents) as intents:
        partitions = await client.list(SELECTOR)
        mapping = modulo_mapping(carrier_key, lambda: partitions)
        publisher = Publisher(client.appends, json_adapter(Flight))

        state = await intents.recover(client.appends)
        next_row = state["next_row"] if isinstance(state, dict) else options.begin
        tell(Event("ready", next_row=next_row))

        rows = flights(next_row, options.end)
        for number in itertools.count():
            batch = list(itertools.islice(rows, options.transaction_rows))
            if not batch:
                return
            async with publisher.transaction(intents=intents) as transaction:
                for index, flight in enumerate(batch):
                    if number == options.halt_in_transaction and index == len(batch) // 2:
                        # What was sent so far is in the journals, and not acknowledged.
                        await publisher.flush()
                        tell(Event("halted", rows=index, next_row=batch[0].row))
                        await asyncio.Event().wait()
                    await publisher.publish_uncommitted(mapping, flight)
                next_row = batch[-1].row + 1
                transaction.state = {"next_row": next_row}
            tell(Event("committed", rows=len(batch), next_row=next_row))


def main() -> None:
    """Run one producer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", required=True, help="address of the broker")
    parser.add_argument("--begin", type=int, required=True, help="first row to publish")
    parser.add_argument("--end", type=int, required=True, help="row to stop before")
    parser.add_argument("--intents", type=Path, required=True, help="file of the intent log")
    parser.add_argument("--transaction-rows", type=int, required=True)
    parser.add_argument("--halt-in-transaction", type=int, help="stop half-way, to be killed")
    asyncio.run(produce(parser.parse_args()))


if __name__ == "__main__":
    main()
