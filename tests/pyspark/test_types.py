"""Arrow types of Spark's types, as PySpark itself has them."""

from __future__ import annotations

import inspect
from typing import Any

import pyarrow as pa
import pytest

# Where it's missing, this module isn't imported.
from pyspark.sql import types
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from gazette_aio.spark.types import RESERVED, parse_schema

# Before PySpark 4.2, it's UTC by default.
UTC: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
)


@pytest.mark.parametrize(
    "kind",
    [
        types.BooleanType(),
        types.ByteType(),
        types.ShortType(),
        types.IntegerType(),
        types.LongType(),
        types.FloatType(),
        types.DoubleType(),
        types.DecimalType(38, 18),
        types.StringType(),
        types.StringType("UTF8_LCASE"),
        types.BinaryType(),
        types.DateType(),
        types.TimestampType(),
        types.TimestampNTZType(),
        types.DayTimeIntervalType(),
        types.NullType(),
        types.ArrayType(types.LongType(), containsNull=False),
        types.MapType(types.StringType(), types.DateType(), valueContainsNull=False),
        StructType().add("x", types.LongType(), nullable=False).add("y", types.StringType()),
        *([types.TimeType(6)] if hasattr(types, "TimeType") else []),
    ],
    ids=str,
)
def test_types_are_those_of_pyspark(kind: types.DataType) -> None:
    nested = types.ArrayType(StructType().add("a", types.MapType(types.LongType(), kind)))
    schema = StructType().add("a", kind).add("nested", nested, nullable=False)
    assert parse_schema(schema.json()).equals(to_arrow_schema(schema, **UTC), check_metadata=True)


def test_a_schema_comes_back() -> None:
    element = pa.field("element", pa.struct([pa.field("x", pa.decimal128(5, 2), False)]), False)
    schema = pa.schema(
        [
            *(pa.field(name, kind) for name, kind in RESERVED.items()),
            pa.field("list", pa.list_(element), nullable=False),
            pa.field("naive", pa.timestamp("us")),
            pa.field("void", pa.null()),
        ]
    )
    assert parse_schema(from_arrow_schema(schema, prefer_timestamp_ntz=True).json()) == schema
