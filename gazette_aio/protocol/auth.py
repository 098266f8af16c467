"""Authorization of RPCs: claims, and the tokens which carry them."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import OrderedDict
from contextvars import ContextVar
from datetime import timedelta
from enum import KEEP, IntFlag
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from gazette_aio.protocol import service
from gazette_aio.protocol._generated import broker_pb2 as pb
from gazette_aio.protocol.errors import AuthorizationError, ConfigurationError
from gazette_aio.protocol.journal import strip_meta
from gazette_aio.protocol.jwt import (
    Base64Error,
    Payload,
    decode_standard,
    decode_token,
    encode_token,
)
from gazette_aio.protocol.well_known import META_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

Metadata: TypeAlias = tuple[tuple[str, str], ...]
"""Pairs of names and values which are sent along with an RPC."""

AUTHORIZATION: Final = "authorization"
"""Name of the metadata which carries a token."""

DEFAULT_LIFETIME: Final = timedelta(hours=1)
"""Lifetime of tokens whose RPCs may go on for long."""

_BEARER: Final = "Bearer "
_ALLOWS_MISSING: Final = "AA=="
_CACHED_TOKENS: Final = 1024


class Capability(IntFlag, boundary=KEEP):
    """What a token permits. Bits from 1 << 16 are for applications."""

    LIST = 2
    APPLY = 4
    READ = 8
    APPEND = 16
    REPLICATE = 32
    ALL = 0xFFFF_FFFF


REQUIRED_CAPABILITIES: Final = {
    service.LIST: Capability.LIST,
    service.APPLY: Capability.APPLY,
    service.READ: Capability.READ,
    service.APPEND: Capability.APPEND,
    service.REPLICATE: Capability.REPLICATE,
    service.LIST_FRAGMENTS: Capability.READ,
    service.FRAGMENT_STORE_HEALTH: Capability.READ,
}
"""What is required of callers, by the path of the method."""


@dataclasses.dataclass(frozen=True, slots=True)
class Claims:
    """What a caller may do, and to what."""

    capability: Capability
    """What is permitted; a plain `int` will do."""
    selector: pb.LabelSelector = dataclasses.field(default_factory=pb.LabelSelector)
    """Journals it's permitted for: their labels, and `name`. The default matches all."""
    expires_at: int | None = None
    """Unix seconds; set by verification."""
    issued_at: int | None = None
    """Unix seconds; set by verification."""
    not_before: int | None = None
    """Unix seconds."""
    issuer: str = ""
    subject: str = ""
    audience: tuple[str, ...] = ()
    token_id: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "capability", Capability(self.capability))

    def cache_key(self) -> tuple[Any, ...]:
        """Return a hashable value which is equal for equal claims; times of issue don't count."""
        return (
            int(self.capability),
            self.selector.SerializeToString(deterministic=True),
            self.not_before,
            self.issuer,
            self.subject,
            self.audience,
            self.token_id,
        )


class Authorizer(Protocol):
    """Gives RPCs the metadata which lets them pass; it may ask a token service."""

    async def authorize(self, claims: Claims, lifetime: timedelta) -> Metadata:
        """Return the metadata of an RPC which makes use of `claims` for up to `lifetime`.

        Cancellation: safe — nothing is kept of it.

        Raises:
            AuthorizationError: The claims can't be obtained.
        """
        ...


class Verifier(Protocol):
    """Checks that an RPC may pass."""

    def verify(self, header: str | None, require: Capability, now: float) -> Claims:
        """Return the claims of an RPC.

        Args:
            header: First `authorization` metadata, if there is any.
            require: What the RPC requires.
            now: Unix seconds.

        Raises:
            AuthorizationError: The RPC must not pass.
        """
        ...


