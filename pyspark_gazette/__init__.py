"""Spark finds `format("gazette")` here: it imports all top-level modules named `pyspark_*`.

Invariant: the import doesn't raise, and takes nothing but PySpark's own base class. Were one of
those modules to raise, Spark would have none of their formats, and say so in its log only. What the
format needs is imported when it's used.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

with contextlib.suppress(Exception):
    # A PySpark before 4.0 hasn't got it; without the class, Spark passes this module over.
    from pyspark.sql.datasource import DataSource

    class DefaultSource(DataSource):
        """Gazette's journals as a source and a sink: `gazette_aio.spark.GazetteDataSource`.

        Args:
            options: Options of the reader or the writer.

        Raises:
            ImportError: A package is missing.
            ConfigurationError: An option is unknown, malformed or missing.
        """

        @classmethod
        def name(cls) -> str:
            """Return the name of the format."""
            return "gazette"

        def __init__(self, options: dict[str, str]) -> None:
            super().__init__(options)
            try:
                from gazette_aio.spark import GazetteDataSource  # noqa: PLC0415
            except ModuleNotFoundError as error:
                if error.name != "gazette_aio":
                    raise
                raise ImportError(
                    f"the format gazette needs another package: {error}:"
                    f" pip install 'gazette-aio[spark]' for {sys.executable}",
                    name=error.name,
                ) from error
            self._source = GazetteDataSource(options)

        def schema(self) -> StructType | str:
            """Return the schema of a source of which the user told none."""
            return self._source.schema()

        def reader(self, schema: StructType) -> DataSourceReader:
            """Return the reader of a batch."""
            return self._source.reader(schema)

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - by Spark.
            """Return the writer of a batch."""
            return self._source.writer(schema, overwrite)

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - by Spark.
            """Return the reader of a stream."""
            return self._source.streamReader(schema)

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001, N802 - by Spark.
            """Return the writer of a stream."""
            return self._source.streamWriter(schema, overwrite)
