"""Marks of tests that need a newer PySpark than the oldest."""

import importlib.util

import pytest
from pyspark.sql import datasource

HAS_STREAMS = hasattr(datasource, "DataSourceStreamArrowWriter")

STREAMS = pytest.mark.skipif(not HAS_STREAMS, reason="of PySpark 4.0, streams aren't supported")

HAS_BATCHES = importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None

BATCHES = pytest.mark.skipif(
    not HAS_BATCHES,
    reason="before PySpark 4.2, what's there is one batch",
)
"""Of tests whose `availableNow` takes several batches."""
