"""Rows of Arrow tables as messages of an adapter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from gazette_aio.message.adapters.base import Adapter, Lines, SplitMessages
from gazette_aio.message.adapters.csv import CSVAdapter, TypedCSVAdapter
from gazette_aio.message.adapters.json import JSONAdapter
from gazette_aio.message.adapters.protobuf import ProtobufAdapter
from gazette_aio.message.columns.pyarrow_api import pa, pc
from gazette_aio.message.columns.records import METADATA_NAMES, VALUE_NAME
from gazette_aio.message.core import table_lines
from gazette_aio.message.publishing.arrow_values import (
    RefusedTypeError,
    RefusedValueError,
    column_of,
    encoded,
    encoder,
    json_values,
)
from gazette_aio.message.publishing.routes import splitter
from gazette_aio.protocol.errors import ConfigurationError, ValidationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gazette_aio.message.publishing.routes import Encoded

R = TypeVar("R")

_CHUNK_ROWS: Final = 256

_unquoted = msgspec.json.Decoder(str).decode


class TableRows:
    """Rows of a table, as `Rows` of a batch.

    Args:
        table: A table, record batch or data frame that supports the PyCapsule interface.
        adapter: Adapter of the messages.
        is_mapped: Whether rows are picked by their indices, as they go to several journals.

    Raises:
        ConfigurationError: The adapter can't make messages of the columns.
    """

    def __init__(self, table: Any, adapter: Adapter[Any], *, is_mapped: bool = False) -> None:
        try:
            self._table: Any = table if isinstance(table, pa.Table) else pa.table(table)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"not a table: {error}") from error
        if isinstance(adapter, TypedCSVAdapter):
            adapter = adapter.records
        names = self._table.column_names
        if len(set(names)) < len(names):
            raise ConfigurationError("the table has two columns of the same name")
        _check(self._table)
        self._adapter = adapter
        self._split = splitter(adapter)
        self._names = [name for name in names if name not in METADATA_NAMES]
        self._is_values = self._names == [VALUE_NAME]
        if not self._is_values:
            if VALUE_NAME in self._names:
                raise ConfigurationError(f"the table has columns beside {VALUE_NAME}")
            if not isinstance(adapter, (JSONAdapter, ProtobufAdapter, CSVAdapter)):
                text = f"{type(adapter).__name__} needs a table with no column but {VALUE_NAME}"
                raise ConfigurationError(text)
        documents: Any = _plain(self._table.select(self._names))
        # To pick rows from several chunks, Arrow copies all chunks first, each time. Of a chunk for
        # each row or so, describing the columns would take longer than encoding.
        most_chunks = 1 if is_mapped else len(self) // _CHUNK_ROWS + 2
        self._documents: Any = _merged(documents, most_chunks)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def validate(self, start: int, stop: int) -> None:
        """Do nothing: encoding validates rows."""

    def items(self, start: int, stop: int) -> Sequence[dict[str, Any]]:
        """Return rows as dicts, with columns of metadata.

        Raises:
            ValidationError: Python can't hold a value, such as a timestamp.
        """
        try:
            rows: list[dict[str, Any]] = self._table.slice(start, stop - start).to_pylist()
        except (ValueError, OverflowError) as error:
            raise ValidationError(f"rows can't be passed to a mapping: {error}") from error
        except RecursionError:
            raise ValidationError("rows can't be passed to a mapping: too deeply nested") from None
        return rows

    def encode(self, indices: range | list[int]) -> Encoded:
        """Encode rows; they're returned as messages if the adapter can't split these."""
        if isinstance(indices, range):
            rows = self._documents.slice(indices.start, len(indices))
        else:
            rows = self._documents.take(pa.array(indices, pa.int64()))
        adapter = self._adapter
        if isinstance(adapter, JSONAdapter):
            return self._encode_json(rows, adapter, indices)
        return self._split(self._messages(rows, indices))

    def _encode_json(
        self, rows: Any, adapter: JSONAdapter[Any], indices: range | list[int]
    ) -> Encoded:
        if self._is_values:
            parts = self._split_values(rows, adapter, indices)
            return SplitMessages([head for head, _ in parts], b"", [rest for _, rest in parts])
        lines = b"{}\n" * len(rows)
        if self._names:
            lines = b"".join([self._lines(*part) for part in _batches(rows, indices)])
            if adapter.uuid_path[0] not in self._names:
                return Lines(*adapter.stamps, lines, len(rows))
        parts = [adapter.split_document(line) for line in lines.split(b"\n")[:-1]]
        return SplitMessages([head for head, _ in parts], b"", [rest for _, rest in parts])

    def _lines(self, batch: Any, indices: range | list[int]) -> bytes:
        """Return the documents of rows of one batch."""
        columns = [self._converted(column_of, batch, name, indices) for name in self._names]
        try:
            lines = table_lines(columns)
        except ValueError:
            lines = None  # Columns are too deep, or, by a fault of Arrow, too short.
        if lines is None:  # The core doesn't say which value it refuses.
            lines = table_lines(
                [self._converted(encoded, batch, name, indices) for name in self._names]
            )
            assert lines is not None, "texts are never refused"
        return lines

    def _split_values(
        self, rows: Any, adapter: JSONAdapter[Any], indices: range | list[int]
    ) -> list[tuple[bytes, bytes]]:
        values = self._values(rows, indices)
        parts: list[tuple[bytes, bytes]] = []
        try:
            parts.extend(map(adapter.split_unchecked, values))
        except (ValidationError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            row = indices[len(parts)]
            raise ValidationError(f"row {row}, column {VALUE_NAME!r}: {error}") from None
        return parts

    def _converted(
        self,
        convert: Callable[[str, Any], R],
        batch: Any,
        name: str,
        indices: range | list[int],
    ) -> R:
        """Return the result for a column. Errors tell the column, and the row of the table."""
        try:
            return convert(name, batch.column(name))
        except RefusedValueError as error:
            row = indices[error.row]
            raise ValidationError(f"row {row}, column {name!r}: {error.reason}") from None
        except RecursionError:
            raise _too_deep(name) from None
        except (RefusedTypeError, ValueError, NotImplementedError) as error:
            raise ValidationError(f"column {name!r}: {error}") from error

    def _fields(self, rows: Any, indices: range | list[int]) -> Iterator[tuple[str, ...]]:
        """Yield rows of fields of CSV: texts unchanged, and other types as in JSON."""
        for batch, part in _batches(rows, indices):
            columns = [self._converted(_fields, batch, name, part) for name in self._names]
            yield from zip(*columns, strict=True)

    def _values(self, rows: Any, indices: range | list[int]) -> list[bytes]:
        values: list[bytes] = []
        for index, value in zip(indices, rows.column(0).to_pylist(), strict=True):
            content = value.encode() if isinstance(value, str) else value
            if not isinstance(content, bytes):
                text = f"row {index}, column {VALUE_NAME!r}: neither bytes nor text"
                raise ValidationError(text)
            if b"\n" in content and isinstance(self._adapter, JSONAdapter):
                text = f"row {index}, column {VALUE_NAME!r}: not a JSON document on one line"
                raise ValidationError(text)
            values.append(content)
        return values

    def _messages(self, rows: Any, indices: range | list[int]) -> list[Any]:
        adapter = self._adapter
        if self._is_values:
            return [adapter.decode(value) for value in self._values(rows, indices)]
        if isinstance(adapter, CSVAdapter):
            if not self._names:
                return [adapter.record(()) for _ in indices]
            return [adapter.record(row) for row in self._fields(rows, indices)]
        assert isinstance(adapter, ProtobufAdapter)
        return [adapter.message(row) for row in rows.to_pylist()]


def _batches(rows: Any, indices: range | list[int]) -> Iterator[tuple[Any, range | list[int]]]:
    """Yield the batches of rows, with the indices of their rows."""
    done = 0
    for batch in rows.to_batches():
        yield batch, indices[done : done + len(batch)]
        done += len(batch)


def _fields(_name: str, column: Any) -> list[str]:
    return [_field(value) for value in json_values(column)]


def _field(value: Any) -> str:
    """Return the field of CSV for a value of JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    text = encoder.encode(value)
    return _unquoted(text) if text[:1] == b'"' else text.decode()


