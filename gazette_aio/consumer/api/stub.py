"""RPCs of the Shard service, without retries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import gazette_aio.protocol as pb
from gazette_aio.client.rpc.channel_pool import unary_method
from gazette_aio.client.rpc.member_choice import Mode
from gazette_aio.client.rpc.unary import MINUTE, UnaryStub
from gazette_aio.protocol import consumer as pc
from gazette_aio.protocol import service

if TYPE_CHECKING:
    import grpc.aio
    from google.protobuf.message import Message

    Response = TypeVar("Response", bound=Message)


class ShardMethods:
    """Begins RPCs of the Shard service on one channel. Responses are left encoded.

    Args:
        channel: The channel.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.stat: Any = unary_method(channel, service.SHARD_STAT)
        self.list: Any = unary_method(channel, service.SHARD_LIST)
        self.apply: Any = unary_method(channel, service.SHARD_APPLY)
        self.get_hints: Any = unary_method(channel, service.SHARD_GET_HINTS)
        self.unassign: Any = unary_method(channel, service.SHARD_UNASSIGN)


class ShardStub(UnaryStub[ShardMethods]):
    """RPCs of the Shard service, without retries.

    Requests are validated before they're sent. A Stat goes to a member that the shard is assigned
    to, if its route is known; other requests go to the default address. RPCs carry a token of
    `claims`, else of the claims set by `protocol.with_claims()`, else of the least claims that the
    RPC needs.

    Args:
        dispatcher: Connections to members.
        authorizer: Provides the metadata that authorizes RPCs.
    """

    async def stat(
        self, request: pc.StatRequest, *, claims: pb.Claims | None = None
    ) -> pc.StatResponse:
        """Make a Stat RPC, once a member answers.

        Cancellation: safe.
        """
        return await self._call("stat", request, pc.StatResponse, claims, shard=request.shard)

    async def list(
        self, request: pc.ListRequest, *, claims: pb.Claims | None = None
    ) -> pc.ListResponse:
        """Make a List RPC, once the member answers.

        Cancellation: safe.
        """
        return await self._call("list", request, pc.ListResponse, claims)

    async def apply(
        self, request: pc.ApplyRequest, *, claims: pb.Claims | None = None
    ) -> pc.ApplyResponse:
        """Make an Apply RPC, once the member answers.

        Cancellation: aborts — the changes may have been applied.
        """
        return await self._call("apply", request, pc.ApplyResponse, claims)

    async def get_hints(
        self, request: pc.GetHintsRequest, *, claims: pb.Claims | None = None
    ) -> pc.GetHintsResponse:
        """Make a GetHints RPC, once the member answers.

        Cancellation: safe.
        """
        return await self._call("get_hints", request, pc.GetHintsResponse, claims)

    async def unassign(
        self, request: pc.UnassignRequest, *, claims: pb.Claims | None = None
    ) -> pc.UnassignResponse:
        """Make an Unassign RPC, once the member answers.

        Cancellation: aborts — assignments may have been removed.
        """
        return await self._call("unassign", request, pc.UnassignResponse, claims)

    async def _call(
        self,
        method: str,
        request: Message,
        response: type[Response],
        claims: pb.Claims | None,
        *,
        shard: str = "",
    ) -> Response:
        """Make an RPC to a member that a shard is assigned to, or to the default address."""
        pb.validate(request)
        metadata = await self._authorize(request, claims, MINUTE)
        default = self._dispatcher.default()
        connection = self._dispatcher.connection(shard, Mode.REPLICA) if shard else default
        if connection is default:
            connection = await self._dispatcher.ready()
        call = getattr(connection.methods, method)(request, metadata=metadata)
        if shard:
            self._dispatcher.follow(call, connection, shard)
        return await self._unary(call, response.FromString, connection)
