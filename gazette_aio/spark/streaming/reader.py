"""Common part of the readers of streams.

Spark makes a reader for each run of a query in a process which plans all batches and lives as long
as the run. It makes another reader to pickle it for the tasks, which only call `read()`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from gazette_aio.spark import bridge
from gazette_aio.spark.planning.batch import usable_cores
from gazette_aio.spark.reading.partitions import read_partition
from gazette_aio.spark.streaming.planner import StreamPlanner

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from gazette_aio.spark.options import SourceOptions
    from gazette_aio.spark.planning.tasks import Partition


class BaseStreamReader(DataSourceStreamReader):
    """What readers of all versions of Spark have in common.

    Args:
        options: What's read.
        schema: Exact Arrow schema of the rows.
    """

    _planner_type: ClassVar[type[StreamPlanner]] = StreamPlanner

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self.options = options
        self.schema = schema
        self._planner = self._make_planner()

    def _make_planner(self) -> StreamPlanner:
        return self._planner_type(self.options, self.schema, cores=usable_cores())

    def __reduce__(self) -> tuple[Any, ...]:
        # What was found out while planning stays where batches are planned.
        return type(self), (self.options, self.schema)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name.
        """Return where a new query begins.

        Raises:
            ConfigurationError: A journal which is named isn't there, or an offset out of bounds.
            GazetteError: Brokers can't tell.
        """
        return bridge.run(self._planner.initial()).to_json()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        """Return what each task of a batch reads.

        Raises:
            DataLossError: What was to be read is lost.
            ConfigurationError: It can't go on from there with these options.
            GazetteError: Brokers can't tell.
        """
        planned = bridge.run(self._planner.partitions(start, end))
        return [InputPartition(partition) for partition in planned]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition.

        Raises:
            GazetteError: Journals can't be read, content is lost, or is malformed.
        """
        tasks: Partition | None = None if partition is None else partition.value
        return read_partition(tasks or (), self.options, self.schema)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Do nothing: brokers don't keep the positions of readers.

        Spark tells of one batch when it plans the next one, and not of the last one of a run.
        """

    def stop(self) -> None:
        """Forget what was read ahead.

        The process and its clients end together, after this.
        """
        bridge.run(self._planner.aclose())
        self._planner = self._make_planner()
