"""A source as Spark before 4.2 has it, in a module which workers import."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_aio.spark.options import SourceOptions
from gazette_aio.spark.source import GazetteDataSource
from gazette_aio.spark.streaming.source import LegacyGazetteStreamReader
from gazette_aio.spark.types import parse_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class LegacySource(GazetteDataSource):
    """A source whose streams aren't told where batches begin."""

    @classmethod
    def name(cls) -> str:
        return "gazette-legacy"

    def streamReader(self, schema: StructType) -> LegacyGazetteStreamReader:  # noqa: N802 - Spark's.
        options = SourceOptions.parse(self.options, streaming=True)
        return LegacyGazetteStreamReader(options, parse_schema(schema.json()))
