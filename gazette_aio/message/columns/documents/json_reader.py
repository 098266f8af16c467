"""Reader of JSON documents as columns: the core's, and documents that the core leaves out."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gazette_aio.message.columns.documents.conversion import (
    FRACTION_DIGITS,
    Converter,
    Parsed,
    is_float,
    is_text,
    is_text_dictionary,
    parse_scalars,
    parse_texts,
    parse_values,
    rebuilt,
)
from gazette_aio.message.columns.documents.json_rows import RowReader
from gazette_aio.message.columns.documents.messages import parse, payloads_of
from gazette_aio.message.columns.pyarrow_api import pa
from gazette_aio.message.core import Schema
from gazette_aio.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from gazette_aio.message.columns.documents.messages import Messages
    from gazette_aio.message.core import Column, Field


class JSONReader:
    """Reads columns of JSON documents.

    Args:
        fields: Columns to read.
        threads: Number of threads that parse many documents.

    Raises:
        ConfigurationError: A type isn't supported.
    """

    def __init__(self, fields: list[Any], *, threads: int) -> None:
        self._threads = threads
        core = [_reading(field, in_core=True) for field in fields]
        self._kinds = [kind for kind, _ in core]
        self._converters = [converter for _, converter in core]
        self._schema = Schema([_spec(f.name, k) for f, k in zip(fields, self._kinds, strict=True)])
        single = [_reading(field, in_core=False) for field in fields]
        self._rows = RowReader(fields, [kind for kind, _ in single])
        self._row_converters = [converter for _, converter in single]

    def read(self, messages: Messages) -> list[Parsed]:
        """Return the columns of documents; of those apart that the core leaves out."""
        parts = parse(messages, self._schema, self._threads)
        refused = np.array([row for _, _, rows in parts for row in rows], np.int64)
        found: list[Parsed] = []
        if len(refused) < len(messages):
            arrays = [map(_array, self._kinds, columns) for rows, columns, _ in parts if rows]
            columns = [_joined(each) for each in zip(*arrays, strict=True)]
            positions = np.delete(np.arange(len(messages)), refused) if len(refused) else None
            found.append(Parsed(columns, self._converters, positions, {}, {}))
        if len(refused):
            errors: dict[int, Exception] = {}
            columns = self._rows.read(payloads_of(messages, refused), errors)
            parsed = Parsed(columns, self._row_converters, refused, {}, {})
            found.append(parsed.without(errors))
        return found


def _joined(arrays: tuple[Any, ...]) -> Any:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _reading(field: Any, *, in_core: bool) -> tuple[Any, Converter | None]:
    """Return the type to parse values of a column as, and the converter to its own type.

    Args:
        field: The column.
        in_core: Whether the core parses values, and not the reader of single documents.

    Raises:
        ConfigurationError: The type isn't supported.
    """
    kind = field.type
    try:
        parsed = _parsed_type(kind, in_core=in_core)
    except TypeError as error:
        text = f"column {field.name!r}: {error} can't be decoded from JSON"
        raise ConfigurationError(text) from None
    if parsed.equals(kind):
        return kind, None
    if pa.types.is_nested(kind):
        return parsed, Converter(partial(rebuilt, kind=kind))
    return parsed, parse_values(kind)


def _parsed_type(kind: Any, *, in_core: bool) -> Any:
    """Return the type to parse values as.

    Raises:
        TypeError: The type, or one within it, isn't supported.
    """
    types = pa.types
    if is_text(kind) or types.is_boolean(kind) or types.is_integer(kind):
        return kind
    if types.is_decimal128(kind) or types.is_decimal256(kind):
        return kind
    if is_float(kind):
        return kind if in_core else pa.string()
    if in_core and (types.is_timestamp(kind) or types.is_date(kind)):
        return kind
    if parse_texts(kind) or is_text_dictionary(kind):
        return pa.string()
    parsed = partial(_parsed_type, in_core=in_core)
    if types.is_struct(kind):
        return pa.struct([pa.field(child.name, parsed(child.type)) for child in kind])
    if types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, parsed(kind.value_type)))
    if types.is_map(kind):
        try:
            parse_scalars(kind.key_type)
        except TypeError as error:
            raise TypeError(f"{error} as a key") from None
        key = pa.field(kind.key_field.name, pa.string(), nullable=False)
        return pa.map_(key, pa.field(kind.item_field.name, parsed(kind.item_type)))
    raise TypeError(str(kind))


def _spec(name: str, kind: Any) -> Field:
    """Return the field of a core's schema for a type that it parses values as."""
    types = pa.types
    if types.is_struct(kind):
        return name, "struct", [], [_spec(child.name, child.type) for child in kind]
    if types.is_list(kind):
        return name, "list", [], [_spec("", kind.value_type)]
    if types.is_map(kind):
        return name, "map", [], [_spec("", kind.item_type)]
    if types.is_boolean(kind):
        return name, "bool", [], []
    if is_text(kind):
        return name, "text", [8 if types.is_large_string(kind) else 4], []
    if types.is_timestamp(kind):
        return name, "time", [FRACTION_DIGITS[kind.unit]], []
    size: int = kind.bit_width // 8
    if types.is_date(kind):
        return name, "date", [size], []
    if types.is_decimal(kind):
        # Of a type with another scale, documents are read one by one: zeros apart.
        is_usual = 0 <= kind.scale <= min(kind.precision, 38)
        return name, "decimal", [size, *((kind.precision, kind.scale) if is_usual else (0, 0))], []
    if types.is_floating(kind):
        return name, "float", [size], []
    return name, "signed" if types.is_signed_integer(kind) else "unsigned", [size], []


def _array(kind: Any, column: Column) -> Any:
    """Return a column of the core as an array."""
    rows, nulls, buffers, children = column
    types = pa.types
    if types.is_struct(kind):
        kinds = [field.type for field in kind]
    elif types.is_map(kind):
        kinds = [kind.key_type, kind.item_type]
    else:
        kinds = [kind.value_type] if types.is_list(kind) else []
    arrays = list(map(_array, kinds, children))
    if types.is_map(kind):
        entry = pa.struct([kind.key_field, kind.item_field])
        arrays = [pa.Array.from_buffers(entry, len(arrays[0]), [None], children=arrays)]
    found = [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers]
    return pa.Array.from_buffers(kind, rows, found, null_count=nulls, children=arrays)
