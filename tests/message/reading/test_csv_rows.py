"""Rows of CSV survive in each reader, whatever their text is."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gazette_aio.message import (
    Publisher,
    ReadCommittedIter,
    ReadUncommittedIter,
    csv_adapter,
    raw_adapter,
)
from tests.message.fakes import FakeClient
from tests.message.publishing.batch_fakes import BatchAppends
from tests.spark.messages import CSV, Journal, message_uuid, spark_schema

FIELDS = st.text(
    st.sampled_from('\r\n",;\\. a\0é\u2028') | st.characters(exclude_categories=["Cs"])
)
ROWS = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.lists(FIELDS, min_size=width, max_size=width), min_size=1, max_size=5)
)


async def published(rows):
    """Return what a publisher of rows writes, and records of others, which end in CRLF."""
    appends = BatchAppends()
    publisher = Publisher(appends, csv_adapter())
    for row in rows[:2]:
        await publisher.publish_committed(lambda _: ("some/rows", CSV), ["", *row])
    await publisher.publish_committed_batch(("some/rows", CSV), [["", *row] for row in rows[2:]])
    content = bytes(appends.journals["some/rows"])
    for number, row in enumerate(rows):
        content += csv_adapter().encode(["", *row], message_uuid(number)) + b"\r\n"
    return content


async def read_everywhere(content, width, chunk):
    """Return rows as items, batches, columns of Arrow, undecoded messages, and rows of Spark."""
    client = FakeClient({"some/rows": CSV}, chunk=chunk)
    client.append("some/rows", content)
    names = [f"c{index}" for index in range(width)]
    schema = pa.schema([(name, pa.string()) for name in names])
    found = {}
    for kind in (ReadUncommittedIter, ReadCommittedIter):
        async with kind("some/rows", csv_adapter(), client=client) as iterator:
            found[kind, "items"] = [envelope.message[1:] async for envelope in iterator]
        async with kind("some/rows", csv_adapter(), client=client) as iterator:
            batches = [batch async for batch in iterator.batches()]
        found[kind, "batches"] = [e.message[1:] for batch in batches for e in batch]
        async with kind("some/rows", csv_adapter(), client=client) as iterator:
            tables = [table async for table in iterator.arrow(schema)]
        found[kind, "Arrow"] = [
            [row[name] for name in names] for table in tables for row in table.to_pylist()
        ]
        async with kind("some/rows", csv_adapter(), client=client) as iterator:
            tables = [table async for table in iterator.arrow()]
        values = [value.as_py() for table in tables for value in table["_value"]]
        found[kind, "_value"] = [csv_adapter().decode(value)[1:] for value in values]
        async with kind("some/rows", raw_adapter(), client=client) as iterator:
            raw = [envelope.message async for envelope in iterator]
        found[kind, "raw"] = [csv_adapter().decode(value)[1:] for value in raw]
    return found | await asyncio.to_thread(read_by_spark, content, names, chunk)


def read_by_spark(content, names, chunk):
    rows = Journal(spark_schema(*((name, "string") for name in names)), CSV).read(content, chunk)
    raw = Journal(spark_schema(("_value", "binary")), CSV, format="raw").read(content, chunk)
    return {
        "Spark": [[row[name] for name in names] for row in rows],
        "Spark, raw": [csv_adapter().decode(row["_value"])[1:] for row in raw],
    }


@given(ROWS, st.sampled_from([1, 3, 1000]))
@example([["one\r\ntwo"], ["\r\n"], ["\r"], ['"\r\n"']], 1000)
def test_any_text_survives_in_each_reader(rows, chunk):
    content = asyncio.run(published(rows))
    found = asyncio.run(read_everywhere(content, len(rows[0]), chunk))
    assert found == dict.fromkeys(found, 2 * rows)


@pytest.mark.parametrize("form", ["items", "Arrow"])
async def test_reading_goes_on_from_a_checkpoint_before_garbage(form):
    """No record read first, which may be garbage, decides how many fields all others have."""
    adapter = csv_adapter()
    records = [adapter.encode(["", "a", "b"], message_uuid(number)) for number in range(4)]
    content = b"\n".join([records[0], b"not a record", *records[1:], b""])
    client = FakeClient({"some/rows": CSV})
    client.append("some/rows", content)

    async def ends_of(count, checkpoint=None):
        """Return the ends of messages, up to so many, and a checkpoint of them."""
        iterator = ReadCommittedIter(
            "some/rows", adapter, client=client, checkpoint=checkpoint, on_error="skip"
        )
        ends = []
        async with iterator:
            if form == "items":
                async for envelope in iterator:
                    ends.append(envelope.end)
                    if len(ends) == count:
                        break
            else:
                batches = iterator.arrow(batch_bytes=1)
                while len(ends) < count and (batch := await anext(batches, None)):
                    ends += batch["_end"].to_pylist()
            return ends, iterator.checkpoint(), iterator.skipped

    ends, _, skipped = await ends_of(9)
    assert len(ends) == 4
    assert skipped == 1
    first, checkpoint, _ = await ends_of(1)
    rest, _, skipped = await ends_of(9, checkpoint)
    assert first + rest == ends
    assert skipped == 1
