"""Arrow types of Spark's types, and the sources of a schema's columns.

Spark's workers accept only record batches of the exact Arrow schema which Spark derives, including
the nullability of nested fields:

| Spark | Arrow |
| --- | --- |
| BOOLEAN | bool |
| TINYINT, SMALLINT, INT, BIGINT | int8, int16, int32, int64 |
| FLOAT, DOUBLE | float, double |
| DECIMAL(p, s) | decimal128(p, s) |
| STRING of any collation | string |
| BINARY | binary |
| DATE | date32[day] |
| TIMESTAMP | timestamp[us, tz=UTC] |
| TIMESTAMP_NTZ | timestamp[us] |
| TIME(p) | time64[ns] |
| INTERVAL of days to seconds | duration[us] |
| VOID | null |
| ARRAY, MAP, STRUCT | list, map, struct |
| user-defined | Arrow type of its SQL type |

Other types are refused. Not every format can be decoded to every type of the table.
"""

from __future__ import annotations

import dataclasses
import json
import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from gazette_aio.message.columns.pyarrow_api import pa
from gazette_aio.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyarrow import Schema

CORRUPT_COLUMN: Final = "_corrupt_record"
"""Default name of the column with the texts of bad records."""

KEY_COLUMN: Final = "_key"
"""Column of the value of the member which option `keyColumn` names."""

RESERVED: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "_journal": pa.string(),
        "_begin": pa.int64(),
        "_end": pa.int64(),
        "_uuid": pa.string(),
        "_timestamp": pa.timestamp("us", "UTC"),
        "_producer": pa.string(),
        "_clock": pa.string(),
        "_flags": pa.int32(),
        "_value": pa.binary(),
        KEY_COLUMN: pa.binary(),
    }
)
"""Arrow types of the columns which describe messages, by name."""

_DEFAULT: Final = ("_value", "_journal", "_begin", "_end", "_timestamp")

_SIMPLE: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "boolean": pa.bool_(),
        "byte": pa.int8(),
        "short": pa.int16(),
        "integer": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "string": pa.string(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"),
        "time(6)": pa.time64("ns"),
        "interval day to second": pa.duration("us"),
        "void": pa.null(),
    }
)
_NAMES: Final[Mapping[Any, str]] = {kind: name for name, kind in _SIMPLE.items()}
_SQL_NAMES: Final = {
    "byte": "TINYINT",
    "short": "SMALLINT",
    "integer": "INT",
    "long": "BIGINT",
    "time(6)": "TIME",
}
_FAMILIES: Final = (
    (re.compile(r"string collate \w+"), pa.string()),
    (re.compile(r"time\(\d+\)"), pa.time64("ns")),
    (
        re.compile(r"interval (day|hour|minute|second)( to (hour|minute|second))?"),
        pa.duration("us"),
    ),
)
_DECIMAL: Final = re.compile(r"decimal\((\d+),(-?\d+)\)")
_INSTEAD: Final = (
    ("variant", "use STRING, with parse_json() or to_json()"),
    ("char", "declare it STRING"),
    ("varchar", "declare it STRING"),
    ("interval", "use STRING, and cast it"),
    ("geo", "read it as BINARY"),
)


Labels: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
"""Names of labels with their values, sorted."""


class PartitionColumn(NamedTuple):
    """A column with the values of a label.

    Args:
        name: Name of the column.
        label: Name of the label.
        is_array: Whether rows have all values of the label, or only the first in order.
    """

    name: str
    label: str
    is_array: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Columns:
    """Columns of a schema, by their sources. Names are unique."""

    schema: Schema
    """All columns, in the order of Spark's schema."""
    reserved: tuple[str, ...]
    """Names of the columns which describe the message: keys of `RESERVED`."""
    labels: tuple[PartitionColumn, ...]
    """Columns of the journal's labels; `is_array` is their type in this schema."""
    documents: Schema
    """Columns of the message's content. May be empty."""
    corrupt: str | None
    """Name of the column with the texts of bad records, if there is one."""


def parse_schema(text: str) -> Schema:
    """Return the exact Arrow schema of Spark's schema.

    Args:
        text: JSON of the schema, as `StructType.json()` returns it.

    Raises:
        ConfigurationError: A column's type isn't supported, or the text isn't a schema.
    """
    try:
        kind = _arrow_type(json.loads(text), "")
    except (ValueError, RecursionError):
        kind = None
    if kind is None or not pa.types.is_struct(kind):
        raise ConfigurationError(f"expected the JSON of a schema of Spark, and not {text[:80]!r}")
    schema: Schema = pa.schema([kind.field(index) for index in range(kind.num_fields)])
    return schema


def _field(field: Any, path: str) -> Any:
    match field:
        case {"name": str(name), "type": kind, "nullable": bool(nullable)}:
            return _any_field(name, kind, f"{path}.{name}" if path else name, nullable=nullable)
        case _:
            raise _malformed(path, field)


def _any_field(name: str, kind: Any, path: str, *, nullable: bool) -> Any:
    arrow_type = _arrow_type(kind, path)
    if not nullable and arrow_type == pa.null():
        raise ConfigurationError(f"column {path!r}: VOID can't be NOT NULL")
    return pa.field(name, arrow_type, nullable)


