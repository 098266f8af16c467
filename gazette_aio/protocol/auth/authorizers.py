"""Authorizers and verifiers: shared keys, fixed tokens, or none."""

from __future__ import annotations

import base64
import time
from collections import OrderedDict
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from gazette_aio.protocol.auth.claims import Capability, Claims, check_capability
from gazette_aio.protocol.auth.jwt import decode_token, encode_token
from gazette_aio.protocol.errors import AuthorizationError, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

Metadata: TypeAlias = tuple[tuple[str, str], ...]
"""Names and values of the metadata of an RPC."""

AUTHORIZATION: Final = "authorization"
"""Name of the metadata which carries a token."""

DEFAULT_LIFETIME: Final = timedelta(hours=1)
"""Lifetime of the tokens of long RPCs."""

CACHED_TOKENS: Final = 1024
"""Greatest number of tokens which a `KeyedAuth` keeps."""

_BEARER: Final = "Bearer "
_ALLOWS_MISSING: Final = "AA=="


class Authorizer(Protocol):
    """Obtains the metadata which authorizes an RPC, for example from a token service."""

    async def authorize(self, claims: Claims, lifetime: timedelta) -> Metadata:
        """Return the metadata of an RPC which uses `claims` for up to `lifetime`.

        Raises:
            AuthorizationError: The claims can't be obtained.

        Cancellation: safe — no state is kept.
        """
        ...


class Verifier(Protocol):
    """Verifies the authorization of an RPC."""

    def verify(self, header: str | None, require: Capability, now: float) -> Claims:
        """Return the claims of an RPC.

        Args:
            header: First `authorization` metadata, if there is any.
            require: Capabilities which the RPC requires.
            now: Unix seconds.

        Raises:
            AuthorizationError: The RPC isn't authorized.
        """
        ...


class KeyedAuth:
    """Signs and verifies tokens with shared keys.

    Args:
        keys: Base64 keys, separated by commas or blanks. The first key signs; all keys verify. The
            value `AA==` isn't a key, but allows requests without authorization.
        clock: Source of Unix seconds for `authorize()`.

    Raises:
        ConfigurationError: There is no key, or a key isn't base64.
    """

    def __init__(self, keys: str, *, clock: Callable[[], float] = time.time) -> None:
        decoded: list[bytes] = []
        self._allows_missing = False
        for index, key in enumerate(keys.replace(",", " ").split()):
            if key == _ALLOWS_MISSING:
                self._allows_missing = True
                continue
            try:
                decoded.append(base64.b64decode(key, validate=True))
            except ValueError as error:
                raise ConfigurationError(
                    f"failed to decode key at index {index}: {error}"
                ) from None
        if not decoded:
            raise ConfigurationError("at least one key must be provided")
        self._keys = tuple(decoded)
        self._clock = clock
        # Least recently used first.
        self._tokens: OrderedDict[tuple[Any, ...], tuple[str, float]] = OrderedDict()

    def __repr__(self) -> str:
        # The repr must not show the keys.
        return f"KeyedAuth({len(self._keys)} keys, allows_missing={self._allows_missing})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tokens": OrderedDict()}

    @property
    def allows_missing(self) -> bool:
        """Whether requests without authorization pass."""
        return self._allows_missing

    def sign(self, claims: Claims, lifetime: timedelta, now: float) -> str:
        """Return a token for claims.

        Tokens are cached for half of their lifetime.

        Args:
            claims: Claims of the token.
            lifetime: Time for which the token is valid.
            now: Unix seconds.
        """
        key = (*claims.cache_key(), lifetime)
        seconds = lifetime.total_seconds()
        # Race: threads may share this object; none relies on an entry to stay.
        cached = self._tokens.pop(key, None)
        if cached is None or not 0 <= now - cached[1] < seconds / 2:
            cached = encode_token(claims, int(now), int(now + seconds), self._keys[0]), now
        self._tokens[key] = cached
        if len(self._tokens) > CACHED_TOKENS:
            self._tokens.popitem(last=False)
        return cached[0]

    async def authorize(self, claims: Claims, lifetime: timedelta) -> Metadata:
        """Return the metadata which carries a token for `claims`.

        Cancellation: safe — never suspends.
        """
        return ((AUTHORIZATION, _BEARER + self.sign(claims, lifetime, self._clock())),)

    def verify(self, header: str | None, require: Capability, now: float) -> Claims:
        """Return the claims of a request; see `Verifier`.

        Raises:
            AuthorizationError: The token is missing or invalid, or lacks a required capability.
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
            claims = decode_token(header.removeprefix(_BEARER), self._keys, now)
        except AuthorizationError as error:
            raise AuthorizationError(f"verifying Authorization: {error}") from None
        check_capability(claims.capability, require)
        return claims


class BearerAuth:
    """Sends a fixed token.

    Args:
        token: The token, without `Bearer`.

    Raises:
        ConfigurationError: The token has characters which can't be sent, such as a newline.
    """

    def __init__(self, token: str) -> None:
        if not (token.isascii() and token.isprintable()):
            raise ConfigurationError("token has characters which can't be sent")
        self._token = token

    def __repr__(self) -> str:
        return "BearerAuth(…)"

    async def authorize(self, claims: Claims, lifetime: timedelta) -> Metadata:  # noqa: ARG002
        """Return the metadata which carries the token; claims and lifetime are ignored.

        Cancellation: safe — never suspends.
        """
        return ((AUTHORIZATION, _BEARER + self._token),)


class NoopAuth:
    """Sends no metadata, and verifies every RPC."""

    def __repr__(self) -> str:
        return "NoopAuth()"

    async def authorize(self, claims: Claims, lifetime: timedelta) -> Metadata:  # noqa: ARG002
        """Return no metadata.

        Cancellation: safe — never suspends.
        """
        return ()

    def verify(self, header: str | None, require: Capability, now: float) -> Claims:  # noqa: ARG002
        """Return the required capabilities, for all journals."""
        return Claims(require)
