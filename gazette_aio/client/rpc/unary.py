"""Base of the stubs of all services: authorization, and RPCs with one response."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import grpc.aio
from google.protobuf.message import DecodeError

import gazette_aio.protocol as pb
from gazette_aio.client.rpc.channel_pool import MethodsT
from gazette_aio.client.rpc.errors import closed_channel_is_an_error, transport_error
from gazette_aio.protocol.auth.claims import default_claims

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gazette_aio.client.rpc.channel_pool import MemberConnection
    from gazette_aio.client.rpc.dispatch import Dispatcher

_HOUR: Final = timedelta(hours=1)
MINUTE: Final = timedelta(minutes=1)
"""Lifetime of the tokens of short RPCs."""

T = TypeVar("T")


def decoded(parse: Callable[[bytes], T], data: bytes) -> T:
    """Return the message of `data`.

    Raises:
        ValidationError: The data isn't a message.
    """
    try:
        return parse(data)
    except DecodeError as error:
        raise pb.ValidationError(f"undecodable response: {error}") from None


class UnaryStub(Generic[MethodsT]):
    """Base of the stubs of services.

    Args:
        dispatcher: Connections to members.
        authorizer: Provides the metadata that authorizes RPCs.
    """

    def __init__(self, dispatcher: Dispatcher[MethodsT], authorizer: pb.Authorizer) -> None:
        self._dispatcher = dispatcher
        self._authorizer = authorizer

    async def _authorize(
        self, request: object, claims: pb.Claims | None, lifetime: timedelta = _HOUR
    ) -> pb.Metadata:
        if type(self._authorizer) is pb.NoopAuth:
            return ()  # It asks for no claims.
        claims = claims or pb.current_claims() or default_claims(request)
        return await self._authorizer.authorize(claims, lifetime)

    async def _unary(
        self,
        call: Awaitable[bytes],
        parse: Callable[[bytes], T],
        connection: MemberConnection[MethodsT],
        journal: str = "",
    ) -> T:
        try:
            with closed_channel_is_an_error(journal):
                data = await call
        except grpc.aio.AioRpcError as error:
            raise transport_error(
                error,
                endpoint=connection.endpoint,
                journal=journal,
                peer=self._dispatcher.peer,
            ) from error
        return decoded(parse, data)
