"""Values of Spark which a sink publishes, and a source reads as they were."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from gazette_aio.message.uuid import OUTSIDE_TXN, Clock, ProducerID
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
    "timestamp_ntz": [dt.datetime(1, 1, 1), dt.datetime(2024, 2, 29, 1, 2, 3, 4)],  # noqa: DTZ001
}
TEXTS = ['a\nb"\\\t', "é\U0001f600\x00\x1f\x7f\u2028", "null"]


def array(element):
    return {"type": "array", "elementType": element, "containsNull": True}


def mapping(value):
    return {"type": "map", "keyType": "string", "valueType": value, "valueContainsNull": True}


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


def test_texts():
    for content_type in (NDJSON, CSV):
        found, expected = read_back("string", ["", *TEXTS], content_type)
        assert found == expected
    # Fields of CSV are never null, and their line ends are one character.
    found, expected = read_back("string", [None, "a\r\n"], NDJSON)
    assert found == expected
    assert read_back("string", [None, "a\r\n"], CSV)[0] == repr(["", "a\n"])


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
