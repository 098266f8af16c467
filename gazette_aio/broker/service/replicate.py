"""Replicate: refusal of a peer's stream.

A peer would compete for the spool of a journal, which has only one broker here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.broker.service.common import validate
from gazette_aio.protocol.validation.specs import route_equivalent
from gazette_aio.serving.rpc_error import RpcError

if TYPE_CHECKING:
    from gazette_aio.broker.core import BrokerCore
    from gazette_aio.serving.calls import Send


async def serve_replicate(
    core: BrokerCore,
    claims: pb.Claims,
    request: pb.ReplicateRequest | None,
    _messages: object,
    send: Send,
) -> None:
    """Refuse the opening message of a stream; None if the stream had no message.

    Raises:
        RpcError: The request is invalid, or replication isn't served.

    Cancellation: safe.
    """
    if request is None:
        raise RpcError("EOF")
    if request.HasField("proposal"):
        request.registers.SetInParent()  # Older peers leave them out if they're empty.
    await validate(core, request)
    if not request.HasField("header"):
        raise RpcError("expected first ReplicateRequest to have Header")
    resolved = await core.resolver.resolve(
        request.proposal.journal, claims, require_primary=False, proxy_header=request.header
    )
    status = resolved.status
    if status == pb.Status.OK and not route_equivalent(request.header.route, resolved.header.route):
        status = pb.Status.WRONG_ROUTE
    if status == pb.Status.OK:
        raise RpcError("replication is not supported by this broker", "UNIMPLEMENTED")
    await send(pb.ReplicateResponse(status=status, header=resolved.header))
