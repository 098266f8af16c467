"""Adapters of records of comma-separated values: as lists of fields, and as values of a type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_origin, overload

import msgspec

from gazette_aio.message.adapters.base import SplitMessages
from gazette_aio.message.framing.csv import encode_record, parse_record
from gazette_aio.message.uuid import ZERO_UUID, parse_uuid
from gazette_aio.protocol.errors import ConfigurationError, ValidationError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

T = TypeVar("T")


class CSVAdapter:
    """Adapter of records: lists of fields, one of which is the UUID. Made by `csv_adapter()`.

    Fields that aren't UTF-8 keep their bytes as surrogate escapes.
    """

    uuid_is_text = True
    message_types: tuple[type, ...] | None = (list, tuple)
    """Classes of messages."""

    def __init__(self, columns: int | None, uuid_column: int) -> None:
        if uuid_column < 0 or (columns is not None and uuid_column >= columns):
            raise ConfigurationError(f"invalid UUID column {uuid_column}")
        self._columns = columns
        self.uuid_column = uuid_column
        """Index of the field that holds the UUID."""

    def decode(self, frame: bytes) -> list[str]:
        """Return the fields of a record."""
        fields = [field.decode("utf-8", "surrogateescape") for field in parse_record(frame)]
        if self._columns is None:
            self._columns = len(fields)
        return fields

    def encode(self, message: list[str], uuid: UUID) -> bytes:
        """Return the record of `message`, whose UUID column is replaced.

        Raises:
            ValidationError: It has another number of fields than the journal's records, or a field
                isn't text.
        """
        head, rest = self._split(message)
        return head + str(uuid).encode() + rest

    def split(self, messages: Sequence[list[str]]) -> SplitMessages:
        """Return the records of messages, without their UUIDs.

        Raises:
            ValidationError: One has another number of fields than the journal's records, or a field
                isn't text.
        """
        parts = [self._split(message) for message in messages]
        return SplitMessages([head for head, _ in parts], b"", [rest for _, rest in parts])

    def record(self, fields: Sequence[str]) -> list[str]:
        """Return the record of `fields`, with an empty field for the UUID."""
        return [*fields[: self.uuid_column], "", *fields[self.uuid_column :]]

    def _split(self, message: list[str]) -> tuple[bytes, bytes]:
        columns = len(message)
        if columns != (self._columns or columns):
            raise ValidationError(f"record has {columns} fields (expected {self._columns})")
        if columns <= self.uuid_column:
            raise ValidationError(f"record has {columns} fields, but no field of the UUID")
        parts = self._around(message)
        self._columns = columns
        return parts

    def uuid(self, message: list[str]) -> UUID:
        """Return the UUID of a record.

        Raises:
            ValidationError: It's invalid.
        """
        if len(message) <= self.uuid_column:
            raise ValidationError("fields are empty")
        return parse_uuid(message[self.uuid_column])

    def acknowledgement(self, uuid: UUID) -> bytes:
        """Return a record of empty fields, but for the UUID.

        Raises:
            ValidationError: The number of columns isn't known yet.
        """
        if self._columns is None:
            raise ValidationError("unknown number of columns")
        head, rest = self._around([""] * self._columns)
        return head + str(uuid).encode() + rest

    def _around(self, message: list[str]) -> tuple[bytes, bytes]:
        """Return the record of `message` before and after its UUID."""
        fields: list[bytes] = []
        try:
            fields += (field.encode("utf-8", "surrogateescape") for field in message)
        except (AttributeError, UnicodeEncodeError) as error:
            # The fields before it were added.
            text = f"field {len(fields)}, counted from zero, isn't text: {error}"
            raise ValidationError(text) from error
        before, behind = fields[: self.uuid_column], fields[self.uuid_column + 1 :]
        # An empty field at the end has `encode_record()` write the comma.
        return encode_record([*before, b""]), encode_record([b"", *behind])


class TypedCSVAdapter(Generic[T]):
    """Adapter of records as values of a type, whose members are the columns in their order.

    The type has no member for the UUID. Made by `csv_adapter()`.

    Args:
        kind: Dataclass, msgspec Struct, or named tuple.
        uuid_column: Index of the field that holds the UUID.

    Raises:
        ConfigurationError: The type isn't supported, or there's no such column.
    """

    uuid_is_text = True

    def __init__(self, kind: type[T], uuid_column: int) -> None:
        self.message_types: tuple[type, ...] | None = (kind,)
        """Classes of messages."""
        self._kind = kind
        self._names, self._keys, self._nullable = _members_of(kind)
        self.records: CSVAdapter = CSVAdapter(len(self._names) + 1, uuid_column)
        """Adapter of the same records, as lists of fields."""
        config = getattr(kind, "__struct_config__", None)
        is_array = config is not None and bool(config.array_like)
        self._is_tuple = issubclass(kind, tuple) or is_array

    def decode(self, frame: bytes) -> T:
        """Return the value of a record.

        Raises:
            ValidationError: It has another number of fields than the type has members.
            msgspec.ValidationError: A field isn't the text of its member's type.
        """
        fields: list[Any] = self.records.decode(frame)
        del fields[self.records.uuid_column]
        if len(fields) != len(self._keys):
            expected = len(self._keys) + 1
            raise ValidationError(f"record has {len(fields) + 1} fields (expected {expected})")
        for index in self._nullable:
            if not fields[index]:
                fields[index] = None
        value = fields if self._is_tuple else dict(zip(self._keys, fields, strict=True))
        return msgspec.convert(value, self._kind, strict=False)

    def encode(self, message: T, uuid: UUID) -> bytes:
        """Return the record of `message`, stamped with `uuid`.

        Raises:
            ValidationError: A member has no text.
        """
        return self.records.encode(self._record(message), uuid)

    def split(self, messages: Sequence[T]) -> SplitMessages:
        """Return the records of messages, without their UUIDs.

        Raises:
            ValidationError: A member has no text.
        """
        return self.records.split([self._record(message) for message in messages])

    def uuid(self, message: T) -> UUID:  # noqa: ARG002
        """Return the zero UUID: values of the type have none."""
        return ZERO_UUID

    def frame_uuid(self, frame: bytes) -> UUID:
        """Return the UUID of a record.

        Raises:
            ValidationError: It's invalid.
        """
        return self.records.uuid(self.records.decode(frame))

    def acknowledgement(self, uuid: UUID) -> bytes:
        """Return a record of empty fields, but for the UUID."""
        return self.records.acknowledgement(uuid)

    def _record(self, message: T) -> list[str]:
        return self.records.record([_text_of(getattr(message, name)) for name in self._names])


# Lists are the one type of messages that isn't the type of a record.
@overload
def csv_adapter(  # type: ignore[overload-overlap]
    type: type[list[str]] = ..., *, columns: int | None = ..., uuid_column: int = ...
) -> CSVAdapter: ...
@overload
def csv_adapter(type: type[T], *, uuid_column: int = ...) -> TypedCSVAdapter[T]: ...
def csv_adapter(
    type: Any = list,  # noqa: A002
    *,
    columns: int | None = None,
    uuid_column: int = 0,
) -> CSVAdapter | TypedCSVAdapter[Any]:
    """Return an adapter of CSV records.

    Fields of a typed record are converted as JSON would have them: numbers, `true` and `false`, ISO
    dates and times, values of enums, UUIDs. An empty field is None if its member may be None but
    not text.

    Args:
        type: Type of messages: `list[str]` of all fields, that of the UUID included; or a
            dataclass, msgspec Struct or named tuple, whose members are the other columns in their
            order.
        columns: Number of fields of each record of `list[str]`. By default that of the first record
            which is encoded or decoded.
        uuid_column: Index of the field that holds the UUID as text.

    Raises:
        ConfigurationError: There's no such column, or the type isn't supported.
    """
    if type is list or get_origin(type) is list:
        return CSVAdapter(columns, uuid_column)
    if columns is not None:
        raise ConfigurationError("columns: the type determines the number of columns")
    return TypedCSVAdapter(type, uuid_column)


def _members_of(kind: type[Any]) -> tuple[list[str], list[str], list[int]]:
    """Return attributes and encoded names of members, and indices of those that may be null."""
    try:
        info: Any = msgspec.inspect.type_info(kind)
    except (TypeError, NameError) as error:
        raise ConfigurationError(f"records of {kind!r} are not supported: {error}") from error
    if not isinstance(
        info,
        (
            msgspec.inspect.StructType,
            msgspec.inspect.DataclassType,
            msgspec.inspect.NamedTupleType,
        ),
    ):
        text = "expected a dataclass, a msgspec Struct or a named tuple"
        raise ConfigurationError(f"records of {kind!r} are not supported: {text}")
    names = [field.name for field in info.fields]
    keys = [field.encode_name for field in info.fields]
    nullable = [index for index, field in enumerate(info.fields) if _is_nullable(field.type)]
    return names, keys, nullable


def _is_nullable(kind: object) -> bool:
    """Whether an empty field is null: it may be, and isn't a text."""
    if not isinstance(kind, msgspec.inspect.UnionType):
        return False
    texts = (msgspec.inspect.StrType, msgspec.inspect.AnyType, msgspec.inspect.BytesType)
    return kind.includes_none and not any(isinstance(each, texts) for each in kind.types)


def _text_of(value: Any) -> str:
    if isinstance(value, str):
        return str(value)
    if value is None:
        return ""
    if not isinstance(value, (bool, int, float)):
        # Enums, times, decimals, UUIDs and bytes, as JSON has them.
        try:
            value = msgspec.to_builtins(value)
        except TypeError as error:
            raise ValidationError(str(error)) from error
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    raise ValidationError(f"a field can't hold {value!r}")
