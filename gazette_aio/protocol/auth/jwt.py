"""JSON Web Tokens of claims, signed by HMAC.

No library of tokens is used: two hashes are needed, and each token must have one text and meaning.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import msgspec

from gazette_aio.protocol._generated import broker_pb2 as pb
from gazette_aio.protocol.auth.claims import Capability, Claims
from gazette_aio.protocol.errors import AuthorizationError, ValidationError
from gazette_aio.protocol.labels import validate_label

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")

LEEWAY_SECONDS: Final = 5
"""Greatest difference between the clocks of signer and verifier."""

_HEADER: Final = b'{"alg":"HS256","typ":"JWT"}'
_HASHES: Final = {"HS256": hashlib.sha256, "HS384": hashlib.sha384}
_MAX_TOKEN_LENGTH: Final = 64 << 10
_UNSUPPORTED: Final = frozenset({"crit", "b64", "zip"})
"""Header parameters that change what a token means, so that ignoring them isn't safe."""

_Time = Annotated[float, msgspec.Meta(gt=-(2**62), lt=2**62)]


# A misspelled or meaningless part of a selector must not widen the selection.
class _Label(msgspec.Struct, forbid_unknown_fields=True):
    name: str = ""
    value: str = ""
    prefix: bool = False


class _LabelSet(msgspec.Struct, forbid_unknown_fields=True):
    labels: list[_Label] | None = None


class _Selector(msgspec.Struct, forbid_unknown_fields=True):
    include: _LabelSet | None = None
    exclude: _LabelSet | None = None


class _Payload(msgspec.Struct):
    """Payload of a token. Times may be absent, but not null."""

    cap: Annotated[int, msgspec.Meta(ge=0, lt=2**32)] | None = None
    sel: _Selector | None = None
    exp: _Time | msgspec.UnsetType = msgspec.UNSET
    nbf: _Time | msgspec.UnsetType = msgspec.UNSET
    iat: _Time | msgspec.UnsetType = msgspec.UNSET
    iss: str | None = None
    sub: str | None = None
    aud: str | list[str] | None = None
    jti: str | None = None


def encode_token(claims: Claims, issued_at: int, expires_at: int, key: bytes) -> str:
    """Return the token of claims, signed with HS256. Times are in Unix seconds."""
    optional = {
        "iss": claims.issuer,
        "sub": claims.subject,
        "aud": claims.audience,
        "exp": expires_at,
        "nbf": claims.not_before,
        "iat": issued_at,
        "jti": claims.token_id,
    }
    payload = {
        "cap": int(claims.capability),
        "sel": {
            "include": {"labels": _label_members(claims.selector.include)},
            "exclude": {"labels": _label_members(claims.selector.exclude)},
        },
        **{name: value for name, value in optional.items() if value},
    }
    text = json.dumps(payload, separators=(",", ":")).encode("ascii")
    signed = f"{_encode_url(_HEADER)}.{_encode_url(text)}"
    return f"{signed}.{_signature(key, signed, 'HS256')}"


def decode_token(token: str, keys: Iterable[bytes], now: float) -> Claims:
    """Return the claims of a token which is signed by one of the keys, and valid at `now`.

    Args:
        token: The token.
        keys: All keys are tried.
        now: Unix seconds.

    Raises:
        AuthorizationError: The token is malformed, isn't signed by any of the keys, or isn't valid.
    """
    head, body, signature, algorithm = _parts(token)
    # Every key is tried, so that the time doesn't reveal which key matched. Texts are compared:
    # bits of the last character which no byte holds would be free otherwise.
    matches = [
        hmac.compare_digest(_signature(key, f"{head}.{body}", algorithm), signature) for key in keys
    ]
    if not any(matches):
        raise AuthorizationError("token signature is invalid: none of the server's keys made it")
    claims = _claims(body)
    _check_times(claims, now)
    return claims


def unverified_claims(token: str) -> Claims:
    """Return what a token claims, to show it. Neither its signature nor its times are checked.

    Raises:
        AuthorizationError: The token is malformed.
    """
    return _claims(_parts(token)[1])


