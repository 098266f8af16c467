"""Adapter of CSV records as values of a type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from gazette_aio.message.uuid import ZERO_UUID
from gazette_aio.protocol.errors import ConfigurationError, ValidationError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from gazette_aio.message.adapters.base import SplitMessages
    from gazette_aio.message.adapters.csv import CSVAdapter

T = TypeVar("T")


class TypedCSVAdapter(Generic[T]):
    """Adapter of records as values of a type, whose members are the columns in their order.

    The type has no member for the UUID. Made by `csv_adapter()`.

    Args:
        kind: Dataclass, msgspec Struct, or named tuple.
        records: Adapter of the records.

    Raises:
        ConfigurationError: The type isn't supported.
    """

    uuid_is_text = True

    def __init__(self, kind: type[T], records: CSVAdapter) -> None:
        self.records = records
        """Adapter of the same records, as lists of fields."""
        self.message_types: tuple[type, ...] | None = (kind,)
        """Classes of messages."""
        self._kind = kind
        self._names, self._keys, self._nullable = _members_of(kind)
        self._is_tuple = issubclass(kind, tuple) or _is_array(kind)

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


def column_count(kind: type) -> int:
    """Return the number of columns of a type's records, that of the UUID included.

    Raises:
        ConfigurationError: The type isn't supported.
    """
    return len(_members_of(kind)[0]) + 1


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


def _is_array(kind: Any) -> bool:
    config = getattr(kind, "__struct_config__", None)
    return config is not None and bool(config.array_like)


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
