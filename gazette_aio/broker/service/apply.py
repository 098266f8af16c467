"""Apply: changes of journal specs, in one transaction."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.aio.turns import Turns
from gazette_aio.broker.fragments.postfix import check_template
from gazette_aio.broker.keyspace.keyspace import MAX_CHANGES, TransactionError
from gazette_aio.broker.resolver import visibility
from gazette_aio.broker.service.claim_rules import (
    Directories,
    Refusal,
    added_stores,
    refusal_of_change,
)
from gazette_aio.broker.service.common import process
from gazette_aio.protocol.errors import within
from gazette_aio.serving.rpc_error import RpcError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gazette_aio.broker.core import BrokerCore
    from gazette_aio.serving.calls import Send

_SLICE_JOURNALS = 32


async def serve_apply(
    core: BrokerCore,
    claims: pb.Claims,
    request: pb.ApplyRequest,
    _messages: object,
    send: Send,
) -> None:
    """Apply all changes of a request, or none.

    Raises:
        RpcError: The request is invalid or not authorized, or can't be made durable.

    Cancellation: safe — the changes may have been applied.
    """
    turns = Turns()
    for index, change in enumerate(request.changes):
        await process(core, functools.partial(_validate, index), change)
        await turns.rest()
    admit = None
    if (visible := visibility(claims.selector)) is not None:
        if core.options.claim_checks == "strict":
            admit = functools.partial(_admit, core, request.changes, visible)
        else:
            for change in request.changes:
                _authorize(change, visible)
                await turns.rest()
    if (until := core.token_end(claims)) is not None and until.has_passed:
        raise RpcError("context deadline exceeded", "DEADLINE_EXCEEDED")
    try:
        applied = await core.space_store.apply(request.changes, admit)
    except TransactionError as error:
        raise RpcError(str(error)) from None
    status = pb.Status.OK if applied else pb.Status.ETCD_TRANSACTION_FAILED
    await send(pb.ApplyResponse(status=status, header=core.resolver.unrouted()))


def _validate(index: int, change: pb.ApplyRequest.Change) -> None:
    try:
        pb.validate(change)
        if template := change.upsert.fragment.path_postfix_template:
            within("Upsert.Fragment.PathPostfixTemplate", check_template, template)
    except pb.ValidationError as error:
        raise RpcError(str(error.extend(f"Changes[{index}]"))) from None


async def _admit(
    core: BrokerCore,
    changes: Sequence[pb.ApplyRequest.Change],
    visible: Callable[[pb.LabelSet], bool],
) -> None:
    """Refuse changes that the claim rules don't permit to a confined token.

    The caller holds the key space meanwhile.
    """
    space = core.space
    directories = Directories(file_only=core.options.file_only)
    turns = Turns()
    for change in changes[:MAX_CHANGES]:  # More are refused anyway.
        spec = change.upsert
        item = space.get(spec.name if change.HasField("upsert") else change.delete)
        if (refusal := refusal_of_change(change, item, visible)) is not None:
            raise RpcError(str(refusal), "UNAUTHENTICATED")
        directories.add(spec.name, added_stores(spec, item))
        await turns.rest()
    for number, other in enumerate(space if directories else ()):
        if number % _SLICE_JOURNALS == 0:
            await turns.rest()
        if (name := directories.meets(other)) and not visible(other.labels):
            text = "its files may be those of other journals, by its stores"
            raise RpcError(str(Refusal(name, text)), "UNAUTHENTICATED")


def _authorize(change: pb.ApplyRequest.Change, visible: Callable[[pb.LabelSet], bool]) -> None:
    # Gazette's broker also matches a deleted journal by its name alone.
    spec = change.upsert if change.HasField("upsert") else pb.JournalSpec(name=change.delete)
    if not visible(pb.label_set_ext(spec)):
        raise RpcError(f"not authorized to {spec.name}", "UNAUTHENTICATED")
