"""Checks of states that are stored as JSON: a state is restored as it was, or refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from gazette_aio.message.adapters.members import (
    ENCODING_ERRORS,
    inner_values,
    locate,
    refuse_non_finite,
    why_not_encodable,
)
from gazette_aio.protocol.errors import ValidationError

if TYPE_CHECKING:
    from collections.abc import Callable

PLAIN_TYPES: Final = (dict, list, str, int, float, bool, type(None))
"""Types of plain states."""
_type_of: Final[Any] = type
_MAX_LEVELS: Final = 500  # A decoder that begins deep in the stack refuses more.


def encode_json(state: object) -> bytes:
    """Return the document of a state.

    Raises:
        ValidationError: A member can't be encoded.
    """
    try:
        return msgspec.json.encode(state)
    except ENCODING_ERRORS as error:
        raise why_not_encodable(state, error) from error


def require_plain(state: object) -> None:
    """Raise ValidationError unless each decoder of JSON restores a state as it is.

    That's so for exactly None, bool, int, finite floats, str, and for lists and dicts of them,
    whose keys are texts. It takes less time than to decode the document of the state.
    """
    if _is_plain(state):
        return
    path, value = locate(state, lambda inner: not _is_plain(inner))
    kind = type(value)
    if kind is float:
        reason = f"{value} has no JSON encoding"
    elif kind is dict and not {*map(type, value)} <= {str}:  # type: ignore[call-overload]
        reason = "JSON would restore keys that aren't texts as texts"
    elif kind in PLAIN_TYPES:
        reason = f"values are nested in more than {_MAX_LEVELS} levels"
    else:
        reason = f"JSON would restore a {kind.__name__} as a value of another type"
    raise ValidationError(f"{path}: {reason}")


def require_restored(state: object, document: bytes, loads: Callable[[bytes], object]) -> None:
    """Raise ValidationError unless a document is decoded to the state that it was encoded from.

    Other exceptions of `loads` are raised as they are.
    """
    try:
        found = _first_difference(state, loads(document), "$")
    except Exception:
        refuse_non_finite(state)  # Which says more.
        raise
    if found is not None:
        refuse_non_finite(state)
        path, value, other = found
        kinds = type(value).__name__, type(other).__name__
        reason = f"as a {kinds[1]}" if kinds[0] != kinds[1] else "as another value"
        raise ValidationError(f"{path}: JSON would restore a {kinds[0]} {reason}")


def _is_plain(value: Any, levels: int = _MAX_LEVELS) -> bool:
    kind = _type_of(value)
    values: Any = value if kind is list else (value,)
    if kind is dict:
        for key in value:
            if type(key) is not str:
                return False
        values = value.values()
    # Hot: each commit checks the whole state.
    for inner in values:
        kind = _type_of(inner)
        if kind is str or kind is int:
            continue
        if kind is float:
            if inner - inner != 0:
                return False
        elif kind is dict or kind is list:
            if not levels or not _is_plain(inner, levels - 1):
                return False
        elif kind is not bool and inner is not None:
            return False
    return True


def _first_difference(value: Any, restored: Any, path: str) -> tuple[str, object, object] | None:
    """Return the first innermost value that isn't restored as it was: its path, and both values."""
    if value == restored or (value != value and restored != restored):  # noqa: PLR0124 - NaN.
        return None
    if type(value) is type(restored):
        inner, others = list(inner_values(value)), list(inner_values(restored))
        if inner and [step for step, _ in inner] == [step for step, _ in others]:
            pairs = zip(inner, others, strict=True)
            found = (_first_difference(a, b, path + step) for (step, a), (_, b) in pairs)
            # Types may compare by identity.
            return next(filter(None, found), None)
    return path, value, restored
