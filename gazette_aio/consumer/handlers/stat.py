"""Stat: the progress of a shard."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.consumer.handlers.examination import examine
from gazette_aio.protocol import consumer as pc
from gazette_aio.serving.rpc_error import RpcError

if TYPE_CHECKING:
    from gazette_aio.consumer.service.service import Service
    from gazette_aio.consumer.shards.resolver import Resolution


async def shard_stat(
    claims: pb.Claims, service: Service, request: pc.StatRequest
) -> pc.StatResponse:
    """Return the progress of a shard, once it has read through the offsets of the request.

    A request for a shard of another member is forwarded once, with the claims of the caller.

    Args:
        claims: Claims of the caller.
        service: The service.
        request: The request. Its header, if there's one, is that of the member that forwarded it.

    Raises:
        ValidationError: The request is invalid.
        ResolverError: See `Resolver.resolve()`.
        RpcError: Forwarding failed.

    Cancellation: safe.
    """
    await examine(request, pb.validate, request)
    is_forwarded = request.HasField("header")
    async with service.resolver.resolve(
        request.shard,
        claims=claims,
        may_proxy=not is_forwarded,
        proxy_header=request.header if is_forwarded else None,
        read_through=request.read_through,
    ) as resolution:
        if resolution.status == pc.Status.OK and resolution.shard is None:
            return await _forward(claims, service, request, resolution)
        response = pc.StatResponse(status=resolution.status, header=resolution.header)
        if resolution.shard is not None:
            progress = resolution.shard.progress()
            response.read_through.update(progress.read_through)
            response.publish_at.update(progress.publish_at)
        return response


async def _forward(
    claims: pb.Claims, service: Service, request: pc.StatRequest, resolution: Resolution
) -> pc.StatResponse:
    forwarded = pc.StatRequest()
    forwarded.CopyFrom(request)
    forwarded.header.CopyFrom(resolution.header)
    if not resolution.endpoint:
        raise RpcError(f"the primary of shard {request.shard} is gone", "UNAVAILABLE")
    try:
        return await service.peers.stat(resolution.endpoint, forwarded, claims)
    except pb.TransportError as error:
        raise RpcError(error.details or str(error), str(error.code)) from error
