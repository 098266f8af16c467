"""JSON Web Tokens signed by HMAC, as far as brokers use them.

The texts of errors are part of what peers of a broker see, thus this isn't left to a library.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
import re
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from gazette_aio.protocol.errors import AuthorizationError

if TYPE_CHECKING:
    from collections.abc import Iterable

LEEWAY_SECONDS: Final = 5
"""How far the clocks of signer and verifier may be apart."""

_HEADER: Final = b'{"alg":"HS256","typ":"JWT"}'
_HASHES: Final = {"HS256": hashlib.sha256, "HS384": hashlib.sha384}
_MAX_TOKEN_LENGTH: Final = 64 << 10
_MAX_ALGORITHM_LENGTH: Final = 64
_OUTSIDE_STANDARD: Final = re.compile(r"[^A-Za-z0-9+/=]")
_OUTSIDE_URL: Final = re.compile(r"[^A-Za-z0-9_\-]")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?", re.ASCII)


class Base64Error(ValueError):
    """Text isn't base64; `at` is the offset of the first wrong character."""

    def __init__(self, at: int) -> None:
        self.at = at
        super().__init__(f"illegal base64 data at input byte {at}")


def decode_standard(text: str) -> bytes:
    """Decode padded base64.

    Raises:
        Base64Error: It has other characters, or wrong padding.
    """
    body = text.rstrip("=")
    if match := _OUTSIDE_STANDARD.search(text):
        raise Base64Error(match.start())
    if (at := body.find("=")) >= 0:
        raise Base64Error(at)
    padding, needed = len(text) - len(body), -len(body) % 4
    if padding > needed or needed == 3:
        raise Base64Error(len(body) + (needed if needed != 3 else 0))
    if padding < needed:
        raise Base64Error(len(text) if padding else len(text) - len(text) % 4)
    return base64.b64decode(text)


def decode_url(text: str) -> bytes:
    """Decode base64 of the alphabet for URLs, without padding.

    Raises:
        Base64Error: It has other characters, or isn't whole.
    """
    if match := _OUTSIDE_URL.search(text):
        raise Base64Error(match.start())
    if len(text) % 4 == 1:
        raise Base64Error(len(text) - 1)
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _encode_url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def encode_token(payload: dict[str, Any], key: bytes) -> str:
    """Return the token of a payload, signed with HS256."""
    text = json.dumps(payload, separators=(",", ":"), ensure_ascii=False)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    signed = f"{_encode_url(_HEADER)}.{_encode_url(text.encode('utf-8', 'replace'))}"
    signature = hmac.digest(key, signed.encode("ascii"), hashlib.sha256)
    return f"{signed}.{_encode_url(signature)}"


def decode_token(token: str, keys: Iterable[bytes]) -> Payload:
    """Return the payload of a token which one of the keys has signed.

    Times aren't checked; see `Payload.check_times()`.

    Raises:
        AuthorizationError: It's malformed, or wasn't signed by any of the keys.
    """
    if len(token) > _MAX_TOKEN_LENGTH or token.count(".") != 2:
        raise _malformed("token contains an invalid number of segments")
    parts = token.split(".")
    header = _decode_json(parts[0], "header")
    if not _is_object(header):
        raise _malformed("could not JSON decode header")
    payload = Payload(_decode_json(parts[1], "claim"))
    algorithm = header.get("alg")
    if not isinstance(algorithm, str):
        raise AuthorizationError("token is unverifiable: signing method (alg) is unspecified")
    if (algorithm_hash := _HASHES.get(algorithm)) is None:
        # Anybody may choose the name, and the text has to fit into a response.
        name = _without_surrogates(algorithm[:_MAX_ALGORITHM_LENGTH])
        raise AuthorizationError(f"token signature is invalid: signing method {name} is invalid")
    try:
        signature = decode_url(parts[2])
    except Base64Error as error:
        raise _malformed(f"could not base64 decode signature: {error}") from None
    signed = f"{parts[0]}.{parts[1]}".encode("ascii")
    # Every key is tried, so that the time it takes doesn't tell which one it was.
    matches = [
        hmac.compare_digest(hmac.digest(key, signed, algorithm_hash), signature) for key in keys
    ]
    if not any(matches):
        raise AuthorizationError("token signature is invalid: signature is invalid")
    return payload


def _malformed(reason: str) -> AuthorizationError:
    return AuthorizationError(f"token is malformed: {reason}")


def _not_a_constant(name: str) -> None:
    raise ValueError(f"invalid character {name[:1]!r} looking for beginning of value")


def _decode_json(part: str, what: str) -> Any:
    try:
        text = decode_url(part).decode("utf-8", "replace")
    except Base64Error as error:
        raise _malformed(f"could not base64 decode {what}: {error}") from None
    try:
        return json.loads(text, parse_constant=_not_a_constant)
    except (ValueError, RecursionError) as error:
        raise _malformed(f"could not JSON decode {what}: {error}") from None


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _is_object(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _without_surrogates(text: str) -> str:
    """Replace what JSON can spell, but UTF-8 can't."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class Payload:
    """Claims of a token, which are looked up by type, and their names without regard to case.

    Raises:
        AuthorizationError: From every look-up, if there is a value of another type.
    """

    def __init__(self, value: Any) -> None:
        if value is None:
            value = {}
        if not _is_object(value):
            raise self._error("value", value)
        self._members = {name.lower(): member for name, member in value.items()}

    @staticmethod
    def _error(name: str, value: object) -> AuthorizationError:
        kind = type(value).__name__
        return _malformed(f"could not JSON decode claim: cannot unmarshal {kind} as {name}")

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
        return _without_surrogates(value)

    def flag(self, name: str) -> bool:
        """Return a boolean, or false."""
        value = self._members.get(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self._error(name, value)
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """Return strings, where a single one may stand without its list."""
        value = self._members.get(name)
        if value is None:
            return ()
        values = value if _is_list(value) else [value]
        if not all(isinstance(text, str) for text in values):
            raise self._error(name, values)
        return tuple(map(_without_surrogates, values))

    def seconds(self, name: str) -> int | None:
        """Return a time in whole Unix seconds, if there is one."""
        value = self._members.get(name)
        if value is None:
            return None
        if isinstance(value, str) and len(value) < 64 and _NUMBER.fullmatch(value):
            value = float(value)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._error(name, value)
        if not math.isfinite(value) or abs(value) >= 1 << 62:
            raise self._error(name, value)
        return math.trunc(value)

    def nested(self, name: str) -> Payload:
        """Return an object, or an empty one."""
        return Payload(self._members.get(name))

    def objects(self, name: str) -> list[Payload]:
        """Return a list of objects, or an empty one."""
        value = self._members.get(name)
        if value is None:
            return []
        if not _is_list(value):
            raise self._error(name, value)
        return [Payload(item) for item in value]

    def check_times(self, now: float) -> int:
        """Check that the token is valid at `now`, in Unix seconds, and return its expiry.

        Raises:
            AuthorizationError: It has expired, isn't valid yet, or doesn't say when it expires.
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
