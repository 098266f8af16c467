"""Queries of undecoded and typed rows, beside the same ones of Spark's source of Kafka."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.harness import measure
from benchmarks.peers.kafka import bootstrap, create_topic
from benchmarks.spark.content import SCHEMA
from benchmarks.spark.queries import load, rate, warm
from benchmarks.spark.reads import RAW, TYPED
from benchmarks.spark.world import ONE, PARTS, ROWS, world

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from pyspark.sql import DataFrame

    from benchmarks.harness import Subject


def topic(partitions: int) -> DataFrame:
    """Return the rows of a topic, which has all rows after the first call."""
    name = f"rows-{partitions}"
    given = {"kafka.bootstrap.servers": bootstrap()}
    if name not in _filled:
        create_topic(name, partitions)
        rows = load(**RAW, journals=ONE).selectExpr("_value AS value")
        rows.write.format("kafka").options(**given, topic=name).save()
        _filled.add(name)
    source = {"subscribe": name, "startingOffsets": "earliest", "endingOffsets": "latest"}
    return world().spark.read.format("kafka").options(**given, **source).load()


_filled: set[str] = set()


async def count(journals: list[str]) -> AsyncGenerator[Subject]:
    """Compare counts of undecoded rows."""
    partitions = len(journals)
    assert topic(partitions).count() >= ROWS
    figure = rate(lambda: load(**RAW, journals=",".join(journals)).groupBy().count())
    async with warm(figure, rate(lambda: topic(partitions).groupBy().count())) as subject:
        yield subject


async def grouped() -> AsyncGenerator[Subject]:
    """Compare sums by group of typed rows."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - who lists measures may not have it.

    def sums(rows: DataFrame) -> DataFrame:
        return rows.groupBy("kind").agg(f.count("*"), f.sum("amount"))

    def of_kafka() -> DataFrame:
        rows: Any = topic(1)
        decoded = rows.select(f.from_json(rows["value"].cast("string"), SCHEMA).alias("row"))
        return sums(decoded.select("row.*"))

    async with warm(
        rate(lambda: sums(load(SCHEMA, **TYPED, journals=ONE))), rate(of_kafka)
    ) as subject:
        yield subject


for _name, _goal, _journals in (("count", 2.5, [ONE]), ("six", 3.0, PARTS)):
    measure(
        f"spark.kafka.{_name}",
        goal=_goal,
        unit="row/s",
        rounds=3,
        about=f"a count of undecoded rows of {len(_journals)} journals, against Spark's"
        " source of Kafka of as many partitions",
    )(partial(count, _journals))
measure(
    "spark.kafka.typed",
    goal=4.0,
    unit="row/s",
    rounds=3,
    about="sums by group of typed committed rows of one journal, against from_json of Spark's"
    " source of Kafka of one partition",
)(grouped)
