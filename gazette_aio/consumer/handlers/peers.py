"""Connections from a member to the others, for requests that it forwards."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from typing import TYPE_CHECKING, Final

from gazette_aio.aio.closing import Closing
from gazette_aio.aio.owner import Owner
from gazette_aio.aio.task import start_task
from gazette_aio.consumer.allocator.model import Member
from gazette_aio.consumer.api.client import ShardClient
from gazette_aio.protocol.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import grpc.aio

    import gazette_aio.protocol as pb
    from gazette_aio.client.options import TLSOptions
    from gazette_aio.consumer.allocator.model import GroupEntry
    from gazette_aio.consumer.keyspace.entries import Change
    from gazette_aio.protocol import consumer as pc

LINGER_SECONDS: Final = 30.0
"""Time for which a connection may still be used after its member has left. It's longer than a
client waits to be connected."""


class Peers(Owner):
    """Clients of other members, by endpoint. They connect at their first use.

    `observe` is an observer of the group's key space. The client of an endpoint that is no member's
    is closed once its calls have ended.

    Args:
        authorizer: Signs forwarded requests with the claims of their callers.
        tls: TLS of `https` endpoints; None for that of the environment.
        linger_seconds: Time for which a client may be used after its member has left.
    """

    def __init__(
        self,
        authorizer: pb.Authorizer,
        tls: TLSOptions | None = None,
        *,
        linger_seconds: float = LINGER_SECONDS,
    ) -> None:
        self._authorizer = authorizer
        self._tls = tls
        self._linger_seconds = linger_seconds
        self._members: Counter[str] = Counter()  # By endpoint.
        self._clients: dict[str, ShardClient] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._closing = Closing()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<Peers with {self.open_clients} clients>"

    @property
    def open_clients(self) -> int:
        """Number of clients that aren't closed."""
        return len(self._closing)

    def observe(self, changes: Sequence[Change[GroupEntry]]) -> None:
        """Take changes of the key space."""
        for change in changes:
            before, after = map(_endpoint, change)
            if before == after:
                continue
            if after:
                self._members[after] += 1
            if before:
                self._members[before] -= 1
                if not self._members[before]:
                    del self._members[before]
                    self._retire(before)

    async def stat(
        self, endpoint: str, request: pc.StatRequest, claims: pb.Claims
    ) -> pc.StatResponse:
        """Make a Stat RPC with a token of `claims`.

        Raises:
            TransportError: The RPC failed.
            UsageError: This is closed.

        Cancellation: safe.
        """
        return await self._client(endpoint).rpc.stat(request, claims=claims)

    def channel(self, endpoint: str) -> grpc.aio.Channel:
        """Return the channel to a member, which the caller doesn't close.

        Raises:
            ConfigurationError: A file of TLS can't be read.
            UsageError: This is closed.
        """
        return self._client(endpoint).dispatcher.default().channel

    async def aclose(self) -> None:
        """Disconnect. Idempotent.

        Cancellation: safe — call again.
        """
        self._is_closed = True
        for task in self._leaving:
            task.cancel()
        if self._leaving:
            await asyncio.wait(self._leaving)
        await self._closing.aclose()
        self._clients.clear()

    def _client(self, endpoint: str) -> ShardClient:
        if self._is_closed:
            raise UsageError("the connections to other members are closed")
        client = self._clients.get(endpoint)
        if client is None:
            client = ShardClient(endpoint, auth=self._authorizer, tls=self._tls, cache_size=0)
            self._clients[endpoint] = client
            self._closing.add(client)
            if endpoint not in self._members:
                self._retire(endpoint)  # The caller's resolution is older than the group.
        return client

    def _retire(self, endpoint: str) -> None:
        client = self._clients.pop(endpoint, None)
        if client is None or self._is_closed:
            return
        task = start_task(self._close_unused(client), f"gazette retired client of {endpoint}")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _close_unused(self, client: ShardClient) -> None:
        """Close a client once nobody uses it any longer."""
        # Race: who was given its channel may be about to use it.
        await asyncio.sleep(self._linger_seconds)
        if client.dispatcher.is_dialled:
            await client.dispatcher.default().channel.close(math.inf)
        await client.aclose()
        self._closing.discard(client)


def _endpoint(entry: GroupEntry | None) -> str:
    """Return the endpoint of the member that an entry is, or an empty text."""
    return entry.spec.process_spec.endpoint if isinstance(entry, Member) else ""
