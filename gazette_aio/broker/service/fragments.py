"""ListFragments: fragments of a journal's index."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.aio.turns import Turns
from gazette_aio.broker.service.common import signed_urls, validate
from gazette_aio.protocol.journal_spec import may_read
from gazette_aio.serving.rpc_error import RpcError

if TYPE_CHECKING:
    from gazette_aio.broker.core import BrokerCore
    from gazette_aio.broker.keyspace.keyspace import JournalItem
    from gazette_aio.serving.calls import Send

DEFAULT_PAGE_LIMIT = 1000
_MAX_SIGNED_SECONDS = 7 * 24 * 3600.0
"""Longest life of a signed URL in seconds, as of S3 and GCS; Azure would sign for centuries."""

_SLICE_FRAGMENTS = 16


async def serve_fragments(
    core: BrokerCore,
    claims: pb.Claims,
    request: pb.FragmentsRequest,
    _messages: object,
    send: Send,
) -> None:
    """Send a page of the fragments of a journal.

    Raises:
        RpcError: The request is invalid, or the stores can't be listed.

    Cancellation: safe.
    """
    await validate(core, request)
    resolved = await core.resolver.resolve(
        request.journal,
        claims,
        require_primary=False,
        proxy_header=request.header if request.HasField("header") else None,
        until=core.token_end(claims),
    )
    response = pb.FragmentsResponse(status=resolved.status, header=resolved.header)
    if response.status == pb.Status.OK and resolved.item is not None:
        if may_read(resolved.item.spec.flags):
            await _add_fragments(core, resolved.item, request, response)
        else:
            response.status = pb.Status.NOT_ALLOWED
    await send(response)


async def _add_fragments(
    core: BrokerCore,
    item: JournalItem,
    request: pb.FragmentsRequest,
    response: pb.FragmentsResponse,
) -> None:
    replica = await core.replica(item)
    if not replica.is_listed:
        await replica.refresh()
        if not replica.is_listed:
            raise RpcError(replica.listing_error)
    cover = replica.index.cover
    limit = request.page_limit or DEFAULT_PAGE_LIMIT
    # The present index, read in slices of the loop's time.
    cover = cover.members_from(request.next_page_token)
    turns = Turns()
    for index in range(len(cover)):
        if index % _SLICE_FRAGMENTS == 0:
            await turns.rest()
        begin, _, mod_time = cover.extent(index)
        if not _is_selected(mod_time, request):
            continue
        if len(response.fragments) == limit:
            response.next_page_token = begin
            break
        fragment = response.fragments.add(spec=cover[index].fragment)
        fragment.spec.sum.SetInParent()
    if request.HasField("signatureTTL"):
        seconds = request.signatureTTL.ToTimedelta().total_seconds()
        await _sign(core, response, min(seconds, _MAX_SIGNED_SECONDS))


async def _sign(core: BrokerCore, response: pb.FragmentsResponse, seconds: float) -> None:
    persisted = [fragment for fragment in response.fragments if fragment.spec.backing_store]
    urls = await signed_urls(core, [fragment.spec for fragment in persisted], seconds)
    for fragment, url in zip(persisted, urls, strict=True):
        fragment.signed_url = url


def _is_selected(mod_time: int, request: pb.FragmentsRequest) -> bool:
    if not mod_time:
        return request.end_mod_time == 0
    if request.end_mod_time and mod_time > request.end_mod_time:
        return False
    return mod_time >= request.begin_mod_time
