"""FragmentStoreHealth: checks whether a store can be written and read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.aio.turns import Turns
from gazette_aio.broker.resolver import visibility
from gazette_aio.broker.service.common import validate
from gazette_aio.protocol.auth.claims import check_capability
from gazette_aio.serving.rpc_error import RpcError

if TYPE_CHECKING:
    from gazette_aio.broker.core import BrokerCore
    from gazette_aio.serving.calls import Send

_SLICE_JOURNALS = 32


async def serve_health(
    core: BrokerCore,
    claims: pb.Claims,
    request: pb.FragmentStoreHealthRequest,
    _messages: object,
    send: Send,
) -> None:
    """Send the health of a store.

    Raises:
        RpcError: The request is invalid or not authorized.

    Cancellation: safe.
    """
    await validate(core, request)
    url = request.fragment_store
    strict = not core.is_open and core.options.claim_checks == "strict"
    if strict and not await _is_named(core, claims, url):
        _authorize(claims, url)
    handle = core.stores.visit(url)
    # A disk that is full for appends may be full for a store whose latest check succeeded.
    problem = await handle.check(anew=bool(core.file_problem) and not handle.is_remote)
    if not problem and request.check_delete:
        problem = await handle.probe_delete(request.check_delete_prefix)
    status = pb.Status.FRAGMENT_STORE_UNHEALTHY if problem else pb.Status.OK
    header = core.resolver.unrouted()
    await send(
        pb.FragmentStoreHealthResponse(status=status, header=header, store_health_error=problem)
    )


async def _is_named(core: BrokerCore, claims: pb.Claims, url: str) -> bool:
    """Return whether a journal that the claims match has the store."""
    visible = visibility(claims.selector)
    turns = Turns()
    for number, item in enumerate(core.space.prefixed("")):
        if number % _SLICE_JOURNALS == 0:
            await turns.rest()
        if url in item.spec.fragment.stores and (visible is None or visible(item.labels)):
            return True
    return False


def _authorize(claims: pb.Claims, url: str) -> None:
    """Raise RpcError unless the claims permit any store.

    The broker sends requests to the store with its own credentials, and writes files.
    """
    try:
        check_capability(claims.capability, pb.Capability.APPLY)
    except pb.AuthorizationError as error:
        text = f"{error}, for a store that no permitted journal has"
        raise RpcError(text, "UNAUTHENTICATED") from None
    rewrites = bool(pb.parse_fragment_store(url).arguments.get("find"))
    if rewrites and visibility(claims.selector) is not None:
        text = "not authorized to a store that rewrites paths, by a token with a selector"
        raise RpcError(text, "UNAUTHENTICATED")
