"""Rows of Spark as Arrow, for releases which don't hand Arrow to writers of streams."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from gazette_aio.message.columnar.arrow import pa
from gazette_aio.spark.types import parse_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyarrow import RecordBatch

_ROWS: Final = 10_000


def arrow_batches(rows: Iterable[Any], schema: StructType) -> Iterator[RecordBatch]:
    """Yield rows as record batches of the exact schema.

    Raises:
        ConfigurationError: A column's type isn't supported.
    """
    exact: Any = parse_schema(schema.json())
    kinds = [field.dataType for field in schema.fields]
    iterator = iter(rows)
    while some := list(islice(iterator, _ROWS)):
        columns = [
            pa.array([_plain(row[index], kind) for row in some], exact.field(index).type)
            for index, kind in enumerate(kinds)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=exact)


def _plain(value: Any, kind: DataType) -> Any:
    """Return a value as Arrow takes it: times are numbers, which have no time zone."""
    if value is None:
        return None
    if isinstance(kind, StructType):
        return {
            field.name: _plain(member, field.dataType)
            for field, member in zip(kind.fields, value, strict=True)
        }
    if isinstance(kind, ArrayType):
        return [_plain(element, kind.elementType) for element in value]
    if isinstance(kind, MapType):
        return [
            (_plain(key, kind.keyType), _plain(item, kind.valueType)) for key, item in value.items()
        ]
    return kind.toInternal(value) if kind.needConversion() else value
