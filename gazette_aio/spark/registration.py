"""Registration of the format with a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from gazette_aio.protocol.errors import ConfigurationError
from gazette_aio.spark.source import GazetteDataSource

if TYPE_CHECKING:
    from typing import Any


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
