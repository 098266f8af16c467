"""Schemas of documents, inferred from a sample of messages.

All messages of the sample are good records of the schema. Values of contradicting types, such as
text and numbers, and objects without members are thus left out. So are the UUID, which has the
column `_uuid`, and fields with the names of special columns.

| format | columns |
| --- | --- |
| ndjson | members of objects, in the order of their names as in Spark's own JSON source |
| csv | `_c0`, `_c1`, … by position, without the UUID's column |
| protobuf-fixed | fields of the message type, in its order, regardless of the sample |

Numbers of JSON and CSV are BIGINT, or DOUBLE if one has a fraction, an exponent, or more than 64
bits. Columns of nulls are STRING. Times stay text. Of protobuf, enums are STRING, unsigned numbers
are BIGINT, and recursive fields are left out.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, cast

from google.protobuf.descriptor import FieldDescriptor

from gazette_aio.message.columns.documents.protobuf_reader import is_repeated
from gazette_aio.message.columns.pyarrow_api import pa
from gazette_aio.message.uuid import ACK_TXN, get_flags
from gazette_aio.protocol.errors import ConfigurationError
from gazette_aio.spark.rows.formats import PlacedCSVAdapter, format_of, message_class, uuid_field
from gazette_aio.spark.types import KEY_COLUMN, RESERVED, default_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyarrow import Schema

    from gazette_aio.message.adapters.json import JSONAdapter
    from gazette_aio.spark.options import SourceOptions

_MAX_DEPTH: Final = 32
"""Greatest nesting of objects and arrays. Deeper values are left out."""
_MAX_LONG: Final = 1 << 63
_MAX_DOUBLE: Final = int(sys.float_info.max)
_TIMESTAMP: Final = pa.timestamp("us", "UTC")
_CPP_KINDS: Final = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.int64(),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
    FieldDescriptor.CPPTYPE_STRING: pa.string(),
}


def infer_schema(options: SourceOptions, content_type: str, messages: Iterable[bytes]) -> Schema:
    """Return the exact Arrow schema of documents, followed by the columns of labels.

    Args:
        options: Options of the source.
        content_type: Content type of the messages' journal.
        messages: Messages without their framing. Acknowledgements and bad messages are ignored.

    Raises:
        ConfigurationError: Messages have no columns, or there are no messages.
    """
    found = format_of(options, content_type)
    if found.kind == "raw":
        raise ConfigurationError(
            f"no schema can be inferred from messages of content type {content_type!r}:"
            " set option 'format', or pass a schema"
        )
    if found.kind == "protobuf-fixed":
        fields = _protobuf_fields(options)
    elif isinstance(found.adapter, PlacedCSVAdapter):
        fields = _csv_fields(found.adapter, messages)
    else:
        fields = _json_fields(cast("JSONAdapter[Any]", found.adapter), messages)
    has_key = options.key_column is not None
    labels = [
        field
        for field in list[Any](default_schema(options.partition_columns, has_key=has_key))
        if field.name not in RESERVED or field.name == KEY_COLUMN
    ]
    special = {name.lower() for name in (*RESERVED, options.corrupt_column)}
    special |= {field.name.lower() for field in labels}
    fields = [field for field in fields if field.name.lower() not in special]
    if not fields:
        raise ConfigurationError(
            "no schema can be inferred, because no message has columns: pass a schema"
        )
    schema: Schema = pa.schema([*fields, *labels])
    return schema


def _decoded(
    adapter: JSONAdapter[Any] | PlacedCSVAdapter, messages: Iterable[bytes]
) -> Iterator[Any]:
    """Yield the decoded messages without acknowledgements and bad messages."""
    for message in messages:
        try:
            uuid = adapter.frame_uuid(message)
            decoded = adapter.decode(message)
        except Exception:  # noqa: BLE001, S112 - the message is bad with any schema.
            continue
        if get_flags(uuid) != ACK_TXN:
            yield decoded


def _json_fields(adapter: JSONAdapter[Any], messages: Iterable[bytes]) -> list[Any]:
    seen = _Seen()
    *parents, name = adapter.uuid_path
    for document in _decoded(adapter, messages):
        holder: dict[str, Any] | None = document
        for parent in parents:
            # The UUID was read, thus these are objects or null.
            holder = None if holder is None else holder.get(parent)
        if holder is not None:
            holder.pop(name, None)
        seen.add(document)
    return seen.fields()


class _Seen:
    """Kinds of values in one place of documents."""

    def __init__(self, depth: int = 0) -> None:
        self._depth = depth
        self._kinds: set[str] = set()
        self._members: dict[str, _Seen] = {}
        self._element: _Seen | None = None

    def add(self, value: Any) -> None:
        """Add a value."""
        if value is None:
            return
        if isinstance(value, (dict, list)) and self._depth == _MAX_DEPTH:
            self._kinds.add("deep")
        elif isinstance(value, dict):
            self._kinds.add("struct")
            for name, member in cast("dict[str, Any]", value).items():
                if (seen := self._members.get(name)) is None:
                    seen = self._members[name] = _Seen(self._depth + 1)
                seen.add(member)
        elif isinstance(value, list):
            self._kinds.add("array")
            if self._element is None:
                self._element = _Seen(self._depth + 1)
            for element in cast("Iterable[Any]", value):
                self._element.add(element)
        elif isinstance(value, bool):
            self._kinds.add("boolean")
        elif isinstance(value, str):
            self._kinds.add("string")
        elif isinstance(value, int) and not -_MAX_DOUBLE <= value <= _MAX_DOUBLE:
            self._kinds.add("huge")
        else:
            is_long = isinstance(value, int) and -_MAX_LONG <= value < _MAX_LONG
            self._kinds.add("long" if is_long else "double")

    def fields(self) -> list[Any]:
        """Return the fields of objects."""
        types = [(name, self._members[name].kind()) for name in sorted(self._members)]
        return [pa.field(name, kind) for name, kind in types if kind is not None]

    def kind(self) -> Any:
        """Return the type of all values, or None if there is none."""
        kinds = self._kinds
        if kinds <= {"string"}:
            return pa.string()
        if kinds <= {"long", "double"}:
            return pa.float64() if "double" in kinds else pa.int64()
        if kinds == {"boolean"}:
            return pa.bool_()
        if kinds == {"array"}:
            assert self._element is not None
            element = self._element.kind()
            return None if element is None else _list(element)
        fields = self.fields() if kinds == {"struct"} else []
        return pa.struct(fields) if fields else None


def _list(kind: Any) -> Any:
    return pa.list_(pa.field("element", kind))


def _csv_fields(adapter: PlacedCSVAdapter, messages: Iterable[bytes]) -> list[Any]:
    records = list(_decoded(adapter, messages))
    for record in records:
        del record[adapter.uuid_column]
    # Records with fewer fields than columns would be bad.
    width = min(map(len, records), default=0)
    columns = [[record[index] for record in records] for index in range(width)]
    return [pa.field(f"_c{index}", _text_kind(texts)) for index, texts in enumerate(columns)]


def _text_kind(texts: list[str]) -> Any:
    values = [text for text in texts if text]
    try:
        column = pa.array(values, pa.string())
    except UnicodeEncodeError:
        return pa.binary()
    # Arrow parses hexadecimal numbers, but such values are rather texts.
    if not values or any(text[:2].lower() == "0x" for text in values):
        return pa.string()
    # Arrow also parses digits as booleans.
    truths = () if "0" in values or "1" in values else (pa.bool_(),)
    for kind in (pa.int64(), pa.float64(), *truths):
        try:
            column.cast(kind)
        except pa.ArrowInvalid:
            continue
        return kind
    return pa.string()


def _protobuf_fields(options: SourceOptions) -> list[Any]:
    if options.message_type is None:
        raise ConfigurationError("a schema of protobuf messages needs the option 'messageType'")
    cls = message_class(options.message_type)
    fields = _message_fields(cls.DESCRIPTOR, ())
    name = options.uuid or uuid_field(cls, options.message_type)
    return [field for field in fields if field.name != name]


def _message_fields(descriptor: Any, within: tuple[str, ...]) -> list[Any]:
    within = (*within, descriptor.full_name)
    types = [(field.name, _field_kind(field, within)) for field in descriptor.fields]
    return [pa.field(name, kind) for name, kind in types if kind is not None]


def _field_kind(field: Any, within: tuple[str, ...]) -> Any:
    """Return the type of a field, or None to leave the field out."""
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        key, value = message.fields_by_name["key"], message.fields_by_name["value"]
        kind = _value_kind(value, within)
        if kind is None:
            return None
        return pa.map_(
            pa.field("key", _value_kind(key, within), nullable=False), pa.field("value", kind)
        )
    kind = _value_kind(field, within)
    return _list(kind) if kind is not None and is_repeated(field) else kind


def _value_kind(field: Any, within: tuple[str, ...]) -> Any:
    message = field.message_type
    if message is None:
        if field.type == field.TYPE_BYTES:
            return pa.binary()
        return _CPP_KINDS[field.cpp_type]
    if message.full_name == "google.protobuf.Timestamp":
        return _TIMESTAMP
    if message.full_name in within:
        return None
    fields = _message_fields(message, within)
    return pa.struct(fields) if fields else None
