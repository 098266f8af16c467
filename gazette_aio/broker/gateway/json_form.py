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
from gazette_aio.protocol.go.text import quote
from gazette_aio.serving.rpc_error import CODES

if TYPE_CHECKING:
    from collections.abc import Sequence

M = TypeVar("M", bound=Message)

_LONG: Final = frozenset(
    (
        FieldDescriptor.TYPE_INT64,
        FieldDescriptor.TYPE_UINT64,
        FieldDescriptor.TYPE_FIXED64,
        FieldDescriptor.TYPE_SFIXED64,
        FieldDescriptor.TYPE_SINT64,
    )
)
# Messages that may be absent from a response. All others are present, with default values.
_NULLABLE: Final = frozenset(
    (
        "protocol.JournalSpec.suspend",
        "protocol.ReadResponse.header",
        "protocol.ReadResponse.fragment",
    )
)
# Texts of what's wrong with JSON, by how the parser puts it.
_KEY: Final = "looking for beginning of object key string"
_SYNTAX: Final = {
    "Expecting property name enclosed in double quotes": _KEY,
    "Expecting value": "looking for beginning of value",
    "Expecting ':' delimiter": "after object key",
    "Expecting ',' delimiter": "after a value",
    "Illegal trailing comma before end of object": _KEY,
    "Illegal trailing comma before end of array": "looking for beginning of value",
}


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
        value: Any = json.JSONDecoder().raw_decode(text)[0] if text else {}
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise JsonError(f"json: cannot unmarshal {quote(text[:32])} into {_name(cls)}")
        return json_format.ParseDict(
            cast("dict[str, Any]", value),
            cls(),
            ignore_unknown_fields=True,  # Newer clients know more fields.
            max_recursion_depth=32,
        )
    except json.JSONDecodeError as error:
        raise JsonError(_syntax_text(error)) from None
    except json_format.ParseError as error:
        raise JsonError(f"invalid {_name(cls)}: {error}") from None
    except RecursionError:
        raise JsonError("exceeded max depth") from None
    except (ValueError, TypeError, AttributeError) as error:
        # The library doesn't convert all errors of values of wrong types.
        raise JsonError(f"invalid {_name(cls)}: {error}") from None


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
    if field.type in _LONG:
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


def _syntax_text(error: json.JSONDecodeError) -> str:
    if error.pos >= len(error.doc):
        return "unexpected EOF"
    where = _SYNTAX.get(error.msg, "in JSON")
    if error.msg == "Invalid control character at":
        where = "in string literal"
    char = error.doc[error.pos]
    shown = {"'": r"'\''", '"': "'\"'"}.get(char, f"'{quote(char)[1:-1]}'")
    return f"invalid character {shown} {where}"


def _name(cls: type[Message]) -> str:
    return cls.DESCRIPTOR.full_name
