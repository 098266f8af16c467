"""Members of messages of any supported type, by their names in JSON."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import reprlib
from collections.abc import Callable
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, Union, cast, get_args, get_origin

import msgspec

from gazette_aio.protocol.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Iterator

EncodeHook = Callable[[Any], Any]
"""Returns a value that JSON can hold, given a value of a type that msgspec doesn't know."""

ENCODING_ERRORS: Final = (TypeError, ValueError, RecursionError)
"""Errors of encoders of JSON: of types, of keys, of lone surrogates, of numbers, and of cycles."""

_MAX_PATH: Final = 200
_MAX_NAME: Final = 40
_FLOATS = (
    msgspec.inspect.FloatType,
    msgspec.inspect.AnyType,
    msgspec.inspect.CustomType,
    msgspec.inspect.RawType,
)


@functools.lru_cache(maxsize=1024)
def member_names(cls: Any) -> dict[str, str]:
    """Return attribute names of a Struct, dataclass or pydantic model by their names in JSON."""
    # As of Python 3.13, issubclass() refuses generic aliases, such as dict[str, int].
    if inspect.isclass(cls) and issubclass(cls, msgspec.Struct):
        return {field.encode_name: field.name for field in msgspec.structs.fields(cls)}
    if dataclasses.is_dataclass(cls):
        return {field.name: field.name for field in dataclasses.fields(cls)}
    models: dict[str, Any] | None = getattr(cls, "model_fields", None)
    if models is not None:
        return {field.serialization_alias or name: name for name, field in models.items()}
    return {}


def find_member(message: object, path: tuple[str, ...]) -> object:
    """Return the member of `message` at `path`, or None if there is none."""
    value: Any = message
    for name in path:
        kind = cast("Any", type(value))
        if issubclass(kind, dict):
            value = value.get(name)
        else:
            attribute = member_names(kind).get(name)
            value = None if attribute is None else getattr(value, attribute)
    return value


@functools.lru_cache(maxsize=1024)
def is_custom(kind: Any) -> bool:
    """Return whether msgspec doesn't know a type, so that hooks encode and decode it."""
    try:
        return isinstance(msgspec.inspect.type_info(kind), msgspec.inspect.CustomType)
    except TypeError:
        return False


def refuse_non_finite(message: object, enc_hook: EncodeHook | None = None) -> None:
    """Raise ValidationError if a float of `message` is NaN or infinite, which JSON can't hold.

    Args:
        message: The message.
        enc_hook: Converts values of types that msgspec doesn't know.
    """
    dump = getattr(message, "model_dump", None)
    if dump is not None:
        plain = dump()
    else:

        def convert(value: object) -> object:
            # msgspec.Raw isn't known either, and has no floats of ours.
            if enc_hook is None or isinstance(value, msgspec.Raw):
                return None
            return enc_hook(value)

        plain = msgspec.to_builtins(message, str_keys=False, enc_hook=convert)
    for number in _floats(plain):
        if number - number != 0:
            path, _ = locate(plain, lambda inner: any(x - x != 0 for x in _floats(inner)))
            raise ValidationError(f"{path}: {number} has no JSON encoding")


def why_not_encodable(
    message: object, error: Exception, enc_hook: EncodeHook | None = None
) -> ValidationError:
    """Return the error of a message that an encoder of JSON has refused by `error`."""

    def is_refused(inner: object) -> bool:
        try:
            encode(inner)
        except ENCODING_ERRORS:
            return True
        return False

    encode = msgspec.json.Encoder(enc_hook=enc_hook).encode
    dump = getattr(message, "model_dump", None)
    path, _ = locate(message if dump is None else dump(), is_refused)
    return ValidationError(f"{path}: {error}")