class KeyedAuth:
    """Signs and verifies tokens with shared keys.

    Args:
        keys: Base64 keys, separated by commas or blanks. The first one signs, and any verifies. The
            value `AA==` isn't a key, but allows requests without authorization.
        clock: Source of Unix seconds for `authorize()`.

    Raises:
        ConfigurationError: There is no key, or one isn't base64.
    """

    def __init__(self, keys: str, *, clock: Callable[[], float] = time.time) -> None:
        decoded: list[bytes] = []
        self._allows_missing = False
        for index, key in enumerate(keys.replace(",", " ").split()):
            if key == _ALLOWS_MISSING:
                self._allows_missing = True
                continue
            try:
                decoded.append(decode_standard(key))
            except Base64Error as error:
                raise ConfigurationError(
                    f"failed to decode key at index {index}: {error}"
                ) from None
        if not decoded:
            raise ConfigurationError("at least one key must be provided")
        self._keys = tuple(decoded)
        self._clock = clock
        # From the one which wasn't used for longest to the latest.
        self._tokens: OrderedDict[tuple[Any, ...], tuple[str, float]] = OrderedDict()

    def __repr__(self) -> str:
        # Secrets never show.
        return f"KeyedAuth({len(self._keys)} keys, allows_missing={self._allows_missing})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tokens": OrderedDict()}

    @property
    def allows_missing(self) -> bool:
        """Whether requests without authorization pass."""
        return self._allows_missing

    def sign(self, claims: Claims, lifetime: timedelta, now: float) -> str:
        """Return a token for claims.

        Tokens are kept, and signed anew when half of their lifetime has passed.

        Args:
            claims: What to permit.
            lifetime: How long the token is valid.
            now: Unix seconds.
        """
        key = (*claims.cache_key(), lifetime)
        seconds = lifetime.total_seconds()
        # Race: loops of several threads may share this; none relies on an entry to stay.
        cached = self._tokens.pop(key, None)
        if cached is None or not 0 <= now - cached[1] < seconds / 2:
            payload = _payload(claims, int(now), int(now + seconds))
            cached = encode_token(payload, self._keys[0]), now
        self._tokens[key] = cached
        if len(self._tokens) > _CACHED_TOKENS:
            self._tokens.popitem(last=False)
        return cached[0]

    async def authorize(self, claims: Claims, lifetime: timedelta) -> Metadata:
        """Return the metadata which carries a token for `claims`.

        Cancellation: safe — it never suspends.
        """
        return ((AUTHORIZATION, _BEARER + self.sign(claims, lifetime, self._clock())),)

    def verify(self, header: str | None, require: Capability, now: float) -> Claims:
        """Return the claims of a request; see `Verifier`.

        Raises:
            AuthorizationError: The token is missing, invalid, or doesn't permit what's required.
        """
        if header is None:
            if self._allows_missing:
                return Claims(require, expires_at=int(now + DEFAULT_LIFETIME.total_seconds()))
            raise AuthorizationError("missing or empty Authorization token")
        if not header.startswith(_BEARER):
            raise AuthorizationError(
                "invalid or unsupported Authorization header (expected 'Bearer')"
            )
        try:
            payload = decode_token(header.removeprefix(_BEARER), self._keys)
            # All of the payload is looked at before the times, as a malformed one is told first.
            claims = _claims(payload)
            claims = dataclasses.replace(claims, expires_at=payload.check_times(now))
        except AuthorizationError as error:
            raise AuthorizationError(f"verifying Authorization: {error}") from None
        check_capability(claims.capability, require)
        return claims


class BearerAuth:
    """Sends a fixed token.

    Args:
        token: The token, without `Bearer`.

    Raises:
        ConfigurationError: It has characters which can't be sent, such as the end of a line.
    """

    def __init__(self, token: str) -> None:
        if not (token.isascii() and token.isprintable()):
            raise ConfigurationError("token has characters which can't be sent")
        self._token = token

    def __repr__(self) -> str:
        return "BearerAuth(…)"

    async def authorize(self, claims: Claims, lifetime: timedelta) -> Metadata:  # noqa: ARG002
        """Return the metadata which carries the token, whatever the claims.

        Cancellation: safe — it never suspends.
        """
        return ((AUTHORIZATION, _BEARER + self._token),)


class NoopAuth:
    """Sends nothing, and lets everything pass."""

    def __repr__(self) -> str:
        return "NoopAuth()"

    async def authorize(self, claims: Claims, lifetime: timedelta) -> Metadata:  # noqa: ARG002
        """Return no metadata.

        Cancellation: safe — it never suspends.
        """
        return ()

    def verify(self, header: str | None, require: Capability, now: float) -> Claims:  # noqa: ARG002
        """Return claims of what is required, for all journals."""
        return Claims(require)


