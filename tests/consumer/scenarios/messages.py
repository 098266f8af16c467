"""Messages in the form of scenarios: field names, 64-bit integers as numbers, enums by name."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message

from gazette_aio.message import (
    ACK_TXN,
    CONTINUE_TXN,
    OUTSIDE_TXN,
    ProducerID,
    build_uuid,
    get_clock,
    get_flags,
    get_producer_id,
    parse_uuid,
)

Json = Any

FLAGS = {"OUTSIDE": OUTSIDE_TXN, "CONTINUE": CONTINUE_TXN, "ACK": ACK_TXN}
CLOCK0 = 2227737600000000000
"""Clock of tick 0. A tick is a microsecond, of 160 units."""


def to_message(cls: type[Message], value: Json) -> Any:
    """Build a message."""
    message = cls()
    ParseDict(_to_proto_json(cls.DESCRIPTOR, value), message)
    return message


def _to_proto_json(descriptor: Any, value: Json) -> Json:
    out: dict[str, Any] = {}
    for name, item in value.items():
        field = descriptor.fields_by_name[name]
        kind = field.message_type
        if field.type == FieldDescriptor.TYPE_BYTES:
            content = item["utf8"].encode() if "utf8" in item else bytes.fromhex(item["hex"])
            out[name] = base64.b64encode(content).decode()
        elif kind is None or kind.name == "Duration" or kind.GetOptions().map_entry:
            out[name] = item
        elif isinstance(item, list):
            out[name] = [_to_proto_json(kind, each) for each in item]
        else:
            out[name] = _to_proto_json(kind, item)
    return out


def to_dict(message: Message) -> dict[str, Any]:
    """Return a message as scenarios expect it."""
    out: dict[str, Any] = {}
    for field, value in message.ListFields():
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            values = kind.fields_by_name["value"]
            out[field.name] = {key: _to_value(values, value[key]) for key in sorted(value)}
        elif isinstance(value, (str, bytes, int, float, Message)):
            out[field.name] = _to_value(field, value)
        else:
            out[field.name] = [_to_value(field, each) for each in value]
    return out


def _to_value(field: FieldDescriptor, value: Any) -> Json:
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known else value
    if isinstance(value, bytes):
        try:
            return {"utf8": value.decode()}
        except UnicodeDecodeError:
            return {"hex": value.hex()}
    if field.message_type is None:
        return value
    if field.message_type.name == "Duration":
        return f"{value.seconds + value.nanos / 1e9:g}s"
    return to_dict(value)


def lines(messages: list[Json]) -> bytes:
    """Return the lines of scripted messages."""
    out = b""
    for message in messages:
        producer = ProducerID(bytes.fromhex(message["producer"]))
        uuid = build_uuid(producer, CLOCK0 + 160 * message["tick"], FLAGS[message["flags"]])
        body = {key: message[key] for key in ("key", "value") if key in message}
        out += json.dumps({"uuid": str(uuid), **body}, separators=(",", ":")).encode() + b"\n"
    return out


def uuid_parts(text: str) -> tuple[str, int, str]:
    """Return producer, clock and flags of a UUID."""
    uuid = parse_uuid(text)
    names = {number: name for name, number in FLAGS.items()}
    return get_producer_id(uuid).hex(), get_clock(uuid), names[get_flags(uuid)]


def token(auth: Json, default_key: str) -> str:
    """Return a signed token of the claims which a step gives."""

    def part(data: bytes) -> bytes:
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    now = int(time.time())
    claims = {
        "cap": auth.get("cap", 0),
        "sel": auth.get("sel", {"include": {}, "exclude": {}}),
        "iat": now,
        "exp": now + auth.get("exp_in_s", 600),
    }
    head = part(json.dumps({"alg": "HS256", "typ": "JWT"}).encode())
    signed = head + b"." + part(json.dumps(claims).encode())
    key = base64.b64decode(auth.get("key") or default_key)
    return (signed + b"." + part(hmac.new(key, signed, hashlib.sha256).digest())).decode()