def _parts(token: str) -> tuple[str, str, str, str]:
    """Return the header, payload and signature of a token, and the algorithm of its header."""
    if len(token) > _MAX_TOKEN_LENGTH or token.count(".") != 2:
        raise _malformed("a token has three parts, and at most 64 KiB")
    head, body, signature = token.split(".")
    header = _decode_json(head, "header", dict[str, Any])
    if _UNSUPPORTED & header.keys():
        raise _malformed(f"its header has one of {', '.join(sorted(_UNSUPPORTED))}")
    algorithm = str(header.get("alg"))
    if algorithm not in _HASHES:
        raise AuthorizationError(
            f"token signature is invalid: signing method is none of {', '.join(_HASHES)}"
        )
    return head, body, signature, algorithm


def _malformed(reason: str) -> AuthorizationError:
    return AuthorizationError(f"token is malformed: {reason}")


def _encode_url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _signature(key: bytes, signed: str, algorithm: str) -> str:
    return _encode_url(hmac.digest(key, signed.encode("ascii"), _HASHES[algorithm]))


def _decode_json(part: str, what: str, as_type: type[T], *, folds_names: bool = False) -> T:
    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        folded = {name.casefold(): value for name, value in pairs}
        # Parsers disagree about which of two members counts, and whether case does.
        if len(folded) != len(pairs):
            raise ValueError("an object has two members of one name")
        return folded if folds_names else dict(pairs)

    def refuse(name: str) -> None:
        raise ValueError(f"{name} isn't JSON")

    try:
        data = base64.urlsafe_b64decode(f"{part}==")
        if _encode_url(data) != part:
            raise _malformed(f"its {what} isn't canonical base64")
        value = json.loads(data.decode("utf-8"), parse_constant=refuse, object_pairs_hook=members)
        return msgspec.convert({} if value is None else value, as_type)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        # The text may name a member, and must fit into a response.
        raise _malformed(f"its {what}: {str(error)[:200]}") from None


def _claims(body: str) -> Claims:
    payload = _decode_json(body, "payload", _Payload, folds_names=True)
    selector = payload.sel or _Selector()
    audience = payload.aud or ()
    return Claims(
        capability=Capability(payload.cap or 0),
        selector=pb.LabelSelector(
            include=_labels(selector.include), exclude=_labels(selector.exclude)
        ),
        expires_at=_seconds(payload.exp),
        issued_at=_seconds(payload.iat),
        not_before=_seconds(payload.nbf),
        issuer=_text(payload.iss),
        subject=_text(payload.sub),
        audience=tuple(map(_text, (audience,) if isinstance(audience, str) else audience)),
        token_id=_text(payload.jti),
    )


def _seconds(time: float | msgspec.UnsetType) -> int | None:
    return None if isinstance(time, msgspec.UnsetType) else int(time)


def _text(text: str | None) -> str:
    # JSON can spell lone surrogates, which can't be sent or printed.
    return (text or "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _label_members(labels: pb.LabelSet) -> list[dict[str, Any]] | None:
    listed: list[dict[str, Any]] = []
    for label in labels.labels:
        fields = {"name": label.name, "value": label.value, "prefix": label.prefix}
        listed.append({name: value for name, value in fields.items() if value})
    return listed or None


def _labels(members: _LabelSet | None) -> pb.LabelSet | None:
    if members is None or not members.labels:
        return None
    labels: list[pb.Label] = []
    for each in members.labels:
        label = pb.Label(name=_text(each.name), value=_text(each.value), prefix=each.prefix)
        try:
            validate_label(label, allow_prefix=True)
        except ValidationError:
            raise _malformed("its selector has an invalid label") from None
        labels.append(label)
    return pb.LabelSet(labels=labels)


def _check_times(claims: Claims, now: float) -> None:
    expires, begins, issued = claims.expires_at, claims.not_before, claims.issued_at
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
