"""Apply: changes of journal specs, in one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.aio.turns import Turns
from gazette_aio.broker.keyspace.keyspace import TransactionError
from gazette_aio.broker.resolver import visibility
from gazette_aio.serving.rpc_error import RpcError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_aio.broker.core import BrokerCore

_INLINE_BYTES = 8 << 10
"""Longest change which is validated by the event loop itself."""


async def serve_apply(
    core: BrokerCore, claims: pb.Claims, request: pb.ApplyRequest
) -> pb.ApplyResponse:
    """Apply all changes of a request, or none.

    Raises:
        RpcError: If the request is invalid or not authorized, or can't be made durable.

    Cancellation: safe — the changes may have been applied.
    """
    turns = Turns()
    for index, change in enumerate(request.changes):
        if change.ByteSize() > _INLINE_BYTES:
            await core.runtime.bulk.run(_validate, index, change)
        else:
            _validate(index, change)
        await turns.rest()
    if (visible := visibility(claims.selector)) is not None:
        for change in request.changes:
            _authorize(change, visible)
            await turns.rest()
    if (until := core.token_end(claims)) is not None and until.has_passed:
        raise RpcError("context deadline exceeded", "DEADLINE_EXCEEDED")
    try:
        applied = await core.space_store.apply(request.changes)
    except TransactionError as error:
        raise RpcError(str(error)) from None
    status = pb.Status.OK if applied else pb.Status.ETCD_TRANSACTION_FAILED
    return pb.ApplyResponse(status=status, header=core.headers.unrouted())


def _validate(index: int, change: pb.ApplyRequest.Change) -> None:
    try:
        pb.validate(pb.ApplyRequest(changes=[change]))
    except pb.ValidationError as error:
        # The first part of the context is the change, which was the only one here.
        context = (f"Changes[{index}]", *error.context[1:])
        raise RpcError(str(pb.ValidationError(error.text, context))) from None


def _authorize(change: pb.ApplyRequest.Change, visible: Callable[[pb.LabelSet], bool]) -> None:
    # A deleted journal is matched by its name alone: its labels aren't part of the request.
    spec = change.upsert if change.HasField("upsert") else pb.JournalSpec(name=change.delete)
    if not visible(pb.label_set_ext(spec)):
        raise RpcError(f"not authorized to {spec.name}", "UNAUTHENTICATED")
