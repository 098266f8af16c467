"""Values, functions and formats of templates."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from gazette_aio.protocol.go.text import byte_length, quote

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# Label values have this limit, and path postfixes a lower one. Without a limit, nested templates
# which print their dot twice would make texts of any length.
_MAX_TEXT_LENGTH: Final = 1024


class Named(int):
    """A number printed as a name."""

    def __new__(cls, value: int, name: str) -> Self:
        """Return the number `value`, printed as `name`."""
        named = super().__new__(cls, value)
        named.name = name
        return named

    name: str


@dataclass(frozen=True, slots=True)
class TemplateMethod:
    """A method which takes a string."""

    call: Callable[[str], Value]


@dataclass(frozen=True, slots=True)
class TemplateRecord:
    """A value with fields and methods."""

    type_name: str
    members: Mapping[str, Value | TemplateMethod | Callable[[], Value]]
    """Values by name; functions make costly values."""
    text: Callable[[], str] | None = field(default=None)
    """Returns the printed form; None if the value can't be printed."""


Value: TypeAlias = str | int | bool | list[Any] | TemplateRecord


class CallError(Exception):
    """Arguments don't fit a function. The evaluation converts this error."""


def format_value(value: Value) -> str:
    """Return the printed form of a value.

    Raises:
        CallError: The value has no printed form, or a very long one.
    """
    text = _format(value)
    if len(text) > _MAX_TEXT_LENGTH:
        raise CallError(f"text of more than {_MAX_TEXT_LENGTH} characters")
    return text


def _format(value: Value) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case Named():
            return value.name
        case str() | int():
            return str(value)
        case list():
            return f"[{' '.join(map(_format, value))}]"
        case TemplateRecord():
            if value.text is None:
                raise CallError(f"can't print value of type {value.type_name}")
            return value.text()


def type_name_of(value: Value) -> str:
    """Return the name of the type of a value."""
    match value:
        case bool():
            return "bool"
        case int():
            return "int"
        case str():
            return "string"
        case list():
            return "slice"
        case TemplateRecord():
            return value.type_name


def is_true(value: Value) -> bool:
    """Tell whether a value counts as true."""
    return isinstance(value, TemplateRecord) or bool(value)


def _kind(value: Value) -> type:
    for kind in (bool, int, str):
        if isinstance(value, kind):
            return kind
    raise CallError("invalid type for comparison")


def _compare(lhs: Value, rhs: Value, holds: Callable[[Any, Any], bool]) -> bool:
    if _kind(lhs) is not _kind(rhs):
        raise CallError("incompatible types for comparison")
    return holds(lhs, rhs)


def _equals(first: Value, *others: Value) -> bool:
    # All are compared, so that another type is always an error.
    results = [_compare(first, other, operator.eq) for other in others]
    return any(results)


def _differs(lhs: Value, rhs: Value) -> bool:
    return not _compare(lhs, rhs, operator.eq)


def _negate(value: Value) -> bool:
    return not is_true(value)


def _ordered(holds: Callable[[Any, Any], bool]) -> Callable[[Value, Value], bool]:
    def compare(lhs: Value, rhs: Value) -> bool:
        if _kind(lhs) is bool:
            raise CallError("invalid type for comparison")
        return _compare(lhs, rhs, holds)

    return compare


def _index(value: Value, *indices: Value) -> Value:
    for index in indices:
        if not isinstance(value, list):
            raise CallError(f"can't index item of type {type_name_of(value)}")
        if not isinstance(index, int) or isinstance(index, bool):
            raise CallError(f"cannot index slice/array with type {type_name_of(index)}")
        if not 0 <= index < len(value):
            raise CallError(f"index out of range: {int(index)}")
        value = value[index]
    return value


def _length(value: Value) -> int:
    if isinstance(value, str):
        return byte_length(value)
    if isinstance(value, list):
        return len(value)
    raise CallError(f"len of type {type_name_of(value)}")


_MANY: Final = 1 << 30
ARITY: Final = {
    "eq": (2, _MANY),
    "ge": (2, 2),
    "gt": (2, 2),
    "index": (1, _MANY),
    "le": (2, 2),
    "len": (1, 1),
    "lt": (2, 2),
    "ne": (2, 2),
    "not": (1, 1),
    "print": (0, _MANY),
    "printf": (1, _MANY),
    "println": (0, _MANY),
}
"""Least and greatest number of arguments of functions."""
FUNCTIONS: Final[dict[str, Callable[..., Value]]] = {
    "eq": _equals,
    "ge": _ordered(operator.ge),
    "gt": _ordered(operator.gt),
    "index": _index,
    "le": _ordered(operator.le),
    "len": _length,
    "lt": _ordered(operator.lt),
    "ne": _differs,
    "not": _negate,
}

_VERB: Final = re.compile(
    r"%(?P<flags>[-+0 ]*)(?P<width>[0-9]*)(?:\.(?P<precision>[0-9]*))?(?P<verb>.?)", re.DOTALL
)


def printf(arguments: Sequence[Value]) -> str:
    """Format the other arguments by the first argument.

    Raises:
        CallError: The arguments don't fit the format.
    """
    form, *values = arguments
    if not isinstance(form, str):
        raise CallError(f"expected string; found {format_value(form)}")
    remaining = iter(values)

    def replace(match: re.Match[str]) -> str:
        if match["verb"] == "%":
            return "%"
        value = next(remaining, None)
        if value is None:
            raise CallError(f"missing argument of {match[0]}")
        return _format_verb(match, value)

    text = _VERB.sub(replace, form)
    # Go prints a diagnostic instead, which mustn't become part of a path.
    if next(remaining, None) is not None:
        raise CallError("too many arguments")
    return text


def _format_verb(match: re.Match[str], value: Value) -> str:
    flags, verb = match["flags"], match["verb"]
    width = int(match["width"] or "0") if len(match["width"]) < 5 else _MANY
    precision = match["precision"]
    if width > _MAX_TEXT_LENGTH:
        raise CallError(f"width of {match[0]} is too large")
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if verb in "dxXob" and verb and is_number and precision is None:
        assert isinstance(value, int)
        return _format_integer(value, verb, flags, width)
    if verb == "q" and isinstance(value, str):
        text = quote(format_value(value))
    elif (
        verb == "v"
        or (verb == "s" and not isinstance(value, bool) and not _is_plain_int(value))
        or (verb == "t" and isinstance(value, bool))
    ):
        text = format_value(value)
    else:
        raise CallError(f"{match[0]} of a value of type {type_name_of(value)}")
    if precision is not None:
        text = text[: int(precision[:9] or "0")]
    return text.ljust(width) if "-" in flags else text.rjust(width)


def _is_plain_int(value: Value) -> bool:
    return isinstance(value, int) and not isinstance(value, Named)


def _format_integer(value: int, verb: str, flags: str, width: int) -> str:
    digits = format(abs(int(value)), verb)
    sign = "-" if value < 0 else "+" if "+" in flags else " " if " " in flags else ""
    if "-" in flags:
        return (sign + digits).ljust(width)
    if "0" in flags:
        return sign + digits.rjust(width - len(sign), "0")
    return (sign + digits).rjust(width)
