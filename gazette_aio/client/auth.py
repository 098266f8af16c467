"""Authorization of the RPCs of a client."""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import gazette_aio.protocol as pb

if TYPE_CHECKING:
    from datetime import timedelta

TokenSource: TypeAlias = Callable[[], str | Awaitable[str]]
"""A function, plain or async, that returns a token. It's called for every attempt of an RPC."""

Auth: TypeAlias = pb.Authorizer | TokenSource
"""Anything that authorizes the RPCs of a client."""

_KINDS: Final = (
    "pass auth=KeyedAuth(keys), auth=BearerAuth(token), or a function that returns a token"
)


class SourceAuth:
    """Authorizer that gets its tokens from a function.

    Args:
        source: The function.
    """

    def __init__(self, source: TokenSource) -> None:
        self._source = source

    async def authorize(
        self,
        claims: pb.Claims,
        lifetime: timedelta,
    ) -> pb.Metadata:
        """Return the metadata with the next token, whatever its claims are.

        Raises:
            ConfigurationError: The function returned something else than a token.

        Cancellation: safe, if the function is.
        """
        token: Any = self._source()
        if inspect.isawaitable(token):
            token = await token
        if not isinstance(token, str):
            raise pb.ConfigurationError(f"a token must be a str, not {type(token).__name__}")
        return await pb.BearerAuth(token).authorize(claims, lifetime)

    def __repr__(self) -> str:
        return "SourceAuth()"


def authorizer(auth: Auth | None, prefix: str = "BROKER") -> pb.Authorizer:
    """Return the authorizer of `auth`; None for that of the environment, as of `prefix`.

    Raises:
        ConfigurationError: `auth` is of none of the supported kinds.
    """
    if auth is None:
        return auth_from_environment(prefix=prefix)
    if isinstance(auth, type):
        raise pb.ConfigurationError(
            f"can't authorize by the class {auth.__name__} itself: {_KINDS}"
        )
    if callable(getattr(auth, "authorize", None)):
        return auth  # type: ignore[return-value]  # It was just checked.
    if callable(auth):
        return SourceAuth(auth)
    raise pb.ConfigurationError(f"can't authorize by a {type(auth).__name__}: {_KINDS}")


def auth_from_environment(
    environment: Mapping[str, str] | None = None, *, prefix: str = "BROKER"
) -> pb.KeyedAuth | pb.BearerAuth | pb.NoopAuth:
    """Return the authorizer of `$<prefix>_AUTH_KEYS`, else of `$<prefix>_AUTH_TOKEN`, else none.

    Raises:
        ConfigurationError: A key is invalid.
    """
    environment = os.environ if environment is None else environment
    if keys := environment.get(f"{prefix}_AUTH_KEYS"):
        return pb.KeyedAuth(keys)
    if token := environment.get(f"{prefix}_AUTH_TOKEN"):
        return pb.BearerAuth(token)
    return pb.NoopAuth()
