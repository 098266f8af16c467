"""UUIDs of messages of any schema, and printable texts of messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from gazette_aio.message.adapters.raw import raw_adapter
from gazette_aio.message.framing.csv import parse_record
from gazette_aio.message.uuid import ZERO_UUID, is_time_uuid, parse_uuid, uuid_from_bytes
from gazette_aio.protocol.errors import ConfigurationError, ValidationError
from gazette_aio.protocol.well_known import (
    CONTENT_TYPE_CSV,
    CONTENT_TYPE_JSON_LINES,
    CONTENT_TYPE_PROTO_FIXED,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    UUIDOf = Callable[[bytes], UUID]

MAX_PATH: Final = 100
"""Most characters of the path to a UUID."""

_UUID_BYTES: Final = 16
_LENGTH_DELIMITED: Final = 2


def uuid_reader(content_type: str, path: str) -> UUIDOf:
    """Return a function that returns the UUID of an encoded message.

    The function may raise any exception for a message of another type.

    Args:
        content_type: Content type of the journal.
        path: Path of members to the UUID in a JSON document.

    Raises:
        ConfigurationError: The path isn't valid.
        ValidationError: Messages of the content type have no UUIDs.
    """
    if content_type == CONTENT_TYPE_JSON_LINES:
        if len(path) > MAX_PATH:
            raise ConfigurationError("the path to the UUID is too long")
        return raw_adapter(path).uuid
    if content_type == CONTENT_TYPE_CSV:
        return _csv_uuid
    if content_type == CONTENT_TYPE_PROTO_FIXED:
        return wire_uuid
    raise ValidationError(f"messages of this content type can't be told apart: {content_type!r}")


def _csv_uuid(frame: bytes) -> UUID:
    return parse_uuid(parse_record(frame)[0].decode("ascii"))


def wire_uuid(frame: bytes) -> UUID:
    """Return the UUID of a protobuf message of any type, or the zero UUID.

    The UUID is the first field of 16 bytes that are a UUID of version 1.

    Raises:
        ValidationError: The frame isn't a protobuf message.
    """
    try:
        fields = UnknownFieldSet(Empty.FromString(frame))
    except DecodeError:
        raise ValidationError("not a protobuf message") from None
    for field in (fields[index] for index in range(len(fields))):
        if field.wire_type == _LENGTH_DELIMITED and len(field.data) == _UUID_BYTES:
            uuid = uuid_from_bytes(field.data)
            if is_time_uuid(uuid):
                return uuid
    return ZERO_UUID


def text_of(frame: bytes, most: int) -> str:
    """Return the first bytes of a message as text of printable characters."""
    text = frame[:most].decode("utf-8", "replace")
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in "\n\t" else "·" for each in text)
