"""List: shards of the group, with their routes and statuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.aio.turns import Turns
from gazette_aio.consumer.handlers.examination import examine
from gazette_aio.protocol import consumer as pc
from gazette_aio.protocol.selector import compile_selector

if TYPE_CHECKING:
    from gazette_aio.consumer.service.service import Service


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
