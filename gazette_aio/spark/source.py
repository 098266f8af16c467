"""The data source `gazette` of Spark, and its reader of batches.

Spark makes these objects in planning processes, and pickles them to executing processes. They hold
plain data only: clients belong to the process, see `bridge`.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession, datasource
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

from gazette_aio.protocol.errors import ConfigurationError
from gazette_aio.spark import bridge
from gazette_aio.spark.connecting import spark_client
from gazette_aio.spark.options import OF_STREAMS, SinkOptions, SourceOptions, check_options
from gazette_aio.spark.planning.batch import plan_batch
from gazette_aio.spark.planning.sampling import sample_schema
from gazette_aio.spark.reading.partitions import read_partition
from gazette_aio.spark.types import default_schema, parse_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping

    import pyarrow as pa
    from pyspark.sql.datasource import (
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from gazette_aio.spark.reading.task import Partition

_logger = logging.getLogger(__name__)

_OF_STREAMS: Final = frozenset(name.lower() for name in OF_STREAMS)


@functools.cache
def _warn_of_token() -> None:
    _logger.warning("option 'token' becomes part of Spark's plans: 'tokenProvider' keeps it out")


class GazetteDataSource(DataSource):
    """Journals as a source and a sink of batches and streams: `format("gazette")`.

    Args:
        options: Texts by names in any case.

    Raises:
        ConfigurationError: An option is unknown, malformed or missing.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        check_options(options)
        if any(name.lower() == "token" for name in options):
            _warn_of_token()

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "gazette"

    def schema(self) -> StructType:
        """Return the schema of a source without a user's schema.

        Raises:
            ConfigurationError: An option contradicts another, or no schema can be inferred.
            GazetteError: Messages for the inference can't be read.
        """
        # Spark doesn't say yet whether it loads a batch or a stream.
        is_stream = any(name.lower() in _OF_STREAMS for name in self.options)
        options = SourceOptions.parse(self.options, streaming=is_stream)
        if options.infer_schema:
            found = bridge.run(_infer(options))
        else:
            found = default_schema(
                options.partition_columns, has_key=options.key_column is not None
            )
        return from_arrow_schema(found, prefer_timestamp_ntz=True)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch.

        Raises:
            ConfigurationError: An option contradicts another, or the schema has columns of
                unsupported types.
        """
        options = SourceOptions.parse(self.options, streaming=False)
        return GazetteReader(options, parse_schema(schema.json()))

    def streamReader(  # noqa: N802 - Spark's name.
        self, schema: StructType
    ) -> DataSourceStreamReader:
        """Return the reader of a stream.

        Raises:
            ConfigurationError: An option contradicts another, or PySpark is too old.
        """
        _check_streams()
        from gazette_aio.spark.streaming.source import stream_reader  # noqa: PLC0415

        options = SourceOptions.parse(self.options, streaming=True)
        return stream_reader(options, parse_schema(schema.json()))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's.
        """Return the writer of a batch."""
        from gazette_aio.spark.sink.writers import GazetteWriter  # noqa: PLC0415

        options = SinkOptions.parse(self.options, streaming=False)
        return GazetteWriter(schema, options, overwrite)

    def streamWriter(  # noqa: N802 - Spark's name.
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001 - Likewise.
    ) -> DataSourceStreamWriter:
        """Return the writer of a stream, or of one batch of a stream.

        Raises:
            ConfigurationError: An option contradicts another, or PySpark is too old.
        """
        _check_streams()
        from gazette_aio.spark.sink.writers import GazetteStreamWriter  # noqa: PLC0415

        options = SinkOptions.parse(self.options, streaming=True)
        return GazetteStreamWriter(schema, options, overwrite)


def register(spark: Any = None) -> None:
    """Register `format("gazette")` with a session.

    Needed only where Spark doesn't find the format: if `--py-files` ships the package, or if
    another module named `pyspark_*` can't be imported, which hides all of them.

    Args:
        spark: The session, possibly of Spark Connect. By default the active session.

    Raises:
        ConfigurationError: No session is active.
    """
    session = SparkSession.getActiveSession() if spark is None else spark
    if session is None:
        raise ConfigurationError("no Spark session is active: create one first, or pass it")
    try:
        session.dataSource.register(GazetteDataSource)
    except AnalysisException as error:
        # PySpark 4.0 refuses formats which it found itself.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def _check_streams() -> None:
    if not hasattr(datasource, "DataSourceStreamArrowWriter"):
        raise ConfigurationError("streams need PySpark 4.1 or newer; batches work")


async def _infer(options: SourceOptions) -> pa.Schema:
    client = await spark_client(options.connection)
    return await sample_schema(client, options)


class GazetteReader(DataSourceReader):
    """Reads a batch.

    Args:
        options: Options of the source.
        schema: Exact Arrow schema of the rows.
    """

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self.options: SourceOptions = options
        self.schema: pa.Schema = schema

    def partitions(self) -> list[InputPartition]:
        """Return the partitions of the batch as of now, one per task.

        Spark calls this once per DataFrame: later queries of the DataFrame read the same ranges.

        Raises:
            ConfigurationError: Journals don't exist, or options and schema don't fit them.
            GazetteError: An RPC failed.
        """
        planned = bridge.run(self._plan())
        return [InputPartition(partition) for partition in planned]

    async def _plan(self) -> list[Partition]:
        client = await spark_client(self.options.connection)
        return await plan_batch(client, self.options, self.schema)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition.

        Raises:
            GazetteError: Journals can't be read, or content is lost or malformed.
        """
        tasks: Partition | None = None if partition is None else partition.value
        # Without partitions, Spark makes one with the value None, and PySpark before 4.2 passes
        # None.
        return read_partition(tasks or (), self.options, self.schema)
