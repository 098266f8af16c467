"""JSON form of messages: requests, responses one to a line, and errors."""

from __future__ import annotations

import base64
import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from gazette_aio.broker.gateway.answers import code_status
from gazette_aio.serving.rpc_error import CODES

if TYPE_CHECKING:
    from collections.abc import Sequence

M = TypeVar("M", bound=Message)

_MAX_REASON_LENGTH: Final = 500
_LONG: Final = frozenset((FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64))
# Messages that may be absent from a response. All others are present, with default values.
_NULLABLE: Final = frozenset(
    (
        "protocol.JournalSpec.suspend",
        "protocol.ReadResponse.header",
        "protocol.ReadResponse.fragment",
    )
)


class JsonError(Exception):
    """A document isn't JSON, or isn't the form of a message. The text is for the client."""


def parse_message(cls: type[M], document: bytes) -> M:
    """Parse the JSON form of a message. Names may have either case; default values are optional.

    Args:
        cls: Class of the message.
        document: The JSON; empty is a message of default values.

    Raises:
        JsonError: The document can't be parsed.
    """
    try:
        text = document.decode("utf-8").lstrip(" \t\r\n")
        value: Any = json.JSONDecoder().raw_decode(text)[0] if text else None
        if not isinstance(value, dict | None):
            raise TypeError("expected an object")
        return json_format.ParseDict(
            cast("dict[str, Any]", value or {}),
            cls(),
            ignore_unknown_fields=True,  # Newer clients know more fields.
            max_recursion_depth=32,
        )
    # The library doesn't convert all errors of values of wrong types.
    except (json_format.ParseError, ValueError, TypeError, AttributeError, RecursionError) as error:
        name = cls.DESCRIPTOR.full_name
        raise JsonError(f"invalid {name}: {str(error)[:_MAX_REASON_LENGTH]}") from None


def result_line(message: Message) -> bytes:
    """Return the line of a response: all fields, including default values."""
    return _dump({"result": message_form(message)}) + b"\n"


def stream_error(text: str, code: str) -> bytes:
    """Return the document of a stream's error, by the name of its gRPC code."""
    status = code_status(code)
    return _dump(
        {
            "error": {
                "grpcCode": CODES[code],
                "httpCode": int(status),
                "message": text,
                "httpStatus": status.phrase,
                "details": [],
            }
        }
    )


def request_error(text: str, code: str) -> bytes:
    """Return the document of a failed request that isn't an RPC, by the name of its gRPC code."""
    return _dump({"code": CODES[code], "message": text, "details": []})


def not_implemented() -> bytes:
    """Return the document of a missing route."""
    return request_error(HTTPStatus.NOT_IMPLEMENTED.phrase, "UNIMPLEMENTED")


def message_form(message: Message) -> dict[str, Any]:
    """Return a message as values of JSON, with all of its fields, in their order."""
    out: dict[str, Any] = {}
    for field in cast("Sequence[FieldDescriptor]", message.DESCRIPTOR.fields):
        value = getattr(message, field.name)
        if not isinstance(value, (str, bytes, int, float, Message)):
            out[field.json_name] = [_value(field, item) for item in cast("Sequence[Any]", value)]
        elif field.full_name in _NULLABLE and not message.HasField(field.name):
            out[field.json_name] = None
        else:
            out[field.json_name] = _value(field, value)
    return out


def _value(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        if field.message_type.full_name == "google.protobuf.Duration":
            return value.ToJsonString()
        return message_form(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else value
    if field.cpp_type in _LONG:
        return str(value)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return base64.b64encode(value).decode("ascii") if value else None
    return value


def _dump(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    # These occur only within strings. If they're escaped, no browser takes the JSON for markup.
    for char in "<>&\u2028\u2029":
        if char in text:
            text = text.replace(char, f"\\u{ord(char):04x}")
    return text.encode("utf-8", "replace")
