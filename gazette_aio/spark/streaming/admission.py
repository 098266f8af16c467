"""The reader of streams for Spark 4.2 and later, which limits batches and ends runs."""

from __future__ import annotations

from typing import Any, cast

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from gazette_aio.protocol.errors import ConfigurationError
from gazette_aio.spark import bridge
from gazette_aio.spark.streaming.reader import BaseStreamReader


class GazetteStreamReader(BaseStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream.

    Args:
        options: What's read.
        schema: Exact Arrow schema of the rows.
    """

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name.
        """Return the limit of batches which options set."""
        if self.options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self.options.max_bytes_per_trigger)
        if self.options.max_rows_per_trigger is not None:
            return ReadMaxRows(self.options.max_rows_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name.
        """Have the run end at the present write heads.

        Journals which appear later are left to the next run. What's left of those which vanish is
        lost.

        Raises:
            GazetteError: Brokers can't tell.
        """
        bridge.run(self._planner.fix_targets())

    def latestOffset(  # noqa: N802 - Spark's name.
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Return where a batch ends: `start` itself, if nothing is new.

        Limits are soft: each journal goes on by a message, or by a fragment if its framing needs
        that.

        Args:
            start: Where it begins.
            limit: Limit of its bytes or messages.

        Raises:
            DataLossError: What was to be read is lost.
            ConfigurationError: It can't go on from there with these options.
            GazetteError: Brokers can't tell, or journals can't be read.
        """
        match limit:
            case ReadAllAvailable():
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
        """Return the write heads, as of when the last batch was planned."""
        return self._planner.latest()
