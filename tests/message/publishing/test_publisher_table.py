"""Publishing of tables."""

from __future__ import annotations

import asyncio
import datetime as dt
import decimal
import json
import sys

import msgspec
import polars as pl
import pyarrow as pa
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from google.protobuf.wrappers_pb2 import BytesValue
from hypothesis import given
from hypothesis import strategies as st

from gazette_aio.message import (
    Clock,
    Publisher,
    ReadUncommittedIter,
    build_uuid,
    csv_adapter,
    json_adapter,
    protobuf_adapter,
    raw_adapter,
)
from gazette_aio.protocol.errors import ConfigurationError, ValidationError
from tests import extent
from tests.message.fakes import FakeClient
from tests.message.publishing.batch_fakes import BatchAppends

NDJSON = "application/x-ndjson"
ONE = ("one/journal", NDJSON)
PRODUCER = b"\x01\x02\x03\x04\x05\x06"
FIRST = str(build_uuid(PRODUCER, 160, 0))


async def publish(table, adapter=None, target=ONE, messages=None):
    appends = BatchAppends()
    publisher = Publisher(appends, adapter or json_adapter(), producer=PRODUCER, clock=Clock())
    if messages is None:
        await publisher.publish_committed_batch(target, table=table)
    else:
        await publisher.publish_committed_batch(target, messages)
    return {journal: bytes(content) for journal, content in appends.journals.items()}


async def members(array):
    """Return the member which each value of a column becomes, as text of JSON."""
    column = pa.table({"x": array})
    lines = (await publish(column))["one/journal"].splitlines()
    sliced = (await publish(column[1:]))["one/journal"].splitlines()
    found = [line.partition(b',"x":')[2][:-1].decode() for line in lines]
    assert [line.partition(b',"x":')[2][:-1].decode() for line in sliced] == found[1:]
    return found


UTC = dt.UTC
NS = 1_714_564_800_000_000_001


@pytest.mark.parametrize(
    ("array", "wanted"),
    [
        (pa.array([2**64 - 1, None], pa.uint64()), ["18446744073709551615", "null"]),
        (pa.array([-(2**63), 0], pa.int64()), ["-9223372036854775808", "0"]),
        (pa.array([True, None, False]), ["true", "null", "false"]),
        (pa.array([1.0, None, 1e300, -0.0, 0.1]), ["1.0", "null", "1e300", "-0.0", "0.1"]),
        (pa.array([0.1, 3, None], pa.float32()), ["0.1", "3.0", "null"]),
        (pa.nulls(2), ["null", "null"]),
        (pa.array(["é", 'a"b\n', None, ""]), ['"é"', '"a\\"b\\n"', "null", '""']),
        (pa.array(["a", None, "b"], pa.large_string()), ['"a"', "null", '"b"']),
        (pa.array(["a", None], pa.string_view()), ['"a"', "null"]),
        (pa.array([b"\xff\x00", None]), ['"/wA="', "null"]),
        (pa.array([b"\xff\x00", None], pa.binary_view()), ['"/wA="', "null"]),
        (pa.array([b"abc", None], pa.binary(3)), ['"YWJj"', "null"]),
        (
            pa.array([decimal.Decimal("1.50"), None], pa.decimal128(5, 2)),
            ['"1.50"', "null"],
        ),
        (pa.array([NS, None], pa.timestamp("ns")), ['"2024-05-01T12:00:00.000000001"', "null"]),
        (
            pa.array([0, -1], pa.timestamp("us", "Europe/Berlin")),
            ['"1970-01-01T00:00:00.000000Z"', '"1969-12-31T23:59:59.999999Z"'],
        ),
        (
            pa.array([1, 0], pa.timestamp("ms", "UTC")),
            [f'"1970-01-01T00:00:00.00{n}Z"' for n in (1, 0)],
        ),
        (pa.array([0, 60], pa.timestamp("s")), ['"1970-01-01T00:00:00"', '"1970-01-01T00:01:00"']),
        (pa.array([0, None], pa.date32()), ['"1970-01-01"', "null"]),
        (pa.array([86_400_000, None], pa.date64()), ['"1970-01-02"', "null"]),
        (pa.array([1, None], pa.time64("ns")), ['"00:00:00.000000001"', "null"]),
        (pa.array([61, None], pa.time32("s")), ['"00:01:01"', "null"]),
        (
            pa.array([-1_500_000, None, 86_400_000_000, 0], pa.duration("us")),
            ['"-PT1.500000S"', "null", '"PT86400S"', '"PT0S"'],
        ),
        (pa.array([[1, None], None, []]), ["[1,null]", "null", "[]"]),
        (pa.array([[1.5], None, [2]], pa.large_list(pa.float32())), ["[1.5]", "null", "[2.0]"]),
        (pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2)), ["[1,2]", "null", "[3,4]"]),
        (pa.array([[1], None, [], [2]], pa.list_view(pa.int8())), ["[1]", "null", "[]", "[2]"]),
        (
            pa.array([{"a": 1, "b": None}, None, {"a": None, "b": ["x"]}]),
            ['{"a":1,"b":null}', "null", '{"a":null,"b":["x"]}'],
        ),
        (
            pa.array([[("a", 1), ("b", None)], None, []], pa.map_(pa.string(), pa.int8())),
            ['{"a":1,"b":null}', "null", "{}"],
        ),
        (
            pa.array([[(1, "x")], [(2, "y")]], pa.map_(pa.int8(), pa.string())),
            ['{"1":"x"}', '{"2":"y"}'],
        ),
        (pa.array(["a", None, "b", "a"]).dictionary_encode(), ['"a"', "null", '"b"', '"a"']),
        (pa.RunEndEncodedArray.from_arrays([2, 3], ["x", None]), ['"x"', '"x"', "null"]),
        (pa.array([{}, {}], pa.struct([])), ["{}", "{}"]),
        (pa.DictionaryArray.from_arrays([1, 1], [float("nan"), 1.0]), ["1.0", "1.0"]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
async def test_values(array, wanted):
    assert await members(array) == wanted
    for text in wanted:
        json.loads(text)


plain = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**63), 2**63 - 1) | st.none(),
        "text": st.text(st.characters(codec="utf-8")) | st.none(),
        "amount": st.floats(allow_nan=False, allow_infinity=False) | st.none(),
        "ok": st.booleans() | st.none(),
        "day": st.dates() | st.none(),
        "raw": st.binary() | st.none(),
        "tags": st.lists(st.text(st.characters(codec="utf-8"))) | st.none(),
    }
)
SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "text": pa.string(),
        "amount": pa.float64(),
        "ok": pa.bool_(),
        "day": pa.date32(),
        "raw": pa.binary(),
        "tags": pa.list_(pa.string()),
    }
)


