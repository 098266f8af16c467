"""Gazette as a source and a sink of Apache Spark: `spark.read.format("gazette")`.

Spark finds the format where this package is installed with PySpark 4.0 or newer:
`pip install 'gazette-aio[spark]'`. This package has further functions for programs; each name is
imported at its first use.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from gazette_aio._lazy import at_first_use

if TYPE_CHECKING:
    from gazette_aio.spark.sink.committing import recover_sink
    from gazette_aio.spark.source import GazetteDataSource, register
    from gazette_aio.spark.streaming.lag import lag
    from gazette_aio.spark.streaming.listener import GazetteProgressListener
    from gazette_aio.spark.streaming.reports import QueryProgress

__all__ = [
    "GazetteDataSource",
    "GazetteProgressListener",
    "QueryProgress",
    "lag",
    "recover_sink",
    "register",
]

if not TYPE_CHECKING:  # With these functions, type checkers would accept any name.
    _import_name, __dir__ = at_first_use(globals())

    def __getattr__(name: str) -> Any:
        try:
            return _import_name(name)
        except ImportError as error:
            # A module of this package is missing: the installation is broken.
            if (error.name or "").partition(".")[0] == "gazette_aio":
                raise
            raise ImportError(
                # Spark's workers may use another Python than the program (PYSPARK_PYTHON).
                f"gazette_aio.spark needs another package: {error}:"
                f" pip install 'gazette-aio[spark]' for {sys.executable}",
                name=error.name,
            ) from error
