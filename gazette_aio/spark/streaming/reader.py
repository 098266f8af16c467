"""Common part of the readers of streams.

Spark makes a reader for each run of a query in a process which plans all batches and lives as long
as the run. It makes another reader to pickle it for the tasks, which only call `read()`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from gazette_aio.spark import bridge
from gazette_aio.spark.reading.partitions import read_partition
from gazette_aio.spark.streaming.planner import StreamPlanner

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from gazette_aio.spark.options import SourceOptions
    from gazette_aio.spark.reading.task import Partition


class BaseStreamReader(DataSourceStreamReader):
    """Base of the readers for all versions of Spark.

    Args:
        options: Options of the source.
        schema: Exact Arrow schema of the rows.
    """

    _planner_type: ClassVar[type[StreamPlanner]] = StreamPlanner

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self.options = options
        self.schema = schema
        self._planner = self._make_planner()

    def _make_planner(self) -> StreamPlanner:
        return self._planner_type(self.options, self.schema)

    def __reduce__(self) -> tuple[Any, ...]:
        # The planner's state stays in the process which plans.
        return type(self), (self.options, self.schema)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name.
        """Return the begin of a new query.

        Raises:
            ConfigurationError: A named journal doesn't exist, or an offset is out of bounds.
            GazetteError: An RPC failed.
        """
        return bridge.run(self._planner.initial()).to_json()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        """Return the partitions of a batch, one per task.

        Raises:
            DataLossError: Content is lost.
            ConfigurationError: The query can't continue from `start` with these options.
            GazetteError: An RPC failed.
        """
        planned = bridge.run(self._planner.partitions(start, end))
        return [InputPartition(partition) for partition in planned]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition.

        Raises:
            GazetteError: Journals can't be read, or content is lost or malformed.
        """
        tasks: Partition | None = None if partition is None else partition.value
        return read_partition(tasks or (), self.options, self.schema)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Do nothing: brokers don't keep the positions of readers.

        Spark calls this when it plans the next batch, and not for the last batch of a run.
        """

    def stop(self) -> None:
        """Drop content which was read ahead.

        The process ends after this, with its clients.
        """
        bridge.run(self._planner.aclose())
        self._planner = self._make_planner()
