"""Spark's types as exact Arrow types, and what columns are filled from."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pyarrow as pa
import pytest

from gazette_aio.protocol.errors import ConfigurationError
from gazette_aio.spark.types import (
    RESERVED,
    PartitionColumn,
    classify,
    default_schema,
    parse_schema,
)


def field(name: str, kind: Any, nullable: bool = True, **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": metadata}


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def arrow(*fields: dict[str, Any]) -> pa.Schema:
    return parse_schema(json.dumps(struct(*fields)))


@pytest.mark.parametrize(
    ("spark", "expected"),
    [
        ("time(0)", pa.time64("ns")),
        ("interval hour", pa.duration("us")),
        ({"type": "udt", "class": "x.Y", "pyClass": "y", "sqlType": "double"}, pa.float64()),
    ],
)
def test_a_type_has_its_arrow_type(spark: Any, expected: pa.DataType) -> None:
    schema = arrow(field("a", spark), field("b", spark, False))
    assert schema.equals(pa.schema([pa.field("a", expected), pa.field("b", expected, False)]))


def test_nothing_but_null_is_of_type_void() -> None:
    assert arrow(field("a", "void")) == pa.schema([pa.field("a", pa.null())])
    with pytest.raises(ConfigurationError, match="column 'a': VOID can't be NOT NULL"):
        arrow(field("a", "void", False))


def test_metadata_of_spark_is_dropped() -> None:
    assert arrow(field("a", "string", __CHAR_VARCHAR_TYPE_STRING="varchar(3)")) == pa.schema(
        [pa.field("a", pa.string())]
    )


@pytest.mark.parametrize(
    ("spark", "text"),
    [
        ("variant", "type VARIANT isn't supported: use STRING"),
        ("char(3)", "type CHAR\\(3\\) isn't supported: declare it STRING"),
        ("interval year to month", "isn't supported: use STRING"),
        ("geometry(OGC:CRS84)", "isn't supported: read it as BINARY"),
        ("nonsense", "type NONSENSE isn't supported$"),
        ("decimal(39,0)", "DECIMAL\\(39,0\\)"),
        ({"type": "array"}, "isn't a type of Spark"),
        (7, "isn't a type of Spark"),
    ],
)
def test_an_unsupported_type_is_told_with_its_place(spark: Any, text: str) -> None:
    inner = {"type": "array", "elementType": struct(field("x", spark)), "containsNull": True}
    with pytest.raises(ConfigurationError, match=rf"^column 'a\[\].x': .*{text}"):
        arrow(field("a", inner))


@pytest.mark.parametrize(
    "text",
    ["", "{", '"integer"', "[]", "null", '{"type": "struct"}', '{"fields": []}', "[" * 100_000],
)
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_schema(text)


def test_the_default_schema_has_labels_behind_the_message() -> None:
    columns = (PartitionColumn("region", "app/region"), PartitionColumn("tags", "tag", True))
    schema = default_schema(columns)
    assert schema.names == ["_value", "_journal", "_begin", "_end", "_timestamp", "region", "tags"]
    assert schema.field("_timestamp").type == pa.timestamp("us", "UTC")
    assert schema.field("tags").type == pa.list_(pa.field("element", pa.string()))
    assert all(schema.field(name).nullable for name in schema.names)
    found = classify(schema, partition_columns=columns)
    assert found.labels == columns
    assert found.reserved == ("_value", "_journal", "_begin", "_end", "_timestamp")
    assert (len(found.documents), found.corrupt) == (0, None)


def test_columns_are_told_apart() -> None:
    schema = arrow(
        field("id", "long", False),
        field("_end", "long"),
        field("region", {"type": "array", "elementType": "string", "containsNull": True}),
        field("_corrupt_record", "string"),
        field("part", "string"),
        field("name", "string"),
        field("_flags", "integer"),
    )
    columns = (
        PartitionColumn("part", "app/part", is_array=True),
        PartitionColumn("region", "app/region"),
        PartitionColumn("unused", "app/unused"),
    )
    found = classify(schema, partition_columns=columns)
    assert found.schema is schema
    assert found.reserved == ("_end", "_flags")
    # The schema decides what the column holds.
    assert found.labels == (
        PartitionColumn("region", "app/region", is_array=True),
        PartitionColumn("part", "app/part", is_array=False),
    )
    assert found.documents == pa.schema([schema.field("id"), schema.field("name")])
    assert found.corrupt == "_corrupt_record"
    assert pickle.loads(pickle.dumps(found)) == found


def test_the_column_of_bad_records_has_the_name_it_was_given() -> None:
    schema = arrow(field("bad", "string"), field("_corrupt_record", "integer"))
    found = classify(schema, corrupt_column="bad")
    assert found.corrupt == "bad"
    assert found.documents.names == ["_corrupt_record"]


@pytest.mark.parametrize("name", [*RESERVED, "_corrupt_record", "region"])
def test_special_columns_have_their_types(name: str) -> None:
    columns = (PartitionColumn("region", "app/region"),)
    with pytest.raises(ConfigurationError, match=rf"column '{name}' must be .*, and not DOUBLE"):
        classify(arrow(field(name, "double")), partition_columns=columns)
    with pytest.raises(ConfigurationError, match=rf"must be spelt '{name}'"):
        classify(arrow(field(name.upper(), "double")), partition_columns=columns)


def test_errors_speak_of_spark_types() -> None:
    with pytest.raises(ConfigurationError, match=r"'_begin' must be BIGINT, and not INT$"):
        classify(arrow(field("_begin", "integer")))
    numbers = {"type": "array", "elementType": "short", "containsNull": True}
    with pytest.raises(
        ConfigurationError,
        match=r"'part' must be STRING or ARRAY<STRING>, and not ARRAY<SMALLINT>$",
    ):
        classify(arrow(field("part", numbers)), partition_columns=(PartitionColumn("part", "p"),))
    with pytest.raises(ConfigurationError, match="can't be NOT NULL"):
        classify(arrow(field("_corrupt_record", "string", False)))
    with pytest.raises(ConfigurationError, match="more than one column 'a'"):
        classify(arrow(field("a", "string"), field("a", "string")))
    with pytest.raises(ConfigurationError, match="no columns"):
        classify(arrow())
