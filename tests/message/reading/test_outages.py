"""Brokers that fail under an iterator: their errors pass by their own classes, and say where."""

from __future__ import annotations

from typing import Any

import pytest

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import JournalClient, connect
from gazette_aio.message import Publisher, ReadCommittedIter, ReadUncommittedIter, json_adapter
from gazette_aio.testing import create_journals, journal_spec

NDJSON = "application/x-ndjson"
PARTS = ["topic/a", "topic/b"]


@pytest.fixture
async def broker(gazette_broker: EmbeddedBroker, gazette_client: JournalClient) -> EmbeddedBroker:
    """Broker of a topic with a message in its first journal."""
    labels = {"content-type": NDJSON, "topic": "t"}
    await create_journals(gazette_client, *(journal_spec(name, labels=labels) for name in PARTS))
    publisher = Publisher(gazette_client.appends, json_adapter())
    await publisher.publish_committed(lambda _: (PARTS[0], NDJSON), {"v": 1})
    return gazette_broker


SOURCES = pytest.mark.parametrize(
    "source",
    [
        lambda client: PARTS[0],
        lambda client: client.read(PARTS[0], block=True),
        lambda client: PARTS,
        lambda client: pb.parse_label_selector("topic=t"),
    ],
    ids=["name", "reader", "names", "selector"],
)
KINDS = pytest.mark.parametrize("kind", [ReadCommittedIter, ReadUncommittedIter])


def iterator_of(kind: Any, source: Any, client: JournalClient) -> Any:
    given = source(client)
    options = {} if hasattr(given, "read") else {"client": client, "block": True}
    return kind(given, json_adapter(), **options)


async def timed_out_read(iterator: Any) -> pb.OperationTimeoutError:
    """Wait for the time-out of a read. A slow machine may have a listing time out before."""
    while True:
        with pytest.raises(pb.OperationTimeoutError) as raised:
            await anext(iterator)
        if raised.value.operation == "read":
            return raised.value


@SOURCES
@KINDS
async def test_a_time_out_is_raised_as_such(broker: Any, kind: Any, source: Any) -> None:
    async with (
        connect(broker.endpoint, timeout=0.2) as client,
        iterator_of(kind, source, client) as iterator,
    ):
        with broker.control.keep("read", fail="UNAVAILABLE"):
            for _ in range(2):
                error = await timed_out_read(iterator)
                assert error.retryable
                assert error.journal in PARTS
                assert error.__notes__ == [f"reading messages of {error.journal} at offset 0"]


@SOURCES
@KINDS
@pytest.mark.parametrize("form", ["items", "batches", "arrow"])
async def test_a_failed_read_is_raised_as_such(
    broker: Any, kind: Any, source: Any, form: str
) -> None:
    async with connect(broker.endpoint) as client:
        length = (await client.append(PARTS[0])).commit.end
        broker.control.cut(
            "read", journal=PARTS[0], after_bytes=length, fail=("PERMISSION_DENIED", "not today")
        )
        async with iterator_of(kind, source, client) as iterator:
            outputs = {"items": lambda: iterator, "batches": iterator.batches}.get(
                form, iterator.arrow
            )()
            await anext(outputs)
            with pytest.raises(pb.TransportError, match="not today") as raised:
                await anext(outputs)
            assert (raised.value.code, raised.value.retryable) == ("PERMISSION_DENIED", False)
            assert raised.value.__notes__ == [f"reading messages of {PARTS[0]} at offset {length}"]


@KINDS
async def test_a_reader_that_does_not_block_ends_at_the_write_head(broker: Any, kind: Any) -> None:
    async with connect(broker.endpoint) as client:
        async with kind(client.read(PARTS[0]), json_adapter()) as iterator:
            await anext(iterator)
            for _ in range(2):
                with pytest.raises(pb.OffsetNotYetAvailableError) as raised:
                    await anext(iterator)
                assert len(raised.value.__notes__) == 1
