"""Discovery of `format("gazette")`: Spark imports all top-level modules named `pyspark_*`.

Invariant: the import doesn't raise, and imports nothing but PySpark's base class. If one of those
modules raises, Spark has none of their formats, and only logs that. Everything else is imported
when the format is used.
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
    # PySpark before 4.0 has no DataSource; without a subclass, Spark ignores this module.
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
            """Return the schema of a source without a user's schema."""
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