def _check(table: Any) -> None:
    """Refuse columns that break the rules of Arrow, such as indices beyond a dictionary."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            column.validate(full=True)
        except (ValueError, LookupError, NotImplementedError) as error:
            raise ValidationError(f"column {name!r}: {error}") from error


def _merged(table: Any, most_chunks: int) -> Any:
    """Merge the chunks of a table with more than `most_chunks`, if they can be."""
    if all(column.num_chunks <= most_chunks for column in table.columns):
        return table
    try:
        return table.combine_chunks()
    except (ValueError, NotImplementedError):
        return table  # Dictionaries of some types can't.


def _plain(table: Any) -> Any:
    """Return a table without views and run-ends, which many kernels of Arrow don't support."""
    for number, field in enumerate(table.schema):
        try:
            kind = _plain_type(field.type)
            if kind.equals(field.type):
                continue
            column = _cast(table.column(number), field.type, kind)
        except RecursionError:
            raise _too_deep(field.name) from None
        except (ValueError, NotImplementedError) as error:
            raise ValidationError(f"column {field.name!r}: {error}") from error
        table = table.set_column(number, field.with_type(kind), column)
    return table


def _too_deep(name: str) -> ValidationError:
    return ValidationError(f"column {name!r}: it's nested too deeply")


def _cast(column: Any, from_kind: Any, kind: Any) -> Any:
    if pa.types.is_dictionary(from_kind):
        chunks = [
            pa.DictionaryArray.from_arrays(chunk.indices, chunk.dictionary.cast(kind.value_type))
            for chunk in column.chunks
        ]
        return pa.chunked_array(chunks, kind)
    if pa.types.is_run_end_encoded(from_kind):
        chunks = [pc.run_end_decode(chunk) for chunk in column.chunks]
        return pa.chunked_array(chunks, from_kind.value_type).cast(kind)
    return column.cast(kind)


def _plain_type(kind: Any) -> Any:
    types = pa.types
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind):
        return pa.large_binary()
    if types.is_struct(kind):
        return pa.struct([field.with_type(_plain_type(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = _plain_type(kind.value_type)
        return kind if inner.equals(kind.value_type) else pa.large_list(inner)
    if types.is_dictionary(kind):
        inner = _plain_type(kind.value_type)
        return pa.dictionary(kind.index_type, inner)
    if types.is_run_end_encoded(kind):
        return _plain_type(kind.value_type)
    return kind