@extent.examples(15)
@given(st.lists(plain, min_size=1, max_size=5), st.booleans())
def test_a_table_is_what_its_rows_are_as_dicts(rows, chunked):
    rows = [{name: row[name] for name in SCHEMA.names} for row in rows]
    table = pa.Table.from_pylist(rows, SCHEMA)
    if chunked:
        table = pa.concat_tables([table[:1], table[1:]])
    assert asyncio.run(publish(table)) == asyncio.run(publish(None, messages=rows))
    frame = pl.from_arrow(table)
    assert asyncio.run(publish(frame)) == asyncio.run(publish(None, messages=rows))


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (pa.array([0.0] * 3 + [float("nan")]), "row 3, column 'x': nan"),
        (pa.array([0.0] * 3 + [float("-inf")], pa.float32()), "row 3, column 'x': -inf"),
        (pa.array([[], [1.0, 2.0], [], [float("inf")]]), "row 3, column 'x': inf"),
        (pa.array([{"y": 1.0}] * 3 + [{"y": float("nan")}]), "row 3, column 'x': nan"),
        (pa.array([0, 0, 0, 2**40], pa.timestamp("s")), "row 3, column 'x': timestamp"),
        (
            pa.array(
                [[], [], [], [(1.0, 1), (2.0, 2), (float("inf"), 3)]],
                pa.map_(pa.float64(), pa.int8()),
            ),
            "row 3, column 'x': inf",
        ),
        (
            pa.DictionaryArray.from_arrays([1, 1, 1, 0], [float("nan"), 1.0]),
            "row 3, column 'x': nan",
        ),
        (
            pa.DictionaryArray.from_arrays(
                pa.array([0, 0, 0, 7], pa.int8()), pa.array([1]), safe=False
            ),
            "column 'x': ",
        ),
        (pa.array([0, 0, 0, 86_400], pa.int32()).view(pa.time32("s")), "column 'x': "),
        (
            pa.ListArray.from_arrays(
                [0, 1], pa.RunEndEncodedArray.from_arrays([1], pa.array(["x"]))
            ),
            "column 'x': ",
        ),
        (
            pa.array([[], [], [], [("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int8())),
            "row 3, column 'x': key \"a\" is there twice",
        ),
        (pa.array([(1, 2, 3)] * 4, pa.month_day_nano_interval()), "column 'x': month_day_nano"),
        (
            pa.Array.from_buffers(
                pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")]
            ),
            "column 'x': ",
        ),
    ],
)
async def test_values_which_json_cannot_hold(array, reason):
    with pytest.raises(ValidationError) as raised:
        await publish(pa.table({"x": array}))
    assert reason in str(raised.value)
    # Rows keep their numbers where they go to several journals.
    if len(array) == 4 and "row" in reason and "timestamp" not in reason:
        table = pa.table({"x": array, "_journal": ["part/0", "part/1"] * 2})
        with pytest.raises(ValidationError) as raised:
            await publish(table, target=lambda row: (row["_journal"], NDJSON))
        assert reason in str(raised.value)


async def test_rows_are_mapped_as_dicts():
    table = pa.table({"v": range(1000), "_journal": ["part/0", "part/1"] * 500})
    found = await publish(table, target=lambda row: (row["_journal"], NDJSON))
    for index in (0, 1):
        lines = found[f"part/{index}"].splitlines()
        assert [json.loads(line)["v"] for line in lines] == list(range(index, 1000, 2))
        assert b"_journal" not in lines[0]


async def test_what_was_read_can_be_published():
    table = pa.table(
        {
            "_journal": ["a"] * 2,
            "_begin": [0] * 2,
            "_end": [1] * 2,
            "_timestamp": pa.array([0] * 2, pa.timestamp("us", "UTC")),
            "_clock": [0] * 2,
            "_producer": pa.array([b"abcdef"] * 2, pa.binary(6)),
            "_flags": [0] * 2,
            "_value": [b'{"_meta":{"uuid":"%b","k":1},"v":1}' % FIRST.encode(), b'{"v":2}'],
        }
    )
    lines = (await publish(table))["one/journal"].splitlines()
    assert json.loads(lines[0]) == {"_meta": {"uuid": FIRST, "k": 1}, "v": 1}
    second = str(build_uuid(PRODUCER, 320, 0))
    assert json.loads(lines[1]) == {"_meta": {"uuid": second}, "v": 2}
    assert (await publish(table, raw_adapter("_meta.uuid")))["one/journal"].splitlines() == lines
    # As columns of the document.
    table = table.drop_columns(["_value"]).append_column("v", [[1, 2]])
    lines = (await publish(table))["one/journal"].splitlines()
    assert [json.loads(line) for line in lines] == [
        {"_meta": {"uuid": FIRST}, "v": 1},
        {"_meta": {"uuid": second}, "v": 2},
    ]


@pytest.mark.parametrize("value", [b"[1]", b'{"a":\n1}', None, 7])
async def test_values_which_are_no_messages(value):
    with pytest.raises((ValidationError, msgspec.DecodeError)) as raised:
        await publish(pa.table({"_value": [value]}))
    assert raised.value.__notes__


async def test_columns_which_hold_the_uuid_are_replaced():
    table = pa.table({"v": [1], "_meta": [{"k": 1, "uuid": "old"}]})
    (line,) = (await publish(table))["one/journal"].splitlines()
    assert line.decode() == f'{{"v":1,"_meta":{{"k":1,"uuid":"{FIRST}"}}}}'
    table = pa.table({"uuid": pa.nulls(1), "v": [1]})
    (line,) = (await publish(table, json_adapter(dict, "uuid")))["one/journal"].splitlines()
    assert line.decode() == f'{{"uuid":"{FIRST}","v":1}}'


async def test_records_of_csv():
    table = pa.table(
        {
            "a": ["x,y", None],
            "b": [1, None],
            "c": pa.array([0, None], pa.timestamp("s")),
            "d": [1.0, None],
        }
    )
    found = await publish(table, csv_adapter(uuid_column=1), ("one/journal", "text/csv"))
    assert found["one/journal"].decode().splitlines() == [
        f'"x,y",{FIRST},1,1970-01-01T00:00:00,1.0',
        f",{build_uuid(PRODUCER, 320, 0)},,,",
    ]
    # Text is as it is, also that of a dictionary.
    table = pa.table({"a": pa.array(['a"b', "c\\d", None, '"']).dictionary_encode()})
    found = await publish(table, csv_adapter(uuid_column=1), ("one/journal", "text/csv"))
    fields = [record.rpartition(",")[0] for record in found["one/journal"].decode().splitlines()]
    assert fields == ['"a""b"', "c\\d", "", '""""']
    # Columns may all be left out.
    table = pa.table({"_journal": ["a", "b"]})
    found = await publish(table, csv_adapter(), ("one/journal", "text/csv"))
    assert found["one/journal"].decode().splitlines()[0] == FIRST
    assert found["one/journal"].count(b"\n") == 2
    values = pa.table({"_value": [b"old,a", b"old,b"]})
    found = await publish(values, csv_adapter(), ("one/journal", "text/csv"))
    assert found["one/journal"].splitlines()[0].decode() == f"{FIRST},a"


async def test_messages_of_protobuf():
    adapter = protobuf_adapter(BytesValue, "value")
    fixed = ("one/journal", "application/x-protobuf-fixed")
    wanted = await publish(None, adapter, fixed, [BytesValue()])
    assert await publish(pa.table({"value": [b"old"]}), adapter, fixed) == wanted
    assert await publish(pa.table({"_value": [b""]}), adapter, fixed) == wanted
    with pytest.raises(ValueError, match="seconds"):
        await publish(pa.table({"seconds": [1]}), adapter, fixed)
    with pytest.raises(ConfigurationError):
        protobuf_adapter(Timestamp, "seconds")


async def test_tables_which_cannot_be_published(monkeypatch):
    assert await publish(pa.table({"x": pa.array([], pa.int8())})) == {}
    batch = pa.record_batch({"x": [1]})
    assert (await publish(batch)) == (await publish(pa.table({"x": [1]})))
    with pytest.raises(ConfigurationError, match="not a table"):
        await publish(object())
    with pytest.raises(ConfigurationError, match="two columns"):
        await publish(pa.table([[1], [2]], ["x", "x"]))
    with pytest.raises(ConfigurationError, match="beside _value"):
        await publish(pa.table({"_value": [b"{}"], "key": [1]}))
    with pytest.raises(ValidationError, match="table="):
        await publish(None, messages=batch)
    with pytest.raises(ConfigurationError, match="needs a table with no column but _value"):
        await publish(pa.table({"x": [1]}), raw_adapter())
    publisher = Publisher(BatchAppends(), json_adapter())
    with pytest.raises(ValidationError, match="either messages or a table"):
        await publisher.publish_committed_batch(ONE, [{}], table=batch)
    for module in ("publishing.table_rows", "columns.pyarrow_api"):
        monkeypatch.delitem(sys.modules, f"gazette_aio.message.{module}")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigurationError, match=r"gazette-aio\[arrow\]"):
        await publish(batch)


@pytest.mark.parametrize("levels", [600, 1500])
async def test_a_column_nested_too_deeply(levels):
    values = pa.array([1])
    for _ in range(levels):
        values = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), values)
    table = pa.table({"x": values})
    for adapter in (json_adapter(), csv_adapter()):
        with pytest.raises(ValidationError, match="column 'x': it's nested too deeply"):
            await publish(table, adapter)
    publisher = Publisher(BatchAppends(), json_adapter())
    with pytest.raises(ValidationError, match="too deeply"):
        await publisher.publish_uncommitted_batch(lambda _: ONE, table=table)


