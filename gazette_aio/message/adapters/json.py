"""Messages in JSON: dicts, msgspec Structs, dataclasses, pydantic models and raw documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload
from uuid import UUID

import msgspec

from gazette_aio.message.adapters.base import UUIDPlace
from gazette_aio.message.adapters.members import (
    find_member,
    may_hold_floats,
    member_names,
    refuse_non_finite,
)
from gazette_aio.message.uuid import ZERO_UUID, parse_uuid, text_writer
from gazette_aio.protocol.errors import ConfigurationError, ValidationError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

DEFAULT_UUID_PATH = "_meta.uuid"
_MEMBER_FOLLOWS = b'{"'


class JSONAdapter(Generic[T]):
    """Adapter of messages which are JSON objects. Made by `json_adapter()`.

    The UUID is text. It's written as the first member of a message which has no such member, and
    otherwise in its place. On reading, a missing or null UUID is zero.
    """

    def __init__(
        self,
        path: tuple[str, ...],
        *,
        decode: Callable[[bytes], T],
        encode: Callable[[T], bytes],
        has_top_member: Callable[[T], bool] | None,
        check_floats: bool,
    ) -> None:
        self._path = path
        self._decode = decode
        self._encode = encode
        self._has_top_member = has_top_member
        self._check_floats = check_floats
        names = [msgspec.json.encode(name) for name in path]
        self._head = b"".join(b"{" + name + b":" for name in names) + b'"'
        self._inner = b"}" * (len(path) - 1)
        self._after = b'"' + self._inner + b","
        self._ack = b"}" if len(path) == 1 else b',"ack":true' + b"}" * len(path)
        self._uuid_decoder = msgspec.json.Decoder(_nested_type(path))
        self.uuid_place: UUIDPlace | None = UUIDPlace(self._head, b'"', text=True)

    def decode(self, frame: bytes) -> T:
        """Return the message of a JSON document."""
        return self._decode(frame)

    def encode(self, message: T, uuid: UUID) -> bytes:
        """Return the document of `message`, stamped with `uuid`.

        Raises:
            ValidationError: If it's not an object, or holds a float which JSON can't.
        """
        return self._stamp(message, str(uuid).encode())

    def encoder(
        self, producer: bytes, flags: int, suffix: bytes = b""
    ) -> Callable[[T, int], bytes]:
        """Return a function of a message and a clock, which returns the stamped document."""
        write = text_writer(producer, flags)
        # Hot: this is `_stamp()` for messages without a UUID of their own.
        encode, check_floats, has_top_member = (
            self._encode,
            self._check_floats,
            self._has_top_member,
        )
        head, after, join = self._head, self._after, b"".join

        def encode_stamped(message: T, clock: int) -> bytes:
            if has_top_member is None or not has_top_member(message):
                document = encode(message)
                if document.startswith(_MEMBER_FOLLOWS) and not (
                    check_floats and b"null" in document
                ):
                    return join((head, write(clock), after, document[1:], suffix))
            return self._stamp(message, write(clock)) + suffix

        return encode_stamped

    def _stamp(self, message: T, stamp: bytes) -> bytes:
        document = self._encode(message)
        if self._check_floats and b"null" in document:
            # The encoder writes NaN and infinity as null.
            refuse_non_finite(message)
        if self._has_top_member is None or not self._has_top_member(message):
            if document.startswith(_MEMBER_FOLLOWS):
                return b"".join((self._head, stamp, self._after, document[1:]))
            if document == b"{}":
                return self._head + stamp + b'"' + self._inner + b"}"
        head = len(self._head)
        written = document[head : head + 37]
        if document.startswith(self._head) and written[36:] == b'"' and b"\\" not in written:
            return self._head + stamp + document[head + 36 :]
        if document[:1] != b"{":
            raise ValidationError("message must encode to a JSON object")
        return _replace_member(document, self._path, stamp)

    def uuid(self, message: T) -> UUID:
        """Return the UUID of `message`; zero if it has none, or its type has no such member.

        Raises:
            ValidationError: If its UUID is invalid.
        """
        return _as_uuid(find_member(message, self._path))

    def frame_uuid(self, frame: bytes) -> UUID:
        """Return the UUID of a document, without decoding the rest of it.

        Raises:
            ValidationError: If its UUID is invalid.
            msgspec.DecodeError: If it's not a JSON object or null.
        """
        value: Any = self._uuid_decoder.decode(frame)
        for _ in self._path:
            if value is None:
                break
            value = value.member
        return _as_uuid(value)

    def acknowledgement(self, uuid: UUID) -> bytes:
        """Return an acknowledgement, such as `{"_meta":{"uuid":"…","ack":true}}`."""
        return self._head + str(uuid).encode() + b'"' + self._ack


def _as_uuid(value: object) -> UUID:
    if value is None:
        return ZERO_UUID
    if isinstance(value, UUID):
        return value
    if isinstance(value, str):
        return parse_uuid(value)
    raise ValidationError(f"UUID is not a string but {type(value).__name__}")


def _nested_type(path: tuple[str, ...]) -> Any:
    kind: Any = Any
    for name in reversed(path):
        field = msgspec.field(default=None, name=name)
        kind = msgspec.defstruct("Stamped", [("member", kind | None, field)]) | None
    return kind


def _replace_member(document: bytes, path: tuple[str, ...], stamp: bytes) -> bytes:
    """Return `document` with its member at `path` set, all others being kept to the byte."""
    members = msgspec.json.decode(document, type=dict[str, msgspec.Raw])
    name, rest = path[0], path[1:]
    existing = members.get(name)
    if not rest:
        value = b'"' + stamp + b'"'
    else:
        inner = b"{}" if existing is None or bytes(existing) == b"null" else bytes(existing)
        value = _replace_member(inner, rest, stamp)
    if existing is None:
        members = {name: msgspec.Raw(value), **members}
    else:
        members[name] = msgspec.Raw(value)
    return msgspec.json.encode(members)


@overload
def json_adapter(*, uuid_path: str = ...) -> JSONAdapter[dict[str, Any]]: ...
@overload
def json_adapter(
    type: type[dict[Any, Any]], uuid_path: str = ...
) -> JSONAdapter[dict[str, Any]]: ...
@overload
def json_adapter(type: type[T], uuid_path: str = ...) -> JSONAdapter[T]: ...
def json_adapter(type: Any = dict, uuid_path: str = DEFAULT_UUID_PATH) -> JSONAdapter[Any]:  # noqa: A002
    """Return an adapter of JSON messages.

    Args:
        type: Type of messages: dict, or a msgspec Struct, a dataclass or a pydantic model. The
            type needs no member for the UUID.
        uuid_path: Names of the members which lead to the UUID, separated by dots.

    Raises:
        ConfigurationError: If the type isn't supported, or pydantic isn't installed.
    """
    path = _parse_path(uuid_path)
    if type is bytes:
        return raw_json_adapter(uuid_path)
    if type is dict:
        decoder = msgspec.json.Decoder(dict[str, Any] | None)
        return JSONAdapter(
            path,
            decode=lambda frame: decoder.decode(frame) or {},
            encode=msgspec.json.Encoder().encode,
            has_top_member=lambda message: path[0] in message,
            check_floats=True,
        )
    if _is_pydantic(type):
        return _pydantic_adapter(type, path)
    try:
        decode = msgspec.json.Decoder(type).decode
        has_member = path[0] in member_names(type)
    except TypeError as error:
        raise ConfigurationError(f"messages of {type!r} are not supported: {error}") from error
    config = getattr(type, "__struct_config__", None)
    if config is not None and config.forbid_unknown_fields and not has_member:
        raise _forbidding(type, path)
    return JSONAdapter(
        path,
        decode=decode,
        encode=msgspec.json.Encoder().encode,
        has_top_member=_constantly_true if has_member else None,
        check_floats=may_hold_floats(type),
    )


def raw_json_adapter(uuid_path: str = DEFAULT_UUID_PATH) -> JSONAdapter[bytes]:
    """Return an adapter of messages which are JSON documents as bytes, and stay so."""
    path = _parse_path(uuid_path)
    name = msgspec.json.encode(path[0])
    # What looks like the member may be within a string, and escapes may hide it: the slow path
    # then looks closer.
    return _RawJSONAdapter(
        path,
        decode=_identity,
        encode=_one_line,
        has_top_member=lambda message: name in message or b"\\" in message,
        check_floats=False,
    )


class _RawJSONAdapter(JSONAdapter[bytes]):
    def uuid(self, message: bytes) -> UUID:
        return self.frame_uuid(message)


def _parse_path(uuid_path: str) -> tuple[str, ...]:
    path = tuple(uuid_path.split("."))
    if not all(path):
        raise ConfigurationError(f"invalid UUID path {uuid_path!r}")
    return path


def _is_pydantic(kind: Any) -> bool:
    return hasattr(kind, "__pydantic_core_schema__") or hasattr(kind, "__pydantic_fields__")


def _pydantic_adapter(kind: Any, path: tuple[str, ...]) -> JSONAdapter[Any]:
    try:
        from pydantic import TypeAdapter  # noqa: PLC0415 - an extra.
    except ImportError as error:
        text = "pydantic is not installed (pip install gazette-aio[pydantic])"
        raise ConfigurationError(text) from error
    adapter: Any = TypeAdapter(kind)
    has_member = path[0] in member_names(kind)
    if not has_member and getattr(kind, "model_config", {}).get("extra") == "forbid":
        raise _forbidding(kind, path)

    def encode(message: Any) -> bytes:
        document: bytes = adapter.dump_json(message, by_alias=True)
        if b"NaN" in document or b"Infinity" in document:
            # A model may be configured to write these, outside of strings.
            msgspec.json.decode(document)
        return document

    return JSONAdapter(
        path,
        decode=adapter.validate_json,
        encode=encode,
        has_top_member=_constantly_true if has_member else None,
        check_floats=True,
    )


def _forbidding(kind: Any, path: tuple[str, ...]) -> ConfigurationError:
    return ConfigurationError(f"{kind!r} forbids other members, and has none named {path[0]!r}")


def _identity(frame: bytes) -> bytes:
    return frame


def _one_line(document: bytes) -> bytes:
    if b"\n" in document:
        raise ValidationError("message must be a JSON document on one line")
    return document


def _constantly_true(_message: object) -> bool:
    return True
