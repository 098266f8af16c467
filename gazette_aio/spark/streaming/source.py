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
    """Return the reader of a stream for this version of Spark.

    Args:
        options: Options of the source.
        schema: Exact Arrow schema of the rows.

    Raises:
        ConfigurationError: The schema has unsupported columns.
    """
    if importlib.util.find_spec("pyspark.sql.streaming.datasource") is None:
        return LegacyGazetteStreamReader(options, schema)
    from gazette_aio.spark.streaming.admission import GazetteStreamReader  # noqa: PLC0415

    return GazetteStreamReader(options, schema)


class LegacyGazetteStreamReader(BaseStreamReader):
    """Reads a stream in Spark before 4.2.

    These versions don't pass the begin of a batch, nor the end of a run: an AvailableNow run has
    one batch. `LegacyStreamPlanner` describes limits and committed messages.
    """

    _planner_type = LegacyStreamPlanner

    def latestOffset(  # type: ignore[override]  # noqa: N802 - Spark's name.
        self,
    ) -> Mapping[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the end of the next batch.

        Raises:
            DataLossError: Content is lost.
            ConfigurationError: The query can't continue with these options.
            GazetteError: An RPC failed, or journals can't be read.
        """
        planner = self._planner
        assert isinstance(planner, LegacyStreamPlanner)
        return bridge.run(
            planner.next_end(
                max_bytes=self.options.max_bytes_per_trigger,
                max_rows=self.options.max_rows_per_trigger,
            )
        )
