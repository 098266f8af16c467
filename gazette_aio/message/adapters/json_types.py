"""Adapters of JSON for types: dicts, msgspec Structs, dataclasses, pydantic models, bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

from gazette_aio.message.adapters.json import JSONAdapter, RawJSONAdapter, one_line
from gazette_aio.message.adapters.members import (
    EncodeHook,
    float_members,
    is_custom,
    is_pydantic,
    may_hold_floats,
    member_names,
    message_types,
    union_members,
)
from gazette_aio.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import UnionType

T = TypeVar("T")

DecodeHook = Callable[[type, Any], Any]
"""Returns a value of a type that msgspec doesn't know, given the type and the decoded value."""

DEFAULT_UUID_PATH = "_meta.uuid"


@overload
def json_adapter(
    type: type[dict[Any, Any]] = ...,
    uuid_path: str = ...,
    *,
    enc_hook: EncodeHook | None = ...,
    dec_hook: DecodeHook | None = ...,
) -> JSONAdapter[dict[str, Any]]: ...
@overload
def json_adapter(
    type: UnionType,
    uuid_path: str = ...,
    *,
    enc_hook: EncodeHook | None = ...,
    dec_hook: DecodeHook | None = ...,
) -> JSONAdapter[Any]: ...
@overload
def json_adapter(
    type: type[T],
    uuid_path: str = ...,
    *,
    enc_hook: EncodeHook | None = ...,
    dec_hook: DecodeHook | None = ...,
) -> JSONAdapter[T]: ...
def json_adapter(
    type: Any = dict,  # noqa: A002
    uuid_path: str = DEFAULT_UUID_PATH,
    *,
    enc_hook: EncodeHook | None = None,
    dec_hook: DecodeHook | None = None,
) -> JSONAdapter[Any]:
    """Return an adapter of JSON messages.

    Args:
        type: Type of messages: dict, or a msgspec Struct, a union of tagged Structs (`A | B`), a
            dataclass or a pydantic model. The type needs no member for the UUID.
        uuid_path: Names of the members that lead to the UUID, separated by dots.
        enc_hook: Called with each value of a type that msgspec doesn't know, the message itself
            included. It returns the value to encode in its place.
        dec_hook: Called with each such type and a decoded value. It returns a value of the type.

    Raises:
        ConfigurationError: The type isn't supported, the path is invalid, pydantic isn't
            installed, or hooks are given for bytes, or for a pydantic model, which has its own.
    """
    path = _parse_path(uuid_path)
    if (enc_hook is not None or dec_hook is not None) and (type is bytes or is_pydantic(type)):
        raise ConfigurationError(f"messages of {type!r} take neither enc_hook nor dec_hook")
    if type is bytes:
        return raw_json_adapter(uuid_path)
    encoder = msgspec.json.Encoder(enc_hook=enc_hook)
    if type is dict:
        decoder = msgspec.json.Decoder(dict[str, Any] | None)
        return JSONAdapter(
            path,
            decode=lambda frame: decoder.decode(frame) or {},
            decode_lines=lambda lines: [each or {} for each in decoder.decode_lines(lines)],
            encode=encoder.encode,
            encode_lines=encoder.encode_lines,
            has_top_member=lambda message: path[0] in message,
            check_floats=True,
            message_types=(dict,),
            enc_hook=enc_hook,
        )
    if is_pydantic(type):
        return _pydantic_adapter(type, path)
    try:
        kinds = union_members(type)
        decoder = msgspec.json.Decoder(type, dec_hook=dec_hook)
        has_member = any(path[0] in member_names(kind) or is_custom(kind) for kind in kinds)
    except TypeError as error:
        raise ConfigurationError(f"messages of {type!r} are not supported: {error}") from error
    for kind in kinds:
        config = getattr(kind, "__struct_config__", None)
        if config is None or not config.forbid_unknown_fields:
            continue
        if path[0] not in member_names(kind):
            raise _forbidding(kind, path)
    return JSONAdapter(
        path,
        decode=decoder.decode,
        decode_lines=decoder.decode_lines,
        encode=encoder.encode,
        encode_lines=encoder.encode_lines,
        has_top_member=_constantly_true if has_member else None,
        check_floats=may_hold_floats(type),
        float_members=float_members(type),
        message_types=message_types(kinds),
        enc_hook=enc_hook,
    )


def raw_json_adapter(uuid_path: str = DEFAULT_UUID_PATH) -> JSONAdapter[bytes]:
    """Return an adapter of JSON documents as bytes, which it doesn't decode."""
    path = _parse_path(uuid_path)
    name = msgspec.json.encode(path[0])
    # What looks like the member may be within a string, and escapes may hide it: the slow path
    # then looks closer.
    return RawJSONAdapter(
        path,
        decode=_identity,
        encode=one_line,
        encode_lines=_as_lines,
        has_top_member=lambda message: name in message or b"\\" in message,
        check_floats=False,
        message_types=(bytes, bytearray),
    )


def _parse_path(uuid_path: str) -> tuple[str, ...]:
    path = tuple(uuid_path.split("."))
    try:
        if all(path) and msgspec.json.encode(uuid_path) == f'"{uuid_path}"'.encode():
            return path  # Names which JSON has to escape aren't supported.
    except UnicodeEncodeError:
        pass
    raise ConfigurationError(f"invalid UUID path {uuid_path!r}")


def _pydantic_adapter(kind: Any, path: tuple[str, ...]) -> JSONAdapter[Any]:
    try:
        from pydantic import TypeAdapter  # noqa: PLC0415 - an extra.
    except ImportError as error:
        text = "pydantic is not installed (pip install 'gazette-aio[pydantic]')"
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
        message_types=message_types((kind,)),
    )


def _forbidding(kind: Any, path: tuple[str, ...]) -> ConfigurationError:
    return ConfigurationError(f"{kind!r} forbids other members, and has none named {path[0]!r}")


def _as_lines(messages: Sequence[bytes]) -> bytes:
    return b"\n".join([*messages, b""])


def _identity(frame: bytes) -> bytes:
    return frame


def _constantly_true(_message: object) -> bool:
    return True
