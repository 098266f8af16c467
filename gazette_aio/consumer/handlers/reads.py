"""RPCs that read: Stat, List and GetHints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.aio.turns import Turns
from gazette_aio.consumer.handlers.examination import examine
from gazette_aio.consumer.shards.hints import fetch_stored_hints
from gazette_aio.protocol import consumer as pc
from gazette_aio.protocol.selector import compile_selector
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


async def shard_list(
    claims: pb.Claims, service: Service, request: pc.ListRequest
) -> pc.ListResponse:
    """Return the shards that match both the request and the claims, by ID.

    Args:
        claims: Claims of the caller.
        service: The service.
        request: The request.

    Raises:
        ValidationError: The request is invalid.

    Cancellation: safe.
    """
    await examine(request, pb.validate, request)
    group, resolver = service.group, service.resolver
    response = pc.ListResponse(status=pc.Status.OK, header=resolver.unrouted_header())
    wanted = await examine(request, compile_selector, request.selector)
    permitted = compile_selector(claims.selector)
    turns = Turns()
    # Race: shards may come and go during the turns of other tasks; each is listed as it is then.
    for id_ in sorted(group.items):
        await turns.rest()
        item = group.items.get(id_)
        if item is None:
            continue
        spec = item.spec
        labels = pc.label_set_ext(spec)
        if not wanted(labels) or not permitted(labels):
            continue
        response.shards.add(
            spec=spec,
            mod_revision=item.raw.mod_revision,
            create_revision=item.raw.create_revision,
            route=resolver.route(id_),
            status=[assignment.status for assignment in group.assignments(id_)],
        )
    return response


async def shard_get_hints(
    claims: pb.Claims, service: Service, request: pc.GetHintsRequest
) -> pc.GetHintsResponse:
    """Return the hints of a shard. Those that can't be used are left unset, unless all are.

    Args:
        claims: Claims of the caller.
        service: The service.
        request: The request.

    Raises:
        ValidationError: The request is invalid.
        HintsError: The store failed, or no hints can be used though there are some.

    Cancellation: safe.
    """
    await examine(request, pb.validate, request)
    header = service.resolver.unrouted_header()
    item = service.resolver.item(request.shard, claims)
    if item is None:
        return pc.GetHintsResponse(status=pc.Status.SHARD_NOT_FOUND, header=header)
    stored = await fetch_stored_hints(service.store, item.spec)
    return stored.response(header)
