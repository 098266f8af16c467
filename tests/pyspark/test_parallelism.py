"""Parallelism of the session, as planners of Spark find it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from gazette_aio.spark.planning.parallelism import session_parallelism


class _Reader(DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(session_parallelism())]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any]]:
        yield (partition.value,)


class ParallelismSource(DataSource):
    """A row with the parallelism which the planner found."""

    @classmethod
    def name(cls) -> str:
        return "parallelism"

    def schema(self) -> str:
        return "found INT"

    def reader(self, schema: Any) -> DataSourceReader:
        return _Reader()


def test_planners_know_the_parallelism_of_the_session(spark: Any) -> None:
    spark.dataSource.register(ParallelismSource)
    (row,) = spark.read.format("parallelism").load().collect()
    assert row["found"] == spark.sparkContext.defaultParallelism
