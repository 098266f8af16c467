"""Record batches of messages."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from gazette_aio.message.columns.records import (
    METADATA_NAMES,
    VALUE_NAME,
    RecordBuilder,
    record_schema,
)
from gazette_aio.message.columns.uuids import UuidColumns
from gazette_aio.message.uuid import clock_as_ns, clock_as_time, clock_from_datetime

MAX_CLOCK = 2**64 - 1
clocks = st.integers(0, MAX_CLOCK)


def columns_of(rows: list[tuple[int, int, int, int, int]]) -> UuidColumns:
    producer, clock, flags, begin, end = zip(*rows, strict=True) if rows else ([],) * 5
    return UuidColumns(
        np.array(producer, np.uint64),
        np.array(clock, np.uint64),
        np.array(flags, np.uint16),
        np.array(begin, np.int64),
        np.array(end, np.int64),
    )


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**48 - 1),
            clocks,
            st.integers(0, 1023),
            st.integers(0, 2**63 - 1),
            st.integers(0, 2**63 - 1),
        ),
        max_size=5,
    )
)
@example([(2**48 - 1, MAX_CLOCK, 1023, 2**63 - 1, 2**63 - 1), (0, 0, 0, 0, 0)])
def test_columns_tell_where_messages_are(rows):
    columns = columns_of(rows)
    values = pa.array([b"%d" % row for row in range(len(rows))], pa.binary())
    batch = RecordBuilder("a/journal", None).build(columns, values)
    batch.validate(full=True)
    assert batch.schema.equals(record_schema(None))
    micros = batch["_timestamp"].cast(pa.int64()).to_pylist()
    assert micros == [clock_as_ns(clock) // 1000 for _, clock, *_ in rows]
    others = batch.drop_columns(["_timestamp"]).to_pylist()
    assert others == [
        {
            "_journal": "a/journal",
            "_begin": begin,
            "_end": end,
            "_clock": clock,
            "_producer": producer.to_bytes(6, "big"),
            "_flags": flags,
            "_value": b"%d" % row,
        }
        for row, (producer, clock, flags, begin, end) in enumerate(rows)
    ]


@given(st.datetimes(dt.datetime.fromisoformat("1582-10-15"), dt.datetime.fromisoformat("5236-01-01")), st.integers(0, 15))  # fmt: skip
def test_timestamps_are_those_of_clocks(when, counter):
    when = when.replace(tzinfo=dt.UTC)
    clock = clock_from_datetime(when) | counter
    batch = RecordBuilder("j", None).build(
        columns_of([(1, clock, 0, 0, 1)]), pa.array([b""], pa.binary())
    )
    assert batch["_timestamp"].to_pylist() == [when]
    assert clock_as_time(clock) == when


def test_the_widest_clocks():
    rows = [(0, 0, 0, 0, 0), (0, MAX_CLOCK, 0, 0, 0)]
    batch = RecordBuilder("j", None).build(columns_of(rows), pa.array([b"", b""], pa.binary()))
    times = [time.year for time in batch["_timestamp"].to_pylist()]
    assert times == [1582, 5236]


def test_schemas():
    assert str(record_schema(None)).splitlines() == [
        "_journal: dictionary<values=string, indices=int32, ordered=0> not null",
        "_begin: int64 not null",
        "_end: int64 not null",
        "_timestamp: timestamp[us, tz=UTC] not null",
        "_clock: uint64 not null",
        "_producer: fixed_size_binary[6] not null",
        "_flags: uint16 not null",
        "_value: binary not null",
    ]
    assert record_schema(None).names == [*METADATA_NAMES, VALUE_NAME]
    documents = pa.schema([pa.field("a", pa.int64(), nullable=False)], {"made": "by us"})
    schema = record_schema(documents)
    assert schema.names == [*METADATA_NAMES, "a"]
    assert not schema.field("a").nullable
    assert schema.metadata == {b"made": b"by us"}


def test_documents_are_columns():
    documents = pa.schema([("a", pa.int64()), ("b", pa.string())], {"made": "by us"})
    builder = RecordBuilder("j", documents)
    columns = columns_of([(1, 2, 0, 3, 4), (1, 3, 0, 4, 5)])
    content = pa.RecordBatch.from_pylist([{"a": 1}, {"b": "x"}], schema=documents)
    batch = builder.build(columns, content)
    batch.validate(full=True)
    assert batch.schema.equals(builder.schema, check_metadata=True)
    assert batch.select(["a", "b"]).to_pylist() == [{"a": 1, "b": None}, {"a": None, "b": "x"}]
    assert batch["_begin"].to_pylist() == [3, 4]
    # Views of longer columns do as well.
    part = builder.build(columns.slice(1), content.slice(1))
    part.validate(full=True)
    assert part.equals(batch.slice(1))
    strided = UuidColumns(*(column[::-1] for column in columns))
    assert builder.build(strided, content)["_begin"].to_pylist() == [4, 3]


def test_batches_share_the_name_of_their_journal():
    builder = RecordBuilder("j", None)
    one, two = (
        builder.build(columns_of([(1, 2, 0, 3, 4)]), pa.array([b""], pa.binary()))["_journal"]
        for _ in range(2)
    )
    addresses = {array.dictionary.buffers()[2].address for array in (one, two)}
    assert len(addresses) == 1
