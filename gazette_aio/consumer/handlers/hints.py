"""GetHints: hints of a shard's recovery log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.consumer.handlers.examination import examine
from gazette_aio.consumer.shards.hints import fetch_stored_hints
from gazette_aio.protocol import consumer as pc

if TYPE_CHECKING:
    from gazette_aio.consumer.service.service import Service


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
