"""Choice of the reader of streams which fits the version of Spark."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from gazette_aio.spark import bridge
from gazette_aio.spark.streaming.legacy_planner import LegacyStreamPlanner
from gazette_aio.spark.streaming.reader import BaseStreamReader

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamReader

    from gazette_aio.spark.options import SourceOptions


def stream_reader(options: SourceOptions, schema: pa.Schema) -> DataSourceStreamReader:
    """Return the reader of a stream which fits this version of Spark.

    Args:
        options: What's read.
        schema: Exact Arrow schema of the rows.

    Raises:
        ConfigurationError: The schema has columns which can't be made.
    """
    if importlib.util.find_spec("pyspark.sql.streaming.datasource") is None:
        return LegacyGazetteStreamReader(options, schema)
    from gazette_aio.spark.streaming.admission import GazetteStreamReader  # noqa: PLC0415

    return GazetteStreamReader(options, schema)


class LegacyGazetteStreamReader(BaseStreamReader):
    """Reads a stream in Spark before 4.2.

    It can't tell a reader where a batch begins, nor that a run is to end: an AvailableNow run is of
    one batch. See `LegacyStreamPlanner` for what becomes of limits, and of committed messages.
    """

    _planner_type = LegacyStreamPlanner

    def latestOffset(  # type: ignore[override]  # noqa: N802 - Spark's name.
        self,
    ) -> Mapping[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return where the next batch ends.

        Raises:
            DataLossError: What was to be read is lost.
            ConfigurationError: It can't go on from where it is with these options.
            GazetteError: Brokers can't tell, or journals can't be read.
        """
        planner = self._planner
        assert isinstance(planner, LegacyStreamPlanner)
        return bridge.run(
            planner.next_end(
                max_bytes=self.options.max_bytes_per_trigger,
                max_rows=self.options.max_rows_per_trigger,
            )
        )
