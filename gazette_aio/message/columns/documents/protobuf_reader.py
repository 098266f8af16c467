"""Reader of protobuf messages as columns: their fields by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.descriptor import FieldDescriptor

from gazette_aio.message.columns.documents.conversion import (
    FRACTION_DIGITS,
    Parsed,
    convert_values,
    decode_singly,
    is_bytes,
    is_float,
    is_text,
    is_text_dictionary,
)
from gazette_aio.message.columns.documents.messages import payloads_of
from gazette_aio.message.columns.pyarrow_api import pa
from gazette_aio.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from gazette_aio.message.adapters.protobuf import ProtobufAdapter
    from gazette_aio.message.columns.documents.messages import Messages

_Getter = Callable[[Any], Any]
_LABEL_REPEATED = 3
_HOLDS: Final[dict[int, Callable[[Any], bool]]] = {
    FieldDescriptor.CPPTYPE_INT32: pa.types.is_integer,
    FieldDescriptor.CPPTYPE_INT64: pa.types.is_integer,
    FieldDescriptor.CPPTYPE_UINT32: pa.types.is_integer,
    FieldDescriptor.CPPTYPE_UINT64: pa.types.is_integer,
    FieldDescriptor.CPPTYPE_ENUM: pa.types.is_integer,
    FieldDescriptor.CPPTYPE_BOOL: pa.types.is_boolean,
    FieldDescriptor.CPPTYPE_FLOAT: is_float,
    FieldDescriptor.CPPTYPE_DOUBLE: is_float,
    FieldDescriptor.CPPTYPE_STRING: is_text,
}
"""By type of a field: whether a column's type holds its values as they are."""


class ProtobufReader:
    """Reads columns of protobuf messages.

    Args:
        adapter: Adapter of the messages.
        fields: Columns to read.

    Raises:
        ConfigurationError: Messages have no such field, or a type isn't supported.
    """

    def __init__(self, adapter: ProtobufAdapter[Any], fields: list[Any]) -> None:
        self._decode = adapter.decode
        descriptor = adapter.decode(b"").DESCRIPTOR
        self._fields = fields
        self._getters = [_field_getter(descriptor, f.name, f.type) for f in self._fields]

    def read(self, messages: Messages) -> list[Parsed]:
        """Return the columns of messages."""
        decoded, positions, errors = decode_singly(payloads_of(messages), self._decode)
        columns: list[Any] = []
        failed: dict[int, Exception] = {}
        for field, get in zip(self._fields, self._getters, strict=True):
            values = [get(message) for message in decoded]
            columns.append(convert_values(field.name, values, field.type, failed))
        return [Parsed(columns, [None] * len(columns), positions, errors, failed)]


def _field_getter(descriptor: Any, name: str, kind: Any) -> _Getter:
    """Return a getter of a field of messages, as a Python value for a type of Arrow.

    Raises:
        ConfigurationError: There's no such field, or it's of another type.
    """
    field = descriptor.fields_by_name.get(name)
    if field is None:
        raise ConfigurationError(f"{descriptor.full_name} has no field {name!r}")
    if not is_repeated(field):
        convert = _value_converter(field, kind)
        return _single_getter(name, convert, tracks_presence=field.has_presence)
    if _is_map(field):
        return _map_getter(field, kind)
    if not pa.types.is_list(kind):
        raise _mismatch(field, kind)
    convert = _value_converter(field, kind.value_type)
    if convert is None:
        return lambda message: list(getattr(message, name))
    return lambda message: [convert(value) for value in getattr(message, name)]


def _single_getter(name: str, convert: _Getter | None, *, tracks_presence: bool) -> _Getter:
    def get(message: Any) -> Any:
        if tracks_presence and not message.HasField(name):
            return None
        value = getattr(message, name)
        return value if convert is None else convert(value)

    return get


def _map_getter(field: Any, kind: Any) -> _Getter:
    is_map, types = pa.types.is_map(kind), None
    if is_map:
        types = kind.key_type, kind.item_type
    elif pa.types.is_list(kind) and pa.types.is_struct(kind.value_type):
        entry = kind.value_type
        if [child.name for child in entry] == ["key", "value"]:
            types = entry.field(0).type, entry.field(1).type
    if types is None:
        raise _mismatch(field, kind)
    fields = field.message_type.fields_by_name
    convert_key = _value_converter(fields["key"], types[0]) or _identity
    convert_value = _value_converter(fields["value"], types[1]) or _identity
    name = field.name

    def get(message: Any) -> list[Any]:
        entries = getattr(message, name).items()
        if is_map:
            return [(convert_key(k), convert_value(v)) for k, v in entries]
        return [{"key": convert_key(k), "value": convert_value(v)} for k, v in entries]

    return get


def _value_converter(field: Any, kind: Any) -> _Getter | None:
    """Return a converter of single values of a field, or None if they need none."""
    cpp = field.cpp_type
    if is_text_dictionary(kind):
        kind = kind.value_type
    if cpp == FieldDescriptor.CPPTYPE_MESSAGE:
        return _message_converter(field, kind)
    if cpp == FieldDescriptor.CPPTYPE_ENUM and pa.types.is_string(kind):
        names = {value.number: value.name for value in field.enum_type.values}
        return lambda number: names.get(number, str(number))
    holds = is_bytes if field.type == FieldDescriptor.TYPE_BYTES else _HOLDS[cpp]
    if holds(kind):
        return None
    raise _mismatch(field, kind)


def _message_converter(field: Any, kind: Any) -> _Getter:
    descriptor = field.message_type
    if pa.types.is_timestamp(kind) and descriptor.full_name == "google.protobuf.Timestamp":
        unit = 10 ** (9 - FRACTION_DIGITS[kind.unit])
        return lambda time: (time.seconds * 10**9 + time.nanos) // unit
    if not pa.types.is_struct(kind):
        raise _mismatch(field, kind)
    getters = {child.name: _field_getter(descriptor, child.name, child.type) for child in kind}
    return lambda message: {name: get(message) for name, get in getters.items()}


def _identity(value: Any) -> Any:
    return value


def is_repeated(field: Any) -> bool:
    """Return whether a field is repeated, or a map."""
    repeated: bool | None = getattr(field, "is_repeated", None)
    # Releases of protobuf before 6.31 have the label only, and those since 7 don't.
    return field.label == _LABEL_REPEATED if repeated is None else repeated


def _is_map(field: Any) -> bool:
    message = field.message_type
    return message is not None and bool(message.GetOptions().map_entry)


def _mismatch(field: Any, kind: Any) -> ConfigurationError:
    return ConfigurationError(f"field {field.full_name} can't be decoded to {kind}")
