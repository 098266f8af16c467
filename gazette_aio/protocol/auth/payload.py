"""Typed look-up of the claims in a token's JSON payload."""

from __future__ import annotations

import math
from typing import Any, Final, TypeGuard

from gazette_aio.protocol.errors import AuthorizationError

LEEWAY_SECONDS: Final = 5
"""Greatest difference between the clocks of signer and verifier."""


def malformed(reason: str) -> AuthorizationError:
    """Return the error of a token which can't be decoded."""
    return AuthorizationError(f"token is malformed: {reason}")


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    """Tell whether a JSON value is an object."""
    return isinstance(value, dict)


def members_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the members of a JSON object, for `json.loads()`.

    Raises:
        ValueError: Two members have one name. Parsers disagree about which of them counts.
    """
    members = dict(pairs)
    # Peers ignore the case of names, and so do look-ups.
    if len({name.casefold() for name in members}) != len(pairs):
        raise ValueError("an object has two members of one name")
    return members


def without_surrogates(text: str) -> str:
    """Replace lone surrogates, which JSON can spell but UTF-8 can't."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class Payload:
    """Claims of a token, looked up by type and by name; case doesn't matter in names.

    Args:
        value: The JSON value; null is an empty object.
        only: Names that the object may have; None allows all.

    Raises:
        AuthorizationError: The value isn't an object, or has another member. Also from every
            look-up, if the value is of another type.
    """

    def __init__(self, value: Any, *, only: frozenset[str] | None = None) -> None:
        if value is None:
            value = {}
        if not is_object(value):
            raise self._error("value", value)
        self._members = {name.casefold(): member for name, member in value.items()}
        if only is not None and not only.issuperset(self._members):
            raise malformed(f"could not JSON decode claim: expected only {', '.join(sorted(only))}")

    @staticmethod
    def _error(name: str, value: object) -> AuthorizationError:
        kind = type(value).__name__
        return malformed(f"could not JSON decode claim: cannot unmarshal {kind} as {name}")

    def unsigned32(self, name: str) -> int:
        """Return an unsigned integer of 32 bits, or zero."""
        value = self._members.get(name)
        if value is None:
            return 0
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 32:
            raise self._error(name, value)
        return value

    def text(self, name: str) -> str:
        """Return a string, or the empty one."""
        value = self._members.get(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self._error(name, value)
        return without_surrogates(value)

    def flag(self, name: str) -> bool:
        """Return a boolean, or false."""
        value = self._members.get(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self._error(name, value)
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """Return strings; a single string may be given without a list."""
        value = self._members.get(name)
        if value is None:
            return ()
        values = value if _is_list(value) else [value]
        if not all(isinstance(text, str) for text in values):
            raise self._error(name, values)
        return tuple(map(without_surrogates, values))

    def seconds(self, name: str) -> int | None:
        """Return a time in whole Unix seconds, if there is one. A text isn't a time."""
        if name not in self._members:
            return None
        value = self._members[name]
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._error(name, value)
        if not math.isfinite(value) or abs(value) >= 1 << 62:
            raise self._error(name, value)
        return math.trunc(value)

    def nested(self, name: str, only: frozenset[str]) -> Payload:
        """Return an object which may have the members `only`, or an empty one."""
        return Payload(self._members.get(name), only=only)

    def objects(self, name: str, only: frozenset[str]) -> list[Payload]:
        """Return a list of objects with members of `only`, none of them null; or an empty list."""
        value = self._members.get(name)
        if value is None:
            return []
        if not _is_list(value):
            raise self._error(name, value)
        if not all(is_object(item) and None not in item.values() for item in value):
            raise self._error(name, value)
        return [Payload(item, only=only) for item in value]

    def check_times(self, now: float) -> int:
        """Check that the token is valid at `now`, in Unix seconds, and return its expiry.

        Raises:
            AuthorizationError: The token has expired, isn't valid yet, or has no expiry.
        """
        expires, begins, issued = self.seconds("exp"), self.seconds("nbf"), self.seconds("iat")
        errors: list[str] = []
        if expires is None:
            errors.append("token is missing required claim: exp claim is required")
        elif now >= expires + LEEWAY_SECONDS:
            errors.append("token is expired")
        if begins is not None and now < begins - LEEWAY_SECONDS:
            errors.append("token is not valid yet")
        if issued is not None and now < issued - LEEWAY_SECONDS:
            errors.append("token used before issued")
        if errors:
            raise AuthorizationError(f"token has invalid claims: {', '.join(errors)}")
        assert expires is not None
        return expires
