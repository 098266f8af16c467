"""Schemas which samples suggest."""

from __future__ import annotations

import json
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_aio.message.framing import FixedFraming
from gazette_aio.protocol.errors import ConfigurationError
from gazette_aio.spark.rows.inference import infer_schema
from tests.spark.messages import (
    CSV,
    FIXED,
    FLIGHT,
    FLIGHT_TYPE,
    NDJSON,
    Journal,
    line,
    message_uuid,
    source_options,
)


def inferred(*documents: Any, **options: str) -> dict[str, Any]:
    """Return the types of columns of JSON documents, by their names."""
    messages = [d if isinstance(d, bytes) else json.dumps(d).encode() for d in documents]
    return columns(infer_schema(source_options(**options), NDJSON, messages))


def columns(schema: pa.Schema) -> dict[str, Any]:
    assert all(is_of_spark(field) for field in schema)
    return {field.name: field.type for field in schema}


def is_of_spark(field: pa.Field[Any]) -> bool:
    """Return whether Spark derives the same field from its own type of it."""
    kind: Any = field.type
    if not field.nullable or field.metadata is not None:
        return False
    if pa.types.is_list(kind):
        return kind.value_field.name == "element" and is_of_spark(kind.value_field)
    if pa.types.is_struct(kind):
        return all(is_of_spark(kind.field(index)) for index in range(kind.num_fields))
    return True


LONG, DOUBLE, STRING, BOOLEAN = pa.int64(), pa.float64(), pa.string(), pa.bool_()


def array(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, -1], LONG),
        ([2**63 - 1, -(2**63)], LONG),
        ([2**63], DOUBLE),
        ([10**40], DOUBLE),
        ([int(sys.float_info.max)], DOUBLE),
        ([1.5], DOUBLE),
        ([1, 1.5], DOUBLE),
        ([1.5, None, 1], DOUBLE),
        ([True, None], BOOLEAN),
        (["a", None], STRING),
        (["2020-01-01T00:00:00Z"], STRING),
        ([None], STRING),
        ([[1], [], None, [2.5]], array(DOUBLE)),
        ([[], [None]], array(STRING)),
        ([[["a"]]], array(array(STRING))),
        ([{"a": 1}, {"b": [True]}], pa.struct([("a", LONG), ("b", array(BOOLEAN))])),
        ([{"b": 1, "a": {"d": None}}], pa.struct([("a", pa.struct([("d", STRING)])), ("b", LONG)])),
    ],
    ids=lambda value: f"{value}"[:30],
)
def test_types_of_json_values(values: list[Any], kind: pa.DataType) -> None:
    assert inferred(*({"v": value} for value in values)) == {"v": kind}


@pytest.mark.parametrize(
    "values",
    [
        [1, "a"],
        [True, 1],
        ["a", ["a"]],
        [{"a": 1}, [1]],
        [[1, "a"]],
        [{}],
        [[{}]],
        [{"a": 1}, {"a": "b"}],
        [10**309],
        [[1, -(10**400)]],
    ],
    ids=lambda values: f"{values}"[:30],
)
def test_what_no_column_takes_is_left_out(values: list[Any]) -> None:
    assert inferred(*({"v": value, "w": 1} for value in values)) == {"w": LONG}


def test_columns_are_in_the_order_of_their_names() -> None:
    assert list(inferred({"b": 1, "C": 1}, {"a": 1, "é": 1})) == ["C", "a", "b", "é"]


def test_uuids_are_no_columns() -> None:
    uuid = str(message_uuid(1))
    assert list(inferred({"_meta": {"uuid": uuid}, "a": 1})) == ["a"]
    assert inferred({"_meta": {"uuid": uuid, "kind": "x"}}) == {
        "_meta": pa.struct([("kind", STRING)])
    }
    assert list(inferred({"id": uuid, "a": 1}, {"id": None}, uuid="/id")) == ["a"]
    assert list(inferred({"x": None, "a": 1}, uuid="/x/y/z")) == ["a", "x"]


def test_special_columns_are_left_out() -> None:
    document = {"_value": 1, "_Journal": 1, "_broken": 1, "Region": 1, "a": 1, "_corrupt_record": 1}
    options = {
        "partitionColumns": "region, parts array<string>",
        "columnNameOfCorruptRecord": "_broken",
    }
    assert inferred(document, **options) == {
        "_corrupt_record": LONG,
        "a": LONG,
        "region": STRING,
        "parts": array(STRING),
    }


def test_acknowledgements_and_bad_messages_are_passed_over() -> None:
    ack = json.dumps({"_meta": {"uuid": str(message_uuid(1, 2)), "ack": True}}).encode()
    bad = [
        b"",
        b"x",
        b"[1]",
        b'{"a":',
        b'{"_meta":{"uuid":"x"},"b":1}',
        b'{"_meta":7,"b":1}',
        b"\xff",
    ]
    assert inferred(ack, *bad, b"null", {"a": 1}) == {"a": LONG}


