"""Protocols of the service that handlers of shards belong to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import gazette_aio.protocol as pb
    from gazette_aio.consumer.shards.host import ShardHost
    from gazette_aio.consumer.shards.resolver import Resolver
    from gazette_aio.protocol import consumer as pc


class StatPeer(Protocol):
    """Forwards a Stat to the member that serves the shard."""

    async def stat(
        self, endpoint: str, request: pc.StatRequest, claims: pb.Claims
    ) -> pc.StatResponse:
        """Make a Stat RPC with a token of `claims`.

        Raises:
            TransportError: The RPC failed.

        Cancellation: safe.
        """
        ...


class ShardServing(Protocol):
    """A service of shards, as far as its handlers need to know it."""

    @property
    def host(self) -> ShardHost:
        """State that the shards of the member share."""
        ...

    @property
    def resolver(self) -> Resolver:
        """Resolver of the member."""
        ...

    @property
    def peers(self) -> StatPeer:
        """Connections to other members."""
        ...