def failing_batches():
    yield pa.record_batch({"x": [1]})
    raise ZeroDivisionError("broken off")


async def test_a_table_which_breaks_off():
    schema = pa.schema({"x": pa.int64()})
    with pytest.raises(ConfigurationError, match="broken off"):
        await publish(pa.RecordBatchReader.from_batches(schema, failing_batches()))


async def test_a_table_of_tiny_chunks():
    table = pa.table({"v": range(3000), "s": ["x", None, "z"] * 1000})
    tiny = pa.concat_tables([table[row : row + 1] for row in range(3000)])
    assert await publish(tiny) == await publish(table)


async def test_long_rows():
    rows = [[number / 7 for number in range(5000)]] * 300
    table = pa.table({"x": rows})
    assert await publish(table) == await publish(None, messages=[{"x": row} for row in rows])


async def test_what_arrow_has_read_is_published_as_it_was():
    table = pa.table({"v": range(100), "t": ["a", None] * 50, "f": [0.5, 1e300] * 50})
    first = await publish(table)
    client = FakeClient({"one/journal": NDJSON})
    client.journals["one/journal"] += first["one/journal"]
    for schema in (None, pa.schema({"v": pa.int64(), "t": pa.string(), "f": pa.float64()})):
        async with ReadUncommittedIter(
            "one/journal", json_adapter(), client=client, block=False
        ) as messages:
            batches = [batch async for batch in messages.arrow(schema)]
        again = await publish(pa.Table.from_batches(batches))
        assert again == first
