"""Keys of messages: the value of one member, as mappings of publishers hash it.

| member | key |
| --- | --- |
| text | its UTF-8 |
| bytes | the bytes |
| number, boolean | its JSON text |
| missing, null, object, array | none |
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gazette_aio.message.columns.documents.protobuf_reader import is_repeated
from gazette_aio.message.framing.csv import parse_record
from gazette_aio.protocol.errors import ConfigurationError, FramingError

if TYPE_CHECKING:
    from collections.abc import Callable

    KeyReader = Callable[[bytes], bytes | None]
    """Returns the key of a message's frame. Frames that can't be decoded have none."""

_OPTION: Final = "option 'keyColumn'"
_read_text: Final = msgspec.json.Decoder(str).decode
_COMPOSITE: Final = frozenset(b"{[")
_QUOTE: Final = ord('"')


def json_key_reader(member: str) -> KeyReader:
    """Return a reader of a member of JSON documents.

    Args:
        member: Name of the member; names of a nested one are separated by dots.
    """
    path = member.split(".")
    kind: Any = msgspec.Raw
    for name in reversed(path):
        field = msgspec.field(default=None, name=name)
        is_leaf = kind is msgspec.Raw
        kind = msgspec.defstruct("Keyed", [("member", kind if is_leaf else kind | None, field)])
    decode = msgspec.json.Decoder(kind).decode
    value_of = attrgetter(".".join(["member"] * len(path)))

    def read(frame: bytes) -> bytes | None:
        try:
            raw = value_of(decode(frame))
        except (msgspec.MsgspecError, AttributeError):
            return None
        text = b"null" if raw is None else bytes(raw)
        if text[0] == _QUOTE:
            return _read_text(text).encode()
        return None if text == b"null" or text[0] in _COMPOSITE else text

    return read


def csv_key_reader(member: str) -> KeyReader:
    """Return a reader of a column of CSV records.

    Args:
        member: Index of the column; the column of UUIDs counts.

    Raises:
        ConfigurationError: It isn't an index.
    """
    if not (member.isascii() and member.isdecimal()):
        raise ConfigurationError(f"{_OPTION} must be the index of a column for records of CSV")
    index = int(member)

    def read(frame: bytes) -> bytes | None:
        try:
            return parse_record(frame)[index]
        except (FramingError, IndexError):
            return None

    return read


def protobuf_key_reader(member: str, cls: Any) -> KeyReader:
    """Return a reader of a field of protobuf messages.

    Args:
        member: Name of the field; names of a nested one are separated by dots.
        cls: Class of the messages.

    Raises:
        ConfigurationError: There is no such field, or it holds several values or a message.
    """
    path = member.split(".")
    descriptor = cls.DESCRIPTOR
    for depth, name in enumerate(path):
        field = None if descriptor is None else descriptor.fields_by_name.get(name)
        if field is None:
            raise ConfigurationError(f"{_OPTION}: messages have no field {member!r}")
        descriptor = field.message_type
        is_leaf = depth == len(path) - 1
        if is_repeated(field) or (is_leaf and descriptor is not None):
            raise ConfigurationError(f"{_OPTION}: field {member!r} isn't a single value")
    parse = cls.FromString

    def read(frame: bytes) -> bytes | None:
        try:
            value = parse(frame)
        except Exception:  # noqa: BLE001 - each implementation of protobuf has a class of its own.
            return None
        for name in path[:-1]:
            if not value.HasField(name):
                return None
            value = getattr(value, name)
        value = getattr(value, path[-1])
        if isinstance(value, str):
            return value.encode()
        return value if isinstance(value, bytes) else msgspec.json.encode(value)

    return read
