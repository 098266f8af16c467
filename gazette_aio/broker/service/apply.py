"""Apply: changes of journal specs, in one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.broker.keyspace import TransactionError
from gazette_aio.broker.resolver import visibility
from gazette_aio.broker.rpc_error import RpcError
from gazette_aio.broker.service.common import validated

if TYPE_CHECKING:
    from gazette_aio.broker.core import BrokerCore


async def serve_apply(
    core: BrokerCore, claims: pb.Claims, request: pb.ApplyRequest
) -> pb.ApplyResponse:
    """Apply all changes of a request, or none.

    Raises:
        RpcError: If the request is invalid or not authorized, or can't be made durable.

    Cancellation: safe — the changes may have been applied.
    """
    validated(request)
    visible = visibility(claims.selector)
    for change in request.changes if visible else ():
        # A deleted journal is matched by its name alone: its labels aren't part of the request.
        spec = change.upsert if change.HasField("upsert") else pb.JournalSpec(name=change.delete)
        if visible is not None and not visible(pb.label_set_ext(spec)):
            raise RpcError(f"not authorized to {spec.name}", "UNAUTHENTICATED")
    try:
        applied = await core.store.apply(request.changes)
    except TransactionError as error:
        raise RpcError(str(error)) from None
    status = pb.Status.OK if applied else pb.Status.ETCD_TRANSACTION_FAILED
    return pb.ApplyResponse(status=status, header=core.headers.unrouted())
