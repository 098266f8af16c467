"""Listener which reports the progress of streaming queries."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

from gazette_aio.spark.streaming.reports import QueryProgress

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

_logger = logging.getLogger(__name__)


class GazetteProgressListener(StreamingQueryListener):
    """Reports offsets and lag of each query which reads journals, after each of its batches.

    Args:
        report: Called with the progress of each batch, in a thread of Spark. By default, progress
            is logged at level INFO.

    Example:
        spark.streams.addListener(GazetteProgressListener(print))
    """

    def __init__(self, report: Callable[[QueryProgress], None] | None = None) -> None:
        self._report = _log if report is None else report

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name.
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name.
        """Report the progress of a query which reads journals."""
        found = QueryProgress.of(event.progress)
        if found.sources:
            self._report(found)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name.
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Likewise.
        """Do nothing."""

    def __repr__(self) -> str:
        return f"<GazetteProgressListener of {self._report!r}>"


def _log(progress: QueryProgress) -> None:
    _logger.info("%s", progress)
