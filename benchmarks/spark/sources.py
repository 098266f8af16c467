"""Sources and sinks which measures compare with. Workers of Spark import this module."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Self
from unittest import mock

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from benchmarks.spark.content import ROW_BYTES
from gazette_aio.spark.options import SinkOptions, SourceOptions
from gazette_aio.spark.planning import summaries
from gazette_aio.spark.sink import publishing
from gazette_aio.spark.sink.writers import GazetteWriter
from gazette_aio.spark.source import GazetteDataSource, GazetteReader
from gazette_aio.spark.types import default_schema, parse_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.datasource import DataSourceWriter
    from pyspark.sql.types import StructType

BATCH_ROWS = 10_000


class PreparedSource(DataSource):
    """Yields one batch of rows over and over: `rows` of them in `partitions`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "prepared"

    def schema(self) -> str:
        """Return the default schema of journals."""
        return "_value BINARY, _journal STRING, _begin BIGINT, _end BIGINT, _timestamp TIMESTAMP"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader."""
        rows, partitions = int(self.options["rows"]), int(self.options["partitions"])
        return PreparedReader(rows // BATCH_ROWS, partitions)


class PreparedReader(DataSourceReader):
    """Yields batches."""

    def __init__(self, batches: int, partitions: int) -> None:
        self._batches = batches
        self._partitions = partitions

    def partitions(self) -> list[InputPartition]:
        """Return numbers of batches."""
        per, more = divmod(self._batches, self._partitions)
        return [InputPartition(per + (each < more)) for each in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batch as often as the partition says."""
        begins = range(0, BATCH_ROWS * ROW_BYTES, ROW_BYTES)
        schema = default_schema(())
        columns: list[Any] = [
            [bytes(ROW_BYTES - 1)] * BATCH_ROWS,
            ["rows/part-0"] * BATCH_ROWS,
            list(begins),
            [begin + ROW_BYTES for begin in begins],
            list(begins),
        ]
        rows = dict(zip(schema.names, columns, strict=True))
        batch = pa.RecordBatch.from_pydict(rows, schema)
        for _ in range(partition.value):
            yield batch


class UnknownSource(GazetteDataSource):
    """The source `gazette`, which doesn't remember what it found out of journals before."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "gazette_unknown"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch."""
        options = SourceOptions.parse(self.options, streaming=False)
        return UnknownReader(options, parse_schema(schema.json()))


class UnknownReader(GazetteReader):
    """Reads a batch as if it were the first one."""

    def partitions(self) -> list[InputPartition]:
        """Return what each task of Spark reads."""
        summaries.SUMMARIES.clear()
        return super().partitions()


class UnappendedSink(GazetteDataSource):
    """The sink `gazette`, but for the appends of its tasks."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "gazette_unappended"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch."""
        options = SinkOptions.parse(self.options, streaming=False)
        return UnappendedWriter(schema, options, overwrite)


class UnappendedWriter(GazetteWriter):
    """Writes a batch, but for the appends."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:  # type: ignore[override]
        """Do all that's to be done with the rows of a task before they're appended."""
        with mock.patch.object(publishing, "StrictAppendService", _NoAppends):
            return super().write(iterator)


class _NoAppends:
    pending_bytes = 0

    def __init__(self, *_args: object, **_options: object) -> None:
        pass

    def append(self, _journal: str) -> nullcontext[Self]:
        """Return itself, which appends nothing."""
        return nullcontext(self)

    def write(self, _data: bytes) -> None:
        """Do nothing."""

    def done(self) -> bool:
        """Return True: nothing is pending."""
        return True

    def __await__(self) -> Iterator[None]:
        return iter(())

    async def aclose(self) -> None:
        """Do nothing."""


SOURCES = (PreparedSource, UnknownSource, UnappendedSink)
