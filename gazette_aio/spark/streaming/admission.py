"""Reader of streams for Spark 4.2 and later, with limits of batches and ends of runs."""

from __future__ import annotations

from typing import Any, cast

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from gazette_aio.protocol.errors import ConfigurationError
from gazette_aio.spark import bridge
from gazette_aio.spark.streaming.minimum import BatchMinimum
from gazette_aio.spark.streaming.reader import BaseStreamReader


class GazetteStreamReader(BaseStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream.

    Args:
        options: Options of the source.
        schema: Exact Arrow schema of the rows.
    """

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name.
        """Return the limit of batches in the options."""
        if self.options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self.options.max_bytes_per_trigger)
        if self.options.max_rows_per_trigger is not None:
            return ReadMaxRows(self.options.max_rows_per_trigger)
        if BatchMinimum.of(self.options) is not None:
            # Spark has no limit of least bytes. Any other limit than all content permits to wait.
            return ReadMinRows(self.options.min_rows_per_trigger or 1)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name.
        """End the run at the current write heads.

        Journals which appear later belong to the next run. Unread content of deleted journals is
        lost.

        Raises:
            GazetteError: An RPC failed.
        """
        bridge.run(self._planner.fix_targets())

    def latestOffset(  # noqa: N802 - Spark's name.
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Return the end of a batch: `start` itself if there's no new content, or too little.

        Limits are soft: each journal advances by at least a message, or by a fragment if its
        framing needs that.

        Args:
            start: Begin of the batch.
            limit: Limit of the bytes or messages of the batch.

        Raises:
            DataLossError: Content is lost.
            ConfigurationError: The query can't continue from `start` with these options.
            GazetteError: An RPC failed, or journals can't be read.
        """
        match limit:
            case ReadAllAvailable():
                # The trigger may be Spark's for a single batch, which must not wait.
                end = self._planner.end(start, waits=False)
            case ReadMinRows():
                end = self._planner.end(start)
            case ReadMaxBytes():
                end = self._planner.end(start, max_bytes=limit.max_bytes)
            case ReadMaxRows():
                end = self._planner.end(start, max_rows=limit.max_rows)
            case _:
                kind = type(limit).__name__
                raise ConfigurationError(f"batches of a stream can't be limited by {kind}")
        return cast("dict[str, Any]", bridge.run(end))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name.
        """Return the write heads as of the last planned batch, with further facts for `lag()`."""
        return bridge.run(self._planner.latest())
