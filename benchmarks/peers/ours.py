"""Our side of the measures: publishing in transactions, and reading what was committed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

import gazette_aio.protocol as pb
from benchmarks.measures.arrow import schema_of
from benchmarks.measures.events import JOURNAL, WORKLOADS, mapping
from gazette_aio import Publisher, ReadCommittedIter, json_adapter

if TYPE_CHECKING:
    from benchmarks.harness import Run
    from gazette_aio.client import JournalClient

WORKLOAD = WORKLOADS[1]
TRANSACTION = 5_000
"""Messages of a transaction."""
TARGET = (JOURNAL, pb.CONTENT_TYPE_JSON_LINES)
ABOUT = f"of {WORKLOAD.about} in transactions of {TRANSACTION}"


def transactions(messages: list[Any]) -> list[list[Any]]:
    """Return the messages of each transaction."""
    return [messages[begin : begin + TRANSACTION] for begin in range(0, len(messages), TRANSACTION)]


def publishing(client: JournalClient, messages: list[Any], *, batches: bool) -> Run:
    """Return what publishes the messages, one by one or by batches."""
    publisher = Publisher(client.appends, json_adapter(WORKLOAD.kind))

    async def run() -> float:
        begun = time.perf_counter()
        for part in transactions(messages):
            async with publisher.transaction():
                if batches:
                    await publisher.publish_uncommitted_batch(mapping, part)
                else:
                    for message in part:
                        await publisher.publish_uncommitted(mapping, message)
        await client.append(JOURNAL)
        return len(messages) / (time.perf_counter() - begun)

    return run


Form = Literal["items", "batches", "columns"]


def reading(client: JournalClient, count: int, form: Form) -> Run:
    """Return what reads `count` committed messages: one by one, in lists, or as typed columns."""
    adapter = json_adapter(WORKLOAD.kind)

    async def run() -> float:
        seen = 0
        iterator = ReadCommittedIter(JOURNAL, adapter, client=client, skip_acks=True)
        begun = time.perf_counter()
        if form == "columns":
            async for columns in iterator.arrow(schema_of(WORKLOAD.kind)):
                seen += columns.num_rows
        elif form == "batches":
            async for envelopes in iterator.batches():
                seen += len(envelopes)
        else:
            async for _ in iterator:
                seen += 1
        assert seen == count, seen
        return count / (time.perf_counter() - begun)

    return run