def _arrow_type(kind: Any, path: str) -> Any:
    match kind:
        case str():
            return _atomic_type(kind, path)
        case {"type": "struct", "fields": [*fields]}:
            return pa.struct([_field(field, path) for field in fields])
        case {"type": "array", "elementType": element, "containsNull": bool(nullable)}:
            return pa.list_(_any_field("element", element, f"{path}[]", nullable=nullable))
        case {
            "type": "map",
            "keyType": key,
            "valueType": value,
            "valueContainsNull": bool(nullable),
        }:
            return pa.map_(
                _any_field("key", key, f"{path}.key", nullable=False),
                _any_field("value", value, f"{path}.value", nullable=nullable),
            )
        case {"type": "udt", "sqlType": sql_type}:
            return _arrow_type(sql_type, path)
        case _:
            raise _malformed(path, kind)


def _atomic_type(name: str, path: str) -> Any:
    if (kind := _SIMPLE.get(name)) is not None:
        return kind
    for pattern, kind in _FAMILIES:
        if pattern.fullmatch(name):
            return kind
    if match := _DECIMAL.fullmatch(name):
        try:
            return pa.decimal128(int(match[1]), int(match[2]))
        except ValueError as error:
            raise ConfigurationError(f"column {path!r}: {name.upper()}: {error}") from None
    text = f"column {path!r}: type {name.upper()} isn't supported"
    for prefix, instead in _INSTEAD:
        if name.startswith(prefix):
            text += f": {instead}"
            break
    raise ConfigurationError(text)


def _malformed(path: str, value: Any) -> ConfigurationError:
    where = f"column {path!r}" if path else "the schema"
    return ConfigurationError(f"{where}: {str(value)[:80]!r} isn't a type of Spark")


def default_schema(
    partition_columns: Sequence[PartitionColumn] = (), *, has_key: bool = False
) -> Schema:
    """Return the schema of a source without a user's schema: undecoded messages."""
    names = (KEY_COLUMN, *_DEFAULT) if has_key else _DEFAULT
    fields = [pa.field(name, RESERVED[name]) for name in names]
    fields += [
        pa.field(column.name, _LABELS if column.is_array else pa.string())
        for column in partition_columns
    ]
    schema: Schema = pa.schema(fields)
    return schema


_LABELS: Final = pa.list_(pa.field("element", pa.string()))


def classify(
    schema: Schema,
    *,
    partition_columns: Sequence[PartitionColumn] = (),
    corrupt_column: str = CORRUPT_COLUMN,
) -> Columns:
    """Return the sources of a schema's columns, which depend on their exact names.

    Args:
        schema: Exact Arrow schema.
        partition_columns: Columns of labels; the schema needn't have them.
        corrupt_column: Name of the column with the texts of bad records; the schema needn't have
            it.

    Raises:
        ConfigurationError: A name occurs twice, or differs from a special name by case only; or a
            special column has a wrong type.
    """
    special = {name.lower(): name for name in RESERVED}
    special |= {column.name.lower(): column.name for column in partition_columns}
    special[corrupt_column.lower()] = corrupt_column
    labels = {column.name: column for column in partition_columns}
    found_reserved: list[str] = []
    found_labels: list[PartitionColumn] = []
    documents: list[Any] = []
    corrupt: str | None = None
    if not len(schema):
        raise ConfigurationError("the schema has no columns")
    names: set[str] = set()
    for field in list[Any](schema):
        name = field.name
        if name in names:
            raise ConfigurationError(f"there's more than one column {name!r}")
        names.add(name)
        if special.get(name.lower(), name) != name:
            raise ConfigurationError(f"column {name!r} must be spelt {special[name.lower()]!r}")
        if name == corrupt_column:
            _check_type(field, pa.string())
            if not field.nullable:
                raise ConfigurationError(f"column {name!r} can't be NOT NULL")
            corrupt = name
        elif name in RESERVED:
            _check_type(field, RESERVED[name])
            found_reserved.append(name)
        elif name in labels:
            is_array = pa.types.is_list(field.type)
            if not is_array or field.type.value_type != pa.string():
                _check_type(field, pa.string(), "STRING or ARRAY<STRING>")
            found_labels.append(labels[name]._replace(is_array=is_array))
        else:
            documents.append(field)
    return Columns(
        schema, tuple(found_reserved), tuple(found_labels), pa.schema(documents), corrupt
    )


def _check_type(field: Any, kind: Any, expected: str | None = None) -> None:
    if field.type != kind:
        expected = expected or _sql_name(kind)
        actual = _sql_name(field.type)
        raise ConfigurationError(f"column {field.name!r} must be {expected}, and not {actual}")


def _sql_name(kind: Any) -> str:
    if (name := _NAMES.get(kind)) is not None:
        return _SQL_NAMES.get(name, name.upper())
    if pa.types.is_list(kind):
        return f"ARRAY<{_sql_name(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return "a STRUCT"
    return str(kind)
