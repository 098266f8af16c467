"""The Spark session of the examples, and what's missing where there can't be one."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGGING = Path(__file__).with_name("log4j2.properties")
SETTINGS = {
    # Code which runs for a minute isn't worth being compiled twice.
    "spark.driver.extraJavaOptions": (
        f"-Dlog4j2.configurationFile={LOGGING.as_uri()} -XX:TieredStopAtLevel=1"
    ),
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""Of programs which spark-submit doesn't run: what it runs is told them by its own options."""


def missing(*, batches: bool = False) -> str | None:
    """Return what keeps Spark from running here, in one line, or None.

    Args:
        batches: Whether `availableNow` must read all there is in several batches.
    """
    if not _is_submitted() and (reason := _missing_here()) is not None:
        return reason
    if batches and importlib.util.find_spec("pyspark.sql.streaming.datasource") is None:
        return "this needs PySpark 4.2 or newer: pip install --upgrade 'gazette-aio[spark]'"
    return None


def _missing_here() -> str | None:
    # The package pyspark-client has the same modules, and no Spark.
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None or not (Path(spec.origin).parent / "jars").is_dir():
        return "PySpark isn't installed: pip install 'gazette-aio[spark]'"
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java", path=f"{home}/bin" if home else None) is None:
        return "Java isn't found: Spark needs Java 17 or newer"
    return None


def start_session(name: str) -> SparkSession:
    """Start Spark, on all cores of this machine unless spark-submit tells otherwise."""
    # Imported where it's known to be there.
    from pyspark.sql import SparkSession  # noqa: PLC0415

    builder = SparkSession.builder.appName(name)
    if not _is_submitted():
        # Workers would be run by what's called python3.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        for key, value in SETTINGS.items():
            builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    return session


def _is_submitted() -> bool:
    """Return whether spark-submit runs this program."""
    return "PYSPARK_GATEWAY_PORT" in os.environ
