"""Formats of messages: their framing, and the places of UUIDs.

| format | frames | UUIDs |
| --- | --- | --- |
| ndjson | lines | at `/_meta/uuid` |
| csv | records | in the first column |
| protobuf-fixed | fixed frames | in the field `uuid`, or else in field number 1 |
| raw | by the journal's content type; for unknown types, chunks of up to 1 MiB | likewise |

Messages of the first three formats should have UUIDs: JSON documents and protobuf messages without
a UUID have the zero UUID, and an invalid UUID makes a message bad. Raw messages may have an invalid
UUID, or none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, cast

from gazette_aio.message.adapters.base import UUIDPlace
from gazette_aio.message.adapters.csv import CSVAdapter
from gazette_aio.message.adapters.json_types import json_adapter
from gazette_aio.message.adapters.protobuf import protobuf_adapter
from gazette_aio.message.adapters.raw import raw_adapter
from gazette_aio.message.envelopes.origin import JournalFormat, Origin
from gazette_aio.message.framing import find_framing
from gazette_aio.message.uuid import ZERO_UUID, uuid_from_bytes
from gazette_aio.protocol import JournalSpec
from gazette_aio.protocol.errors import ConfigurationError, ValidationError
from gazette_aio.protocol.varint import decode_varint
from gazette_aio.protocol.well_known import (
    CONTENT_TYPE_CSV,
    CONTENT_TYPE_JSON_LINES,
    CONTENT_TYPE_PROTO_FIXED,
)
from gazette_aio.spark.references import import_object
from gazette_aio.spark.rows.keys import csv_key_reader, json_key_reader, protobuf_key_reader
from gazette_aio.spark.types import KEY_COLUMN

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from gazette_aio.message.adapters.base import Adapter
    from gazette_aio.message.framing import Framing
    from gazette_aio.spark.options import SinkOptions, SourceOptions
    from gazette_aio.spark.rows.keys import KeyReader

Kind: TypeAlias = Literal["raw", "ndjson", "csv", "protobuf-fixed"]
Isolation: TypeAlias = Literal["read-committed", "read-uncommitted"]

_KINDS: Final[Mapping[str, Kind]] = {
    CONTENT_TYPE_JSON_LINES: "ndjson",
    CONTENT_TYPE_CSV: "csv",
    CONTENT_TYPE_PROTO_FIXED: "protobuf-fixed",
}
_CONTENT_TYPES: Final[Mapping[Kind | None, str]] = {kind: label for label, kind in _KINDS.items()}


class Format(NamedTuple):
    """Format of a journal's messages."""

    content_type: str
    """Content type of journals."""
    kind: Kind
    """Kind of format; raw messages have no columns of documents."""
    framing: Framing | None
    """None if it's unknown: rows are then chunks of content."""
    adapter: Adapter[Any]

    @property
    def is_lenient(self) -> bool:
        """Whether messages with an invalid UUID are read as messages without one."""
        return self.kind == "raw"

    def of_journal(self, journal: str) -> JournalFormat[Any]:
        """Return the format of a journal's messages, if the framing is known.

        Raises:
            ConfigurationError: It isn't known.
        """
        if self.framing is None:
            text = f"there is no framing for content type {self.content_type!r}"
            raise ConfigurationError(f"journal {journal}: {text}")
        return JournalFormat(journal, Origin(JournalSpec(name=journal)), self.framing, self.adapter)


def format_of(options: SourceOptions, content_type: str) -> Format:
    """Return the format of a journal.

    The option `format` decides, or else the journal's content type. Messages of other content types
    are raw.

    Args:
        options: Options of the source.
        content_type: Content type of the journal, or empty.

    Raises:
        ConfigurationError: Option 'uuid' or 'messageType' doesn't fit the format.
    """
    kind, framing = kind_of(options, content_type), framing_for(options, content_type)
    framed = _KINDS.get(content_type_for(options, content_type))
    if framed is None:
        return Format(content_type, kind, framing, raw_adapter())
    adapter = adapter_of(framed, options.uuid, options.message_type)
    return Format(content_type, kind, framing, adapter)


def key_reader_of(options: SourceOptions | SinkOptions, content_type: str) -> KeyReader:
    """Return the reader of keys of messages of a content type.

    Raises:
        ConfigurationError: Option 'keyColumn' is missing or doesn't fit the content type.
    """
    member = options.key_column
    if member is None:
        raise ConfigurationError(
            f"column {KEY_COLUMN!r} needs option 'keyColumn', which names a member of messages"
        )
    match _KINDS.get(content_type):
        case "ndjson":
            return json_key_reader(member)
        case "csv":
            return csv_key_reader(member)
        case "protobuf-fixed":
            if options.message_type is None:
                text = "option 'keyColumn' names a field of protobuf messages"
                raise ConfigurationError(f"{text}, which needs 'messageType'")
            return protobuf_key_reader(member, message_class(options.message_type))
        case _:
            raise ConfigurationError(
                f"option 'keyColumn': messages of content type {content_type!r} have no members"
            )


def content_type_for(options: SourceOptions, label: str) -> str:
    """Return the content type of the option `format`, or else of the journal's label."""
    return _CONTENT_TYPES.get(options.format, label)


def framing_for(options: SourceOptions, content_type: str) -> Framing | None:
    """Return the framing for reading journals of a content type, or None if there is none."""
    framing = find_framing(content_type_for(options, content_type))
    # Invariant: the begin of a task doesn't decide which records are bad.
    return None if framing is None else framing.for_ranges()


def kind_of(options: SourceOptions, content_type: str) -> Kind:
    """Return the kind of format of a journal."""
    return options.format or _KINDS.get(content_type, "raw")


