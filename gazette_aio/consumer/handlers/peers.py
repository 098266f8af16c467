"""Connections from a member to the others, for requests that it forwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gazette_aio.aio.closing import Closing
from gazette_aio.aio.owner import Owner
from gazette_aio.consumer.api.client import ShardClient

if TYPE_CHECKING:
    import grpc.aio

    import gazette_aio.protocol as pb
    from gazette_aio.client.options import TLSOptions
    from gazette_aio.protocol import consumer as pc


class Peers(Owner):
    """Clients of other members, by endpoint. They connect at their first use.

    Args:
        authorizer: Signs forwarded requests with the claims of their callers.
        tls: TLS of `https` endpoints; None for that of the environment.
    """

    def __init__(self, authorizer: pb.Authorizer, tls: TLSOptions | None = None) -> None:
        self._authorizer = authorizer
        self._tls = tls
        self._clients: dict[str, ShardClient] = {}
        self._closing = Closing()

    def __repr__(self) -> str:
        return f"<Peers with {len(self._clients)} clients>"

    async def stat(
        self, endpoint: str, request: pc.StatRequest, claims: pb.Claims
    ) -> pc.StatResponse:
        """Make a Stat RPC with a token of `claims`.

        Raises:
            TransportError: The RPC failed.

        Cancellation: safe.
        """
        return await self._client(endpoint).rpc.stat(request, claims=claims)

    def channel(self, endpoint: str) -> grpc.aio.Channel:
        """Return the channel to a member, which the caller doesn't close.

        Raises:
            ConfigurationError: A file of TLS can't be read.
        """
        return self._client(endpoint).dispatcher.default().channel

    async def aclose(self) -> None:
        """Disconnect. Idempotent.

        Cancellation: safe — call again.
        """
        await self._closing.aclose()

    def _client(self, endpoint: str) -> ShardClient:
        client = self._clients.get(endpoint)
        if client is None:
            client = ShardClient(endpoint, auth=self._authorizer, tls=self._tls, cache_size=0)
            self._clients[endpoint] = client
            self._closing.add(client)
        return client
