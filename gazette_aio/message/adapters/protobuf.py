"""Adapter of messages of generated protobuf classes."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from gazette_aio.message.adapters.base import SplitMessages, UUIDPlace
from gazette_aio.message.uuid import RAW_LENGTH, ZERO_UUID, uuid_from_bytes
from gazette_aio.protocol.errors import ConfigurationError
from gazette_aio.protocol.varint import encode_varint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

M = TypeVar("M", bound=Message)

_LENGTH_DELIMITED = 2


class ProtobufAdapter(Generic[M]):
    """Adapter of messages of a protobuf class. Made by `protobuf_adapter()`.

    The UUID is a bytes field. An acknowledgement has no other field. On reading, an empty UUID is
    zero.
    """

    uuid_is_text = False

    def __init__(self, cls: type[M], uuid_field: str) -> None:
        if not hasattr(cls, "DESCRIPTOR"):
            raise ConfigurationError(f"expected a generated class of messages, not {cls!r}")
        field = cls.DESCRIPTOR.fields_by_name.get(uuid_field)
        if field is None or field.type != FieldDescriptor.TYPE_BYTES:
            text = f"{cls.DESCRIPTOR.full_name} has no bytes field {uuid_field}"
            raise ConfigurationError(f"{text} for the UUID: name that field by uuid_field=")
        self._cls = cls
        self.message_types: tuple[type, ...] | None = (cls,)
        """Classes of messages."""
        self._parse = cls.FromString
        self._field = uuid_field
        # Wire: one that is there is written even if it's empty, and the last one of all counts.
        self._is_set: Callable[[M], object] = (
            (lambda message: message.HasField(uuid_field))
            if field.has_presence
            else attrgetter(uuid_field)
        )
        # Wire: a field's order within a message is free, so that the UUID may come first.
        self._tag = encode_varint(field.number << 3 | _LENGTH_DELIMITED) + bytes((RAW_LENGTH,))
        self.uuid_place: UUIDPlace | None = UUIDPlace(self._tag, b"", text=False)

    def decode(self, frame: bytes) -> M:
        """Return the parsed message."""
        return self._parse(frame)

    def encode(self, message: M, uuid: UUID) -> bytes:
        """Return `message` serialized, with `uuid`."""
        return self._tag + uuid.bytes + self._rest(message)

    def split(self, messages: Sequence[M]) -> SplitMessages:
        """Return messages serialized, without their UUIDs."""
        return SplitMessages(self._tag, b"", [self._rest(message) for message in messages])

    def message(self, fields: dict[str, Any]) -> M:
        """Return a message of values by the names of fields. Values that are None are left out.

        Raises:
            ValueError: There's no such field.
            TypeError: A value isn't of the type of its field.
        """
        return self._cls(**{name: value for name, value in fields.items() if value is not None})

    def _rest(self, message: M) -> bytes:
        if self._is_set(message):
            copied = self._cls()
            copied.CopyFrom(message)
            copied.ClearField(self._field)
            message = copied
        return message.SerializeToString()

    def uuid(self, message: M) -> UUID:
        """Return the UUID of `message`.

        Raises:
            ValidationError: It isn't of 16 bytes.
        """
        raw: bytes = getattr(message, self._field)
        return uuid_from_bytes(raw) if raw else ZERO_UUID

    def frame_uuid(self, frame: bytes) -> UUID:
        """Return the UUID of a serialized message."""
        tag = len(self._tag)
        if frame.startswith(self._tag) and len(frame) >= tag + RAW_LENGTH:
            return uuid_from_bytes(frame[tag : tag + RAW_LENGTH])
        return self.uuid(self._parse(frame))

    def acknowledgement(self, uuid: UUID) -> bytes:
        """Return a message whose only field is the UUID."""
        return self._tag + uuid.bytes


def protobuf_adapter(cls: type[M], uuid_field: str = "uuid") -> ProtobufAdapter[M]:
    """Return an adapter of messages of a generated protobuf class.

    Args:
        cls: The class.
        uuid_field: Name of its bytes field that holds the UUID.

    Raises:
        ConfigurationError: The class has no such field.
    """
    return ProtobufAdapter(cls, uuid_field)
