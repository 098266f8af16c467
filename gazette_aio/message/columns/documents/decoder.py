"""Decoder of documents to the Arrow columns of a schema.

Which values a column takes depends on the kind of messages and the column's type:

| type of the column | JSON | CSV | protobuf |
| --- | --- | --- | --- |
| bool | `true`, `false` | `true`, `false`, `1`, `0` | bool |
| integers | `1`, not `1.0` or `1e0`, in range | likewise | integers, enums |
| float32, float64 | number | number | float, double |
| decimal128, decimal256 | number, or text of one | number | - |
| string, large_string | text | the field | string, names of enums |
| dictionary of string | text | the field | as string |
| binary types | text in base64 | bytes of the field | bytes |
| date32, date64 | ISO date | ISO date | - |
| time32, time64 | ISO time of a day | likewise | - |
| duration | ISO 8601 duration of days to seconds | likewise | - |
| timestamp | ISO time; UTC unless it has a zone | likewise | google.protobuf.Timestamp |
| struct, list | object, array | - | messages, repeated fields, maps as lists of structs |
| map | object, whose names are the keys, or the texts of keys | - | maps |

Digits of a time beyond the unit of the column are dropped. Dictionaries need indices of 32 bits or
more. Other types are refused. Columns are JSON members and protobuf fields by name; those of CSV
follow the order of fields, without that of the UUID.

Nulls stand for absent values: members that are missing or null, protobuf fields that track
presence and are unset, and empty CSV fields unless the column can hold empty values. A row is bad
if it has no value in a column or nested field that isn't nullable, has a value that its column
can't hold, or isn't a document at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gazette_aio.message.adapters.csv import CSVAdapter, TypedCSVAdapter
from gazette_aio.message.adapters.json import JSONAdapter
from gazette_aio.message.adapters.protobuf import ProtobufAdapter
from gazette_aio.message.columns.documents.conversion import convert_column, rebuilt
from gazette_aio.message.columns.documents.csv_reader import CSVReader
from gazette_aio.message.columns.documents.json_reader import JSONReader
from gazette_aio.message.columns.documents.nested import missing_values, relaxed
from gazette_aio.message.columns.documents.protobuf_reader import ProtobufReader
from gazette_aio.message.columns.pyarrow_api import pa
from gazette_aio.message.columns.records import METADATA_NAMES, VALUE_NAME
from gazette_aio.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from typing import Protocol

    from pyarrow import RecordBatch, Schema

    from gazette_aio.message.adapters.base import Adapter
    from gazette_aio.message.columns.documents.conversion import Parsed
    from gazette_aio.message.columns.documents.messages import Messages
    from gazette_aio.message.columns.uuids import Indices

    class _Reader(Protocol):
        def read(self, messages: Messages) -> list[Parsed]:
            """Return columns of messages, in at most two parts that have no errors in common."""
            ...


_MAX_DEPTH = 64  # Of columns within columns. The core takes no more.


class BadMessage(NamedTuple):
    """A message that can't be decoded."""

    position: int
    error: Exception


class Decoded(NamedTuple):
    """Columns of the documents of some rows, and errors of the others."""

    batch: RecordBatch
    """Columns of the good rows."""
    good: Indices | None
    """Positions of the good rows among the rows to decode; None if all are good."""
    bad: list[BadMessage]
    """Positions and errors of the bad rows, ascending."""


