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
    """Make `format("gazette")` known to a session.

    Only needed where Spark doesn't find it by itself: if the package was shipped by `--py-files`,
    or another module named `pyspark_*` can't be imported, which hides all of them.

    Args:
        spark: The session, a Spark Connect one as well; by default the active one.

    Raises:
        ConfigurationError: No session is active.
    """
    session = SparkSession.getActiveSession() if spark is None else spark
    if session is None:
        raise ConfigurationError("no Spark session is active: create one first, or pass it")
    try:
        session.dataSource.register(GazetteDataSource)
    except AnalysisException as error:
        # PySpark 4.0 refuses what it has found by itself.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
