"""What authorizes the RPCs of a client."""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import gazette_aio.protocol as pb

if TYPE_CHECKING:
    from datetime import timedelta

TokenSource: TypeAlias = Callable[[], str | Awaitable[str]]
"""A function, plain or async, which returns a token. It's called for every RPC."""

Auth: TypeAlias = pb.Authorizer | TokenSource
"""Whatever a client can be given to authorize its RPCs."""


class SourceAuth:
    """Authorizes RPCs by tokens that a function returns.

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
        """Return the metadata with the next token, whatever it claims.

        Raises:
            ConfigurationError: It isn't a token.

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


def authorizer(auth: Auth | None) -> pb.Authorizer:
    """Return what authorizes RPCs by `auth`; None looks into the environment.

    Raises:
        ConfigurationError: `auth` is none of the kinds that a client understands.
    """
    if auth is None:
        return auth_from_environment()
    if isinstance(auth, type):
        raise pb.ConfigurationError(f"can't authorize by the class {auth.__name__} itself")
    if callable(getattr(auth, "authorize", None)):
        return auth  # type: ignore[return-value]  # It was just looked at.
    if callable(auth):
        return SourceAuth(auth)
    raise pb.ConfigurationError(f"can't authorize by a {type(auth).__name__}")


def auth_from_environment(
    environment: Mapping[str, str] | None = None,
) -> pb.KeyedAuth | pb.BearerAuth | pb.NoopAuth:
    """Return what `$BROKER_AUTH_KEYS`, else `$BROKER_AUTH_TOKEN` say, else none.

    Raises:
        ConfigurationError: A key isn't one.
    """
    environment = os.environ if environment is None else environment
    if keys := environment.get("BROKER_AUTH_KEYS"):
        return pb.KeyedAuth(keys)
    if token := environment.get("BROKER_AUTH_TOKEN"):
        return pb.BearerAuth(token)
    return pb.NoopAuth()