class DocumentDecoder:
    """Decodes documents to the columns of a schema.

    Args:
        adapter: Adapter of the messages: of JSON, CSV or protobuf.
        schema: Columns to decode.
        use_threads: Parse much JSON in several threads.

    Raises:
        ConfigurationError: Messages of the adapter can't have the columns of the schema.
    """

    def __init__(self, adapter: Adapter[Any], schema: Schema, *, use_threads: bool = False) -> None:
        check_schema(schema)
        self.schema = schema
        self._fields = list[Any](schema)
        fields = [field.with_type(relaxed(field.type)) for field in self._fields]
        self._kinds = [field.type for field in fields]
        self._reader: _Reader
        if isinstance(adapter, JSONAdapter):
            self._reader = JSONReader(fields, threads=pa.cpu_count() if use_threads else 1)
        elif isinstance(adapter, ProtobufAdapter):
            self._reader = ProtobufReader(adapter, fields)
        elif isinstance(adapter, TypedCSVAdapter):
            self._reader = CSVReader(adapter.records, fields)
        elif isinstance(adapter, CSVAdapter):
            self._reader = CSVReader(adapter, fields)
        else:
            raise ConfigurationError(f"messages of {adapter!r} can't be decoded to columns")

    def decode(self, messages: Messages) -> Decoded:
        """Return the columns of messages, of 2 GiB at most.

        Raises:
            OverflowError: The messages are larger.
        """
        if not len(messages):
            return Decoded(pa.RecordBatch.from_pylist([], schema=self.schema), None, [])
        parts = [self._convert(parsed) for parsed in self._reader.read(messages)]
        columns, _, positions, errors, _ = parts[0]
        if len(parts) > 1:
            errors = parts[0].errors | parts[1].errors
            places = np.concatenate([p.positions for p in parts if p.positions is not None])
            order = np.argsort(places)
            positions = places[order]
            pairs = zip(*(part.columns for part in parts), strict=True)
            columns = [pa.concat_arrays(pair).take(pa.array(order)) for pair in pairs]
        return Decoded(self._batch(columns), positions if errors else None, _bad_frames(errors))

    def _convert(self, parsed: Parsed) -> Parsed:
        """Return converted columns, without rows that can't be converted."""
        columns = list[Any](parsed.columns)
        failed = dict(parsed.failed)
        for index, (field, convert) in enumerate(zip(self._fields, parsed.converters, strict=True)):
            column = columns[index]
            if convert is not None:
                column = convert_column(field.name, column, convert, self._kinds[index], failed)
                columns[index] = column
            if not field.nullable and column.null_count:
                error = ValueError(f"column {field.name!r}: there's no value, or null")
                for row in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)):
                    failed.setdefault(int(row), error)
            if self._kinds[index] != field.type:
                for path, rows_without in missing_values(column, field.type):
                    error = ValueError(f"column '{field.name}{path}': there's no value, or null")
                    failed |= {row: error for row in rows_without.tolist() if row not in failed}
        return parsed._replace(columns=columns).without(failed)

    def _batch(self, columns: list[Any]) -> RecordBatch:
        found = map(rebuilt, columns, [field.type for field in self._fields])
        batch: RecordBatch = pa.RecordBatch.from_arrays(list(found), schema=self.schema)
        return batch


def _bad_frames(errors: dict[int, Exception]) -> list[BadMessage]:
    # A traceback would keep the frames of functions alive, and with them whole blocks of lines.
    return [BadMessage(row, errors[row].with_traceback(None)) for row in sorted(errors)]


def check_schema(schema: Schema) -> None:
    """Raise ConfigurationError unless names of the schema are distinct, and none is reserved."""
    if not isinstance(schema, pa.Schema):
        raise ConfigurationError(f"expected a pyarrow.Schema, and not {schema!r}")
    if not len(schema):
        raise ConfigurationError("the schema has no fields")
    _check_names(schema.names)
    for name in schema.names:
        if name in (*METADATA_NAMES, VALUE_NAME):
            raise ConfigurationError(f"column {name!r} is reserved")
    for field in list[Any](schema):
        _check_nested(field.name, field.type)


def _check_names(names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(f"there's more than one column {name!r}")


def _check_nested(name: str, kind: Any, depth: int = 0) -> None:
    if depth > _MAX_DEPTH:
        raise ConfigurationError(f"column {name!r} has more than {_MAX_DEPTH} levels")
    if not pa.types.is_nested(kind):
        return
    if pa.types.is_map(kind):
        children = [kind.item_field]
    else:
        children = [kind.field(index) for index in range(kind.num_fields)]
    if pa.types.is_struct(kind):
        _check_names([child.name for child in children])
    for child in children:
        _check_nested(name, child.type, depth + 1)