def check_capability(actual: int, require: int) -> None:
    """Check that a token permits what is required.

    Raises:
        AuthorizationError: It lacks some of it.
    """
    missing = require & ~actual
    if not missing:
        return
    for capability in (
        Capability.LIST,
        Capability.APPLY,
        Capability.READ,
        Capability.APPEND,
        Capability.REPLICATE,
    ):
        if missing & capability:
            raise AuthorizationError(
                f"authorization is missing required {capability.name} capability"
            )
    raise AuthorizationError(
        f"authorization is missing required capability (have {actual:b}, but require {require:b})"
    )


def default_claims(request: object) -> Claims:
    """Return the claims which an RPC needs, by its (first) request.

    Raises:
        TypeError: It isn't a request of the journal service.
    """
    match request:
        case pb.ListRequest():
            return Claims(Capability.LIST, request.selector)
        case pb.ApplyRequest():
            return Claims(Capability.APPLY)
        case pb.ReadRequest() | pb.FragmentsRequest():
            return Claims(Capability.READ, _named(request.journal))
        case pb.AppendRequest():
            return Claims(Capability.APPEND, _named(request.journal))
        case pb.FragmentStoreHealthRequest():
            return Claims(Capability.READ)
        case pb.ReplicateRequest():
            return Claims(Capability.REPLICATE, _named(request.proposal.journal))
        case _:
            raise TypeError(f"not a request: {type(request).__name__}")


def _named(journal: str) -> pb.LabelSelector:
    label = pb.Label(name=META_NAME, value=strip_meta(journal))
    return pb.LabelSelector(include=pb.LabelSet(labels=[label]))


_current: ContextVar[Claims | None] = ContextVar("gazette_aio_claims", default=None)


@contextlib.contextmanager
def with_claims(claims: Claims | None) -> Generator[Claims | None]:
    """Have RPCs which begin within the context make use of `claims`, and not of the default."""
    token = _current.set(claims)
    try:
        yield claims
    finally:
        _current.reset(token)


def current_claims() -> Claims | None:
    """Return the claims of the innermost `with_claims()`."""
    return _current.get()


def _payload(claims: Claims, issued_at: int, expires_at: int) -> dict[str, Any]:
    payload: dict[str, Any] = {
        "cap": int(claims.capability),
        "sel": {
            "include": {"labels": _labels_payload(claims.selector.include)},
            "exclude": {"labels": _labels_payload(claims.selector.exclude)},
        },
    }
    optional = {
        "iss": claims.issuer,
        "sub": claims.subject,
        "aud": list(claims.audience),
        "exp": expires_at,
        "nbf": claims.not_before,
        "iat": issued_at,
        "jti": claims.token_id,
    }
    return payload | {name: value for name, value in optional.items() if value}


def _labels_payload(labels: pb.LabelSet) -> list[dict[str, Any]] | None:
    listed: list[dict[str, Any]] = []
    for label in labels.labels:
        fields = {"name": label.name, "value": label.value, "prefix": label.prefix}
        listed.append({name: value for name, value in fields.items() if value})
    return listed or None


def _claims(payload: Payload) -> Claims:
    selector = payload.nested("sel")
    return Claims(
        capability=Capability(payload.unsigned32("cap")),
        selector=pb.LabelSelector(
            include=_labels(selector.nested("include")), exclude=_labels(selector.nested("exclude"))
        ),
        expires_at=payload.seconds("exp"),
        issued_at=payload.seconds("iat"),
        not_before=payload.seconds("nbf"),
        issuer=payload.text("iss"),
        subject=payload.text("sub"),
        audience=payload.texts("aud"),
        token_id=payload.text("jti"),
    )


def _labels(payload: Payload) -> pb.LabelSet | None:
    labels = [
        pb.Label(name=label.text("name"), value=label.text("value"), prefix=label.flag("prefix"))
        for label in payload.objects("labels")
    ]
    return pb.LabelSet(labels=labels) if labels else None
