"""Values of Spark which a sink publishes, and a source reads as they were."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal

import pyarrow as pa
import pytest

from gazette_aio.message.uuid import OUTSIDE_TXN, Clock, ProducerID
from gazette_aio.protocol.errors import FramingError
from gazette_aio.spark.options import SinkOptions
from gazette_aio.spark.sink.rows import RowEncoder, classify_rows
from tests.spark.messages import CSV, NDJSON, Journal, spark_schema

UTC = dt.UTC
OPTIONS = SinkOptions.parse({"brokers": "http://a:1", "journal": "ab/cd"}, streaming=False)
SIMPLE = {
    "boolean": [True, False],
    "byte": [-128, 127],
    "short": [-(2**15), 2**15 - 1],
    "integer": [-(2**31), 2**31 - 1],
    "long": [-(2**63), 2**63 - 1, 2**53 + 1],
    "float": [1.5, -0.0, 3.4028234663852886e38, 1e-45, 0.10000000149011612],
    "double": [1e308, 5e-324, -0.0, 0.1, 1e22, 123456789012345680.0],
    "decimal(10,2)": [Decimal("1.50"), Decimal("-99999999.99"), Decimal("0.00")],
    "decimal(38,18)": [Decimal("12345678901234567890.123456789012345678")],
    "decimal(38,0)": [Decimal("9" * 38), Decimal("-" + "9" * 38)],
    "decimal(38,38)": [Decimal("1e-38")],
    "date": [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1970, 1, 1)],
    "timestamp": [
        dt.datetime(1, 1, 1, tzinfo=UTC),
        dt.datetime(1969, 12, 31, 23, 59, 59, 1, tzinfo=UTC),
        dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    ],
    "time(6)": [dt.time(0, 0), dt.time(23, 59, 59, 999999), dt.time(1, 2, 3)],
    "interval day to second": [
        dt.timedelta(0),
        dt.timedelta(days=-3, microseconds=1),
        dt.timedelta(days=9999, seconds=3, microseconds=999999),
    ],
    "timestamp_ntz": [dt.datetime(1, 1, 1), dt.datetime(2024, 2, 29, 1, 2, 3, 4)],  # noqa: DTZ001
}
TEXTS = ['a\nb"\\\t', "é\U0001f600\x00\x1f\x7f\u2028", "null"]


def array(element):
    return {"type": "array", "elementType": element, "containsNull": True}


def mapping(value, key="string"):
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


def struct(**members):
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in members.items()
    ]
    return {"type": "struct", "fields": fields}


def read_back(kind, values, content_type):
    """What a source reads of the values which a sink published, and what these were."""
    schema = spark_schema(("v", kind))
    rows = pa.record_batch([pa.array(values, schema.field(0).type)], schema=schema)
    encoder = RowEncoder(classify_rows(schema), OPTIONS, None, ProducerID(b"\x01abcde"))
    target, clock = ("ab/cd", content_type), Clock(0)
    ((_, parts),) = encoder.encode(rows, {target: range(len(values))})
    content = b"".join(encoder.stamp(target, part, clock, OUTSIDE_TXN)[1] for part in parts)
    found = Journal(schema, content_type, mode="FAILFAST").read(content)
    return repr([row["v"] for row in found]), repr(rows.to_pydict()["v"])


@pytest.mark.parametrize("content_type", [NDJSON, CSV])
@pytest.mark.parametrize("kind", SIMPLE)
def test_simple_values(kind, content_type):
    found, expected = read_back(kind, [*SIMPLE[kind], None], content_type)
    assert found == expected


@pytest.mark.parametrize("kind", [name for name in SIMPLE if name not in ("float", "double")])
def test_keys_of_maps(kind):
    values = [[(key, number) for number, key in enumerate(SIMPLE[kind])], [], None]
    found, expected = read_back(mapping("long", kind), values, NDJSON)
    assert found == expected
    nested = array(mapping(mapping("long", kind), "binary"))
    found, expected = read_back(nested, [[[(b"\xff", values[0])], None], []], NDJSON)
    assert found == expected


def test_names_that_are_the_same_key():
    schema = spark_schema(("v", mapping("long", "integer")))
    journal = Journal(schema, NDJSON, mode="DROPMALFORMED")
    lines = b'{"v":{"1":1}}\n{"v":{"1":1,"01":2}}\n{"v":{"x":1}}\n{"v":{"2":null}}\n'
    assert [row["v"] for row in journal.read(lines)] == [[(1, 1)], [(2, None)]]
    with pytest.raises(FramingError, match="two names of a map are the same key"):
        Journal(schema, NDJSON, mode="FAILFAST").read(lines)


@pytest.mark.parametrize(("kind", "good", "bad"), [
    (struct(a="long"), [{"a": 1}, None], ['{"a":null}', "{}"]),
    (array("long"), [[1], [], None], ["[1,null]", "[null]"]),
    (mapping("long"), [[("x", 1)], None], ['{"x":null}', '{"y":1,"x":null}']),
    (
        array(struct(a=array("string"), b=mapping(struct(c="date"), "long"))),
        [[{"a": ["x"], "b": [(1, {"c": dt.date(2024, 1, 1)})]}], [], None],
        ['[{"a":["x",null],"b":{}}]', '[{"a":[],"b":{"1":{}}}]', '[{"a":[]}]', "[null]"],
    ),
])  # fmt: skip
def test_nested_values_that_are_not_null(kind, good, bad):
    required = json.loads(
        json.dumps(kind)
        .replace('"nullable": true', '"nullable": false')
        .replace('ContainsNull": true', 'ContainsNull": false')
        .replace('containsNull": true', 'containsNull": false')
    )
    found, expected = read_back(required, good, NDJSON)
    assert found == expected
    journal = Journal(spark_schema(("v", required)), NDJSON, mode="DROPMALFORMED")
    content = "".join(f'{{"v":{text}}}\n' for text in [*bad, "null", *bad]).encode()
    assert journal.read(content) == [{"v": None}]
    with pytest.raises(FramingError, match=r"column 'v.*': there's no value, or null"):
        Journal(spark_schema(("v", required)), NDJSON, mode="FAILFAST").read(content)


def test_texts():
    for content_type in (NDJSON, CSV):
        found, expected = read_back("string", ["", *TEXTS], content_type)
        assert found == expected
    # Fields of CSV are never null.
    found, expected = read_back("string", [None, "a\r\n"], NDJSON)
    assert found == expected
    assert read_back("string", [None, "a\r\n"], CSV)[0] == repr(["", "a\r\n"])


@pytest.mark.parametrize(("kind", "values"), [
    ("binary", [b"", b"\x00\xff\n", None]),
    (array("integer"), [[1, None, 2], [], None]),
    (array(array("string")), [[["a", None], [], None], None]),
    (mapping("long"), [[("a", 1), ("b", None)], [], None]),
    (mapping(mapping("integer")), [[("", [("x", 1)])], None]),
    (
        struct(a="integer", b=array(struct(c="timestamp", d="binary"))),
        [
            {"a": 1, "b": [{"c": dt.datetime(2024, 1, 1, tzinfo=UTC), "d": b"x"}, None]},
            {"a": None, "b": None},
            None,
        ],
    ),
])  # fmt: skip
def test_values_which_only_json_holds(kind, values):
    found, expected = read_back(kind, values, NDJSON)
    assert found == expected
