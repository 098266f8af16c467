"""ListFragments: fragments of a journal's index."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.broker.rpc_error import RpcError
from gazette_aio.broker.service.common import validated

if TYPE_CHECKING:
    from gazette_aio.broker.core import BrokerCore

DEFAULT_PAGE_LIMIT = 1000


async def serve_fragments(
    core: BrokerCore, claims: pb.Claims, request: pb.FragmentsRequest
) -> pb.FragmentsResponse:
    """Return a page of the fragments of a journal.

    Raises:
        RpcError: If the request is invalid, or the stores can't be listed.

    Cancellation: safe.
    """
    validated(request)
    resolved = await core.resolver.resolve(
        request.journal,
        claims,
        require_primary=False,
        proxy_header=request.header if request.HasField("header") else None,
    )
    response = pb.FragmentsResponse(status=resolved.status, header=resolved.header)
    if resolved.status != pb.Status.OK or resolved.item is None:
        return response
    if not pb.may_read(resolved.item.spec.flags):
        response.status = pb.Status.NOT_ALLOWED
        return response
    replica = await core.replica(resolved.item)
    if not replica.listed:
        await core.replicas.refresh(replica)
        if not replica.listed:
            raise RpcError(replica.listing_error)
    cover = replica.index.cover
    limit = request.page_limit or DEFAULT_PAGE_LIMIT
    for index in range(cover.first_from(request.next_page_token), len(cover)):
        entry = cover[index]
        if not _is_selected(entry.mod_time, request):
            continue
        if len(response.fragments) == limit:
            response.next_page_token = entry.begin
            break
        fragment = response.fragments.add(spec=entry.fragment)
        fragment.spec.sum.SetInParent()
        if request.HasField("signatureTTL") and entry.fragment.backing_store:
            fragment.signed_url = core.sign_get(entry.fragment)
    return response


def _is_selected(mod_time: int, request: pb.FragmentsRequest) -> bool:
    if not mod_time:
        return request.end_mod_time == 0
    if request.end_mod_time and mod_time > request.end_mod_time:
        return False
    return mod_time >= request.begin_mod_time
