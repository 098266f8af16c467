"""JSON Web Tokens signed by HMAC.

No library is used: peers see the texts of errors, and libraries have other texts.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from typing import TYPE_CHECKING, Any, Final

from gazette_aio.protocol.auth.payload import (
    Payload,
    is_object,
    malformed,
    members_of,
    without_surrogates,
)
from gazette_aio.protocol.errors import AuthorizationError

if TYPE_CHECKING:
    from collections.abc import Iterable

_HEADER: Final = b'{"alg":"HS256","typ":"JWT"}'
_HASHES: Final = {"HS256": hashlib.sha256, "HS384": hashlib.sha384}
_MAX_TOKEN_LENGTH: Final = 64 << 10
_MAX_ALGORITHM_LENGTH: Final = 64
_UNSUPPORTED: Final = ("crit", "b64", "zip")
"""Header parameters that change what a token means, so that ignoring them isn't safe."""
_OUTSIDE_STANDARD: Final = re.compile(r"[^A-Za-z0-9+/=]")
_OUTSIDE_URL: Final = re.compile(r"[^A-Za-z0-9_\-]")


class Base64Error(ValueError):
    """Text isn't base64; `at` is the offset of the first invalid character."""

    def __init__(self, at: int) -> None:
        self.at = at
        super().__init__(f"illegal base64 data at input byte {at}")


def decode_standard(text: str) -> bytes:
    """Decode padded base64.

    Raises:
        Base64Error: The text has invalid characters or padding.
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
    """Decode base64 of the URL alphabet, without padding.

    Raises:
        Base64Error: The text has invalid characters, or is cut short.
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
    """Return the payload of a token which is signed by one of the keys.

    Times aren't checked; see `Payload.check_times()`.

    Raises:
        AuthorizationError: The token is malformed, or isn't signed by any of the keys.
    """
    if len(token) > _MAX_TOKEN_LENGTH or token.count(".") != 2:
        raise malformed("token contains an invalid number of segments")
    parts = token.split(".")
    header = _decode_json(parts[0], "header")
    if not is_object(header):
        raise malformed("could not JSON decode header")
    for name in _UNSUPPORTED:
        if name in header:
            raise malformed(f"header parameter {name} is not supported")
    payload = Payload(_decode_json(parts[1], "claim"))
    algorithm = header.get("alg")
    if not isinstance(algorithm, str):
        raise AuthorizationError("token is unverifiable: signing method (alg) is unspecified")
    if (algorithm_hash := _HASHES.get(algorithm)) is None:
        # The peer chooses the name, and the text must fit into a response.
        name = without_surrogates(algorithm[:_MAX_ALGORITHM_LENGTH])
        raise AuthorizationError(f"token signature is invalid: signing method {name} is invalid")
    try:
        decode_url(parts[2])
    except Base64Error as error:
        raise malformed(f"could not base64 decode signature: {error}") from None
    signed = f"{parts[0]}.{parts[1]}".encode("ascii")
    # Every key is tried, so that the time doesn't reveal which key matched. Texts are compared:
    # bits of the last character which no byte holds would be free otherwise.
    matches = [
        hmac.compare_digest(_encode_url(hmac.digest(key, signed, algorithm_hash)), parts[2])
        for key in keys
    ]
    if not any(matches):
        raise AuthorizationError("token signature is invalid: signature is invalid")
    return payload


def _not_a_constant(name: str) -> None:
    raise ValueError(f"invalid character {name[:1]!r} looking for beginning of value")


def _decode_json(part: str, what: str) -> Any:
    try:
        data = decode_url(part)
    except Base64Error as error:
        raise malformed(f"could not base64 decode {what}: {error}") from None
    if _encode_url(data) != part:
        raise malformed(f"could not base64 decode {what}: not the canonical text")
    try:
        return json.loads(
            data.decode("utf-8"), parse_constant=_not_a_constant, object_pairs_hook=members_of
        )
    except (ValueError, RecursionError) as error:
        raise malformed(f"could not JSON decode {what}: {error}") from None