def isolation_of(options: SourceOptions, content_type: str) -> Isolation:
    """Return the isolation of reads of a journal.

    The option `isolation` decides. The default is read-committed if messages should have UUIDs.

    Raises:
        ConfigurationError: read-committed is impossible, because the framing is unknown.
    """
    is_raw = kind_of(options, content_type) == "raw"
    if options.isolation is None:
        return "read-uncommitted" if is_raw else "read-committed"
    if options.isolation == "read-committed" and is_raw and find_framing(content_type) is None:
        raise ConfigurationError(
            "option 'isolation': read-committed needs messages, but there is no framing for content"
            f" type {content_type!r}: set option 'format'"
        )
    return options.isolation


def adapter_of(kind: Kind, uuid: str | None, message_type: str | None) -> Adapter[Any]:
    """Return the adapter of messages.

    Args:
        kind: Kind of format; not raw.
        uuid: Option 'uuid'.
        message_type: `module:Class` of protobuf messages. Without it they have no columns.

    Raises:
        ConfigurationError: Option 'uuid' or 'messageType' doesn't fit the format.
    """
    if kind == "ndjson":
        return json_adapter() if uuid is None else json_adapter(uuid_path=uuid)
    if kind == "csv":
        if uuid is not None and not uuid.isdecimal():
            raise ConfigurationError("option 'uuid' must be the index of a column for format csv")
        return PlacedCSVAdapter(int(uuid or 0))
    assert kind == "protobuf-fixed"
    if message_type is None:
        if uuid is not None:
            text = "option 'uuid' names a field of protobuf messages, which needs 'messageType'"
            raise ConfigurationError(text)
        return _WireAdapter()
    cls = message_class(message_type)
    return protobuf_adapter(cls, uuid_field(cls, message_type) if uuid is None else uuid)


def message_class(reference: str) -> Any:
    """Return the protobuf class which the option `messageType` names.

    Raises:
        ConfigurationError: The class doesn't exist.
    """
    cls = import_object("messageType", reference)
    if not isinstance(cls, type) or not hasattr(cls, "DESCRIPTOR"):
        raise ConfigurationError(
            f"option 'messageType': {reference!r} isn't a class of protobuf messages"
        )
    return cls


def uuid_field(cls: Any, reference: str) -> str:
    """Return the default field of UUIDs.

    Args:
        cls: The protobuf class.
        reference: Reference of the class in the option.

    Raises:
        ConfigurationError: There is no such field.
    """
    fields = cls.DESCRIPTOR.fields_by_name
    by_number = cls.DESCRIPTOR.fields_by_number
    for field in (fields.get("uuid"), by_number.get(_UUID_NUMBER)):
        if field is not None and field.type == field.TYPE_BYTES:
            return cast("str", field.name)
    raise ConfigurationError(
        f"option 'messageType': {reference!r} has neither a bytes field 'uuid' nor a bytes field of"
        " number 1: set option 'uuid' to the name of the field which has UUIDs"
    )


class PlacedCSVAdapter(CSVAdapter):
    """CSV adapter, which reads UUIDs of the first column without decoding the record."""

    def __init__(self, uuid_column: int) -> None:
        super().__init__(None, uuid_column)
        self.uuid_place: UUIDPlace | None = (
            UUIDPlace(b"", b",", text=True) if uuid_column == 0 else None
        )

    def frame_uuid(self, frame: bytes) -> UUID:
        """Return the UUID of a record."""
        return self.uuid(self.decode(frame))


_UUID_NUMBER: Final = 1
_UUID_TAG: Final = b"\x0a\x10"
_VARINT, _FIXED_64, _BYTES, _GROUP, _END_GROUP, _FIXED_32 = range(6)
_WIDTHS: Final = {_FIXED_64: 8, _FIXED_32: 4}


class _WireAdapter:
    """Adapter of protobuf messages of an unknown type, with UUIDs in field number 1."""

    uuid_place = UUIDPlace(_UUID_TAG, b"", text=False)

    def decode(self, frame: bytes) -> bytes:
        return frame

    def encode(self, message: bytes, uuid: UUID) -> bytes:
        # The last field of a number counts.
        return message + _UUID_TAG + uuid.bytes

    def uuid(self, message: bytes) -> UUID:
        return self.frame_uuid(message)

    def acknowledgement(self, uuid: UUID) -> bytes:
        return _UUID_TAG + uuid.bytes

    def frame_uuid(self, frame: bytes) -> UUID:
        if frame.startswith(_UUID_TAG) and len(frame) >= len(_UUID_TAG) + 16:
            return uuid_from_bytes(frame[len(_UUID_TAG) : len(_UUID_TAG) + 16])
        found, at, depth = b"", 0, 0
        while at < len(frame):
            tag, at = decode_varint(frame, at)
            number, wire_type = tag >> 3, tag & 7
            begin = at
            if wire_type == _VARINT:
                _, at = decode_varint(frame, at)
            elif wire_type == _BYTES:
                size, begin = decode_varint(frame, at)
                at = begin + size
                if number == _UUID_NUMBER and not depth:
                    found = frame[begin:at]
            elif wire_type in _WIDTHS:
                at += _WIDTHS[wire_type]
            elif wire_type == _GROUP:
                depth += 1
            elif wire_type == _END_GROUP and depth:
                depth -= 1
            else:
                raise ValidationError(f"message has a field of wire type {wire_type}")
        if at != len(frame) or depth:
            raise ValidationError("message is truncated")
        return uuid_from_bytes(found) if found else ZERO_UUID