def test_depth_is_bounded() -> None:
    deep: Any = 1
    for _ in range(400):
        deep = {"x": deep}
    assert inferred({"a": 1, "deep": deep}) == {"a": LONG}
    deep = 1
    for _ in range(20):
        deep = [deep]
    assert list(inferred({"a": 1, "deep": deep})) == ["a", "deep"]
    assert inferred(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", {"b": 1}) == {"b": LONG}


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@given(
    st.lists(st.dictionaries(st.sampled_from("abc"), values, max_size=3), min_size=1, max_size=5)
)
def test_no_message_of_the_sample_is_bad(documents: list[dict[str, Any]]) -> None:
    lines = [line(n, json.dumps(d)[1:-1]) for n, d in enumerate(documents)]
    try:
        schema = infer_schema(source_options(), NDJSON, [each[:-1] for each in lines])
    except ConfigurationError:
        return
    columns(schema)
    rows = Journal(schema, mode="FAILFAST").read(b"".join(lines))
    assert len(rows) == len(documents)
    for row, document in zip(rows, documents, strict=True):
        for name, value in row.items():
            assert (value is None) == (document.get(name) is None)
            if isinstance(value, (str, bool)):
                assert value == document[name]


# CSV.


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", "-2", ""], LONG),
        (["1", "2.5"], DOUBLE),
        (["1e3"], DOUBLE),
        (["9223372036854775808"], DOUBLE),
        (["true", "false", ""], BOOLEAN),
        (["true", "1"], STRING),
        (["0", "False"], STRING),
        (["a", "1"], STRING),
        (["", ""], STRING),
        (["0x10"], STRING),
        (["2020-01-01"], STRING),
        (["\udcff"], pa.binary()),
        (["\udcff", "0x10"], pa.binary()),
    ],
    ids=str,
)
def test_types_of_csv_values(texts: list[str], kind: pa.DataType) -> None:
    records = [f"{message_uuid(n)},{text},x" for n, text in enumerate(texts)]
    messages = [record.encode("utf-8", "surrogateescape") for record in records]
    schema = infer_schema(source_options(), CSV, messages)
    assert columns(schema) == {"_c0": kind, "_c1": STRING}
    content = b"".join(message + b"\n" for message in messages)
    assert len(Journal(schema, CSV, mode="FAILFAST").read(content)) == len(texts)


def test_csv_columns_are_those_without_the_uuid() -> None:
    messages = [
        f"1,{message_uuid(1)},a".encode(),
        b"id,uuid,name",
        f"2,{message_uuid(2)},b,c".encode(),
    ]
    assert columns(infer_schema(source_options(uuid="1"), CSV, messages)) == {
        "_c0": LONG,
        "_c1": STRING,
    }


# Protobuf.


def test_protobuf_columns_are_those_of_the_type() -> None:
    options = source_options(messageType=FLIGHT_TYPE)
    schema = infer_schema(options, FIXED, [])
    airport = pa.struct([("code", STRING)])
    assert columns(schema) == {
        "number": pa.int32(),
        "other": pa.binary(),
        "serial": LONG,
        "seats": LONG,
        "ratio": pa.float32(),
        "state": STRING,
        "origin": airport,
        "stops": array(airport),
        "delays": pa.map_(STRING, pa.int32()),
        "at": pa.timestamp("us", "UTC"),
        "on_time": BOOLEAN,
    }
    flight = FLIGHT(
        stamp=message_uuid(1).bytes, number=7, state=1, delays={"a": 1}, stops=[{"code": "X"}]
    )
    content = FixedFraming().encode(flight.SerializeToString())
    (row,) = Journal(schema, FIXED, mode="FAILFAST", messageType=FLIGHT_TYPE).read(content)
    assert row["number"] == 7
    assert row["state"] == "LATE"
    assert row["delays"] == [("a", 1)]
    assert row["stops"] == [{"code": "X"}]
    named = columns(infer_schema(source_options(messageType=FLIGHT_TYPE, uuid="other"), FIXED, []))
    assert "other" not in named
    assert named["stamp"] == pa.binary()


# What has no schema.


@pytest.mark.parametrize(
    ("content_type", "options", "messages", "text"),
    [
        ("", {}, [b"x"], "inferred from messages of content type ''"),
        (NDJSON, {}, [], "no message has columns"),
        (NDJSON, {}, [b"{}", b"x", b'{"_value":1}'], "no message has columns"),
        (CSV, {"partitionColumns": "part"}, [b"a,b"], "no message has columns"),
        (FIXED, {}, [b""], "a schema of protobuf messages needs the option 'messageType'"),
    ],
)
def test_no_schema(
    content_type: str, options: dict[str, str], messages: list[bytes], text: str
) -> None:
    with pytest.raises(ConfigurationError, match=text):
        infer_schema(source_options(**options), content_type, messages)
