"""Protobuf messages in the forms of JSON and of protobuf text that `gazctl` prints, and errors."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, Final

from google.protobuf import json_format, text_format

from gazette_aio.protocol import consumer as pc

if TYPE_CHECKING:
    from google.protobuf.message import Message

MOST_FAILURES: Final = 20
"""Most shards whose failures are shown."""

_NANOSECONDS: Final = 1_000_000_000
_WIDE: Final = {1, 3, 4, 6, 16, 18}
"""Types of doubles and 64-bit integers. JSON has these integers as strings."""
_POINTERS: Final = {"protocol.JournalSpec.suspend"}
"""Fields of listings that are null if they're absent. Others have the zero value of their type."""
_DOUBLE: Final = 1
_BYTES: Final = 12
_MESSAGE: Final = 11
_ENUM: Final = 14


def prototext(message: Message) -> str:
    """Return a message as protobuf text with angle brackets, a field to a line.

    Durations of zero are left out, since Go can't distinguish them from absent durations.
    """
    shown = type(message)()
    shown.CopyFrom(message)
    _clear_zero_durations(shown)
    lines: list[str] = []
    # Other characters than ASCII are escapes of bytes, as in Go.
    for line in text_format.MessageToString(shown, as_utf8=False).splitlines():
        # Strings are quoted, and don't end in these.
        if line.endswith(" {"):
            lines.append(f"{line[:-2]}: <")
        elif line.endswith("}"):
            lines.append(f"{line[:-1]}>")
        else:
            lines.append(line)
    return "".join(f"{line}\n" for line in lines)


def _clear_zero_durations(message: Message) -> None:
    for field, value in message.ListFields():
        if field.type != _MESSAGE or _is_map(field):
            continue
        if _is_repeated(field):
            for each in value:
                _clear_zero_durations(each)
        elif not _is_duration(value):
            _clear_zero_durations(value)
        elif not value.ListFields():
            message.ClearField(field.name)


def tree_of(message: Message) -> Any:
    """Return a message as JSON has it in Go: all fields, int64 as text, and empty bytes as None."""
    if message.DESCRIPTOR.full_name.startswith("google.protobuf."):
        return json.loads(json_format.MessageToJson(message))
    return {field.name: _full_field(message, field) for field in message.DESCRIPTOR.fields}


def _full_field(message: Message, field: Any) -> Any:
    value = getattr(message, field.name)
    if _is_map(field):
        entry = field.message_type.fields_by_name["value"]
        return {str(key): _full_value(value[key], entry) for key in sorted(value)}
    if _is_repeated(field):
        return [_full_value(each, field) for each in value]
    if field.full_name in _POINTERS and not message.HasField(field.name):
        return None
    return _full_value(value, field)


def _full_value(value: Any, field: Any) -> Any:
    if field.type == _MESSAGE:
        return tree_of(value)
    if field.type == _ENUM:
        named = field.enum_type.values_by_number.get(value)
        return value if named is None else named.name
    if field.type == _BYTES:
        return base64.b64encode(value).decode() or None
    return str(value) if field.type in _WIDE and field.type != _DOUBLE else value


def failure_of(shard: pc.ListResponse.Shard) -> str:
    """Return why replicas of a shard have failed, as one line; empty if none has."""
    failed = [each for each in shard.status if each.code == pc.ReplicaStatus.FAILED]
    texts = dict.fromkeys(text for status in failed for text in status.errors or ("failed",))
    return "; ".join(" ".join(text.split()) for text in texts)


def plain_tree_of(message: Message) -> Any:
    """Return a message as JSON has it with only the set fields; enums and integers are numbers."""
    if _is_duration(message):
        fields = {field.name: value for field, value in message.ListFields()}
        return fields.get("seconds", 0) * _NANOSECONDS + fields.get("nanos", 0)
    return {
        field.name: [_plain_value(each, field) for each in value]
        if _is_repeated(field)
        else _plain_value(value, field)
        for field, value in message.ListFields()
    }


def _plain_value(value: Any, field: Any) -> Any:
    if field.type == _MESSAGE:
        return plain_tree_of(value)
    return base64.b64encode(value).decode() if field.type == _BYTES else value


def _is_duration(message: Message) -> bool:
    return message.DESCRIPTOR.full_name == "google.protobuf.Duration"


def _is_repeated(field: Any) -> bool:
    # The property `label`, which all releases have, is deprecated in the newest.
    newer: bool | None = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED) if newer is None else newer


def _is_map(field: Any) -> bool:
    return field.type == _MESSAGE and bool(field.message_type.GetOptions().map_entry)
