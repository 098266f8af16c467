"""What the sink writes of random schemas, the source reads by the same schema."""

from __future__ import annotations

import datetime as dt
import math
import random
import struct
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import types as t

from tests import extent

NAMES = ("a", "B", "a b", "é", 'q"\\', "x.y", "_z", "null")
ALPHABET = "aZ09 \t\n\"\\/{}[]:,'\x00\x7f\u2028é\U0001f600"
KEYS = (
    t.StringType(),
    t.BooleanType(),
    t.ByteType(),
    t.IntegerType(),
    t.LongType(),
    t.DecimalType(12, 3),
    t.DateType(),
    t.TimestampType(),
    t.TimestampNTZType(),
    t.DayTimeIntervalType(),
)
SIMPLE = (
    *KEYS,
    t.ShortType(),
    t.FloatType(),
    t.DoubleType(),
    t.DecimalType(38, 18),
    t.BinaryType(),
)
COLUMNS, ROWS, DEPTH = 12, 30, 3
EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - of TIMESTAMP_NTZ.


def random_type(rng: random.Random, depth: int) -> t.DataType:
    kind = rng.choice(("simple", "array", "map", "struct")) if depth else "simple"
    if kind == "array":
        return t.ArrayType(random_type(rng, depth - 1))
    if kind == "map":
        return t.MapType(rng.choice(KEYS), random_type(rng, depth - 1))
    if kind == "struct":
        return random_struct(rng, rng.randint(1, 4), depth - 1)
    return rng.choice(SIMPLE)


def random_struct(rng: random.Random, members: int, depth: int) -> t.StructType:
    names = rng.sample(NAMES, members)
    return t.StructType([t.StructField(name, random_type(rng, depth)) for name in names])


def random_value(rng: random.Random, kind: t.DataType, *, nulls: bool = True) -> Any:
    if nulls and rng.random() < 0.2:
        return None
    match kind:
        case t.StructType():
            return tuple(random_value(rng, field.dataType) for field in kind)
        case t.ArrayType():
            return [random_value(rng, kind.elementType) for _ in range(rng.randrange(4))]
        case t.MapType():
            keys = [random_value(rng, kind.keyType, nulls=False) for _ in range(rng.randrange(4))]
            return {key: random_value(rng, kind.valueType) for key in keys}
        case t.BooleanType():
            return rng.random() < 0.5
        case t.ByteType() | t.ShortType() | t.IntegerType() | t.LongType():
            bits = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}[kind.simpleString()]
            most = (1 << (bits - 1)) - 1
            return rng.choice((-most - 1, most, 0, rng.randint(-most, most)))
        case t.DecimalType():
            unscaled = rng.choice((10**kind.precision - 1, rng.randrange(10**kind.precision)))
            sign = rng.randrange(2)
            return Decimal((sign, tuple(map(int, str(unscaled))), -kind.scale))
        case t.FloatType() | t.DoubleType():
            form = "<f" if isinstance(kind, t.FloatType) else "<d"
            (value,) = struct.unpack(form, rng.randbytes(struct.calcsize(form)))
            return value if math.isfinite(value) else -0.0
        case t.BinaryType():
            return rng.randbytes(rng.randrange(6))
        case t.StringType():
            return "".join(rng.choices(ALPHABET, k=rng.randrange(6)))
        case _:
            return random_time(rng, kind)


def random_time(rng: random.Random, kind: t.DataType) -> Any:
    # Not of all times: PySpark asks the operating system about local ones.
    since = dt.timedelta(days=rng.randint(-7000, 40_000), microseconds=rng.randrange(86400 * 10**6))
    match kind:
        case t.DateType():
            return (EPOCH + since).date()
        case t.TimestampType():
            return (EPOCH + since).replace(tzinfo=dt.UTC)
        case t.TimestampNTZType():
            return EPOCH + since
        case t.DayTimeIntervalType():
            return since
    raise AssertionError(kind)


@pytest.mark.parametrize("seed", extent.seeds(1, 12))
def test_random_schemas(spark, journals, seed):
    rng = random.Random(seed)
    fields = [t.StructField(f"c{at}", random_type(rng, DEPTH)) for at in range(COLUMNS)]
    schema = t.StructType([t.StructField("id", t.LongType()), *fields])
    rows = [(at, *(random_value(rng, field.dataType) for field in fields)) for at in range(ROWS)]
    given = spark.createDataFrame(rows, schema)
    (name,) = journals.create("one")
    target = {"brokers": journals.broker.endpoint, "journal": name}
    given.write.format("gazette").mode("append").options(**target).save()
    source = spark.read.format("gazette").options(**journals.options(mode="FAILFAST"))
    found = source.schema(given.schema).load()
    assert found.schema == given.schema
    pairs = zip(given.collect(), found.orderBy("id").collect(), strict=True)
    different = [(want, got) for want, got in pairs if repr(want) != repr(got)]
    assert not different, f"seed {seed} {schema.simpleString()}: {different[:1]}"
