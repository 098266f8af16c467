"""Marks of tests that need a newer PySpark than the oldest."""

import importlib.util

import pytest
from pyspark.sql import datasource

HAS_STREAMS = hasattr(datasource, "DataSourceStreamArrowWriter")

STREAMS = pytest.mark.skipif(not HAS_STREAMS, reason="of PySpark 4.0, streams aren't supported")

BATCHES = pytest.mark.skipif(
    importlib.util.find_spec("pyspark.sql.streaming.datasource") is None,
    reason="before PySpark 4.2, what's there is one batch",
)
"""Of tests whose `availableNow` takes several batches."""