def locate(value: object, is_refused: Callable[[Any], bool], path: str = "$") -> tuple[str, object]:
    """Return the path, such as `$.prices[3].net`, and the innermost value that a check refuses."""
    for step, inner in inner_values(value):
        # A cycle has no innermost value.
        if len(path) < _MAX_PATH and is_refused(inner):
            return locate(inner, is_refused, path + step)
    return path, value


def inner_values(value: object) -> Iterator[tuple[str, object]]:
    """Iterate the values right within a value, and their steps in a path."""
    if isinstance(value, dict):
        for key, inner in cast("dict[object, object]", value).items():
            is_name = isinstance(key, str) and len(key) < _MAX_NAME and key.isidentifier()
            yield f".{key}" if is_name else f"[{reprlib.repr(key)}]", inner
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(cast("list[object]", value)):
            yield f"[{index}]", inner
    else:
        for name, attribute in member_names(cast("Any", type(value))).items():
            yield f".{name}", getattr(value, attribute, None)


def _floats(value: Any) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():  # pyright: ignore[reportUnknownVariableType]
            yield from _floats(inner)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for inner in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _floats(inner)


def may_hold_floats(kind: type | Any) -> bool:
    """Return whether values of a type may hold floats, as far as that's known."""
    try:
        info = msgspec.inspect.type_info(kind)
    except TypeError:
        return True
    return _has_floats(info, set())


def float_members(kind: type | Any) -> tuple[str, ...]:
    """Return paths of the attributes that are floats, if a type holds floats nowhere else.

    Names of a path are separated by dots, as attrgetter() has them.
    """
    try:
        info = msgspec.inspect.type_info(kind)
    except TypeError:
        return ()
    return tuple(_float_paths(info))


def _float_paths(info: object) -> list[str]:
    if not isinstance(info, (msgspec.inspect.StructType, msgspec.inspect.DataclassType)):
        return []
    paths: list[str] = []
    for field in info.fields:
        if type(field.type) is msgspec.inspect.FloatType:
            paths.append(field.name)
        elif _has_floats(field.type, {id(info)}):
            inner = _float_paths(field.type)
            if not inner:
                return []
            paths += [f"{field.name}.{path}" for path in inner]
    return paths


def _has_floats(info: object, seen: set[int]) -> bool:
    """Return whether a type, or one within it, may be that of floats."""
    if isinstance(info, _FLOATS):
        return True
    if id(info) in seen:
        return False
    seen.add(id(info))
    if isinstance(info, (list, tuple)):
        return any(_has_floats(part, seen) for part in cast("tuple[object, ...]", info))
    if isinstance(info, (msgspec.inspect.Type, msgspec.inspect.Field)):
        fields: tuple[str, ...] = getattr(info, "__struct_fields__", ())
        return any(_has_floats(getattr(info, name), seen) for name in fields if name != "default")
    return False


def is_pydantic(kind: Any) -> bool:
    """Return whether a type is a model or a dataclass of pydantic."""
    return hasattr(kind, "__pydantic_core_schema__") or hasattr(kind, "__pydantic_fields__")


def union_members(kind: Any) -> tuple[Any, ...]:
    """Return the Structs of a union, or the type itself if it's no union.

    Raises:
        TypeError: A member of the union is no Struct.
    """
    if get_origin(kind) not in (UnionType, Union):
        return (kind,)
    members = get_args(kind)
    for each in members:
        if not (isinstance(each, type) and issubclass(each, msgspec.Struct)):
            raise TypeError(f"members of a union must be tagged msgspec Structs, not {each!r}")
    return members


def message_types(kinds: tuple[Any, ...]) -> tuple[type, ...] | None:
    """Return the classes of messages of types; None if a class doesn't tell them apart."""
    for kind in kinds:
        config = getattr(kind, "__struct_config__", None)
        if config is not None and config.array_like:
            return None  # Arrays are refused when they're encoded, as all that isn't an object.
        is_dataclass = hasattr(kind, "__dataclass_fields__")
        if config is None and not is_dataclass and not is_pydantic(kind):
            return None
    return kinds
