"""Start of streaming queries whose sources may take long to connect to Spark."""

from __future__ import annotations

import logging
import re
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_logger = logging.getLogger(__name__)

START_SECONDS: Final = 120.0

_NOT_CONNECTED: Final = re.compile("Python worker (failed )?to connect back")
_POLL_SECONDS: Final = 0.02
_UNDECIDED: Final = ("Initializing", "Terminated")
"""Prefixes of a query's status before it runs, or after it failed and is still active."""


def start_query(
    writer: DataStreamWriter, *, timeout_seconds: float = START_SECONDS
) -> StreamingQuery:
    """Start a streaming query, and return it after its sources have connected.

    Spark gives the Python process of a source 10 seconds to connect, and has no setting for it. On
    a busy machine, that may be too short. Such a query has read nothing, and is started again.

    Args:
        writer: The writer of the query, before its `start()`.
        timeout_seconds: Seconds after which the query isn't started again; 120 by default.

    Returns:
        The query. If it failed, its `awaitTermination()` raises the error.

    Example:
        query = start_query(frame.writeStream.format("console").trigger(availableNow=True))
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        query = writer.start()
        while query.isActive and query.status["message"].startswith(_UNDECIDED):
            time.sleep(_POLL_SECONDS)
        error = None if query.isActive else query.exception()
        if error is None or not _NOT_CONNECTED.search(str(error)) or time.monotonic() >= deadline:
            return query
        _logger.warning("the process of a source was too slow to connect: starting the query again")
