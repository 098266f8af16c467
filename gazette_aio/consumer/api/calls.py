"""Calls of the Shard service: with retries, deadlines, and an exception per status."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import gazette_aio.protocol as pb
from gazette_aio.client.attempts import until_success
from gazette_aio.client.listing.batches import apply_in_batches
from gazette_aio.client.retry import Operation
from gazette_aio.protocol import consumer as pc
from gazette_aio.protocol.errors import within
from gazette_aio.protocol.journal import encodable
from gazette_aio.protocol.recoverylog import FSMHints
from gazette_aio.protocol.status_errors import shard_status_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from google.protobuf.message import Message

    from gazette_aio.client.deadline import Deadline
    from gazette_aio.consumer.api.client import ShardClient

    Request = TypeVar("Request", bound=Message)

Response = TypeVar("Response")

_LONGEST_PAUSE: Final = 1.0
_SLICE_CHECKED: Final = 16
_SLICE_NOTED: Final = 256


async def stat_shard(
    client: ShardClient, request: pc.StatRequest | str, *, timeout: float | None = None
) -> pc.StatResponse:
    """Return the progress of a shard, once it has read through the offsets of the request.

    Members end an RPC that waits when its token expires. The wait continues by another RPC until
    the caller's own deadline.

    Args:
        client: Client to use.
        request: ID of the shard, or a request that may have offsets to `read_through`.
        timeout: Seconds to wait, `math.inf` for no limit; None for that of the client.

    Raises:
        ValidationError: The request or the response is invalid.
        ShardStatusError: The shard doesn't exist, or has no primary.
        TransportError: The RPC failed, or no member answers.
        OperationTimeoutError: The time is over.

    Cancellation: safe.
    """
    if isinstance(request, str):
        request = pc.StatRequest(shard=encodable(request, "Shard"))
    pb.validate(request)
    deadline = client.deadline("stat", timeout)
    stat = partial(_stat_through, client, deadline)
    return await deadline.run(_call(client, deadline, stat, request, shard=request.shard))


async def _stat_through(
    client: ShardClient, deadline: Deadline, request: pc.StatRequest
) -> pc.StatResponse:
    expired = 0
    while True:
        try:
            response = await client.rpc.stat(request)
        except pb.TransportError as error:
            if error.code != "DEADLINE_EXCEEDED" or not request.read_through:
                raise
            deadline.note(error)
        else:
            client.router.update_route(request.shard, response.header.route)
            return response
        # A member whose tokens expire at once must not be asked in a tight loop.
        await asyncio.sleep(min(client.retry_policy.backoff(expired), _LONGEST_PAUSE))
        expired += 1


async def list_shards(
    client: ShardClient,
    request: pc.ListRequest | pb.LabelSelector | str = "",
    *,
    timeout: float | None = None,
) -> pc.ListResponse:
    """Return all shards that a selector matches, ordered by ID.

    Args:
        client: Client to use.
        request: A selector, its text, or a request. The empty text matches every shard, and the
            label `id` is the shard's ID.
        timeout: Seconds to wait, `math.inf` for no limit; None for that of the client.

    Raises:
        ValidationError: The selector or the response is invalid.
        ShardStatusError: The member refused the listing.
        TransportError: The RPC failed, or no member answers.
        OperationTimeoutError: The time is over.

    Cancellation: safe.
    """
    if isinstance(request, str):
        request = pb.parse_label_selector(request)
    if isinstance(request, pb.LabelSelector):
        request = pc.ListRequest(selector=request)
    pb.validate(request)
    deadline = client.deadline("list", timeout)
    response = await deadline.run(_call(client, deadline, client.rpc.list, request))
    for number, shard in enumerate(response.shards, 1):
        client.router.update_route(shard.spec.id, shard.route)
        if number % _SLICE_NOTED == 0:
            await asyncio.sleep(0)
    return response


async def apply_shards(
    client: ShardClient,
    request: pc.ApplyRequest | Iterable[pc.ApplyRequest.Change],
    *,
    batch_size: int = 0,
    timeout: float | None = None,
) -> pc.ApplyResponse:
    """Create, update and delete shards, and return the response to the last batch.

    If the member becomes unavailable, a transaction is repeated only if it expects no revisions
    (-1). Otherwise it's unknown whether it was applied.

    Args:
        client: Client to use.
        request: The changes.
        batch_size: Changes of each transaction, of which Etcd accepts about 128; 0, the default,
            makes one transaction. Transactions before a failed one remain: the error has the number
            of their changes as `applied`.
        timeout: Seconds to wait for all transactions, `math.inf` for no limit; None for that of the
            client.

    Raises:
        ValidationError: A change or a response is invalid.
        ShardEtcdTransactionFailedError: An expected revision differs.
        ShardStatusError: The member refused a transaction.
        TransportError: An RPC failed, or no member answers.
        OperationTimeoutError: The time is over; it's unknown whether the transaction that was under
            way was applied.

    Cancellation: aborts — transactions that were applied remain.
    """
    deadline = client.deadline("apply", timeout, doubt="changes may have been applied")
    extension = request.extension if isinstance(request, pc.ApplyRequest) else b""

    async def apply(batch: Sequence[pc.ApplyRequest.Change]) -> pc.ApplyResponse:
        request = pc.ApplyRequest(changes=batch, extension=extension)
        return await _call(client, deadline, client.rpc.apply, request)

    return await apply_in_batches(
        list(request.changes if isinstance(request, pc.ApplyRequest) else request),
        batch_size,
        deadline,
        check=pb.validate,
        item_of=_shard_of,
        apply=apply,
    )


def _shard_of(change: pc.ApplyRequest.Change) -> str:
    return f"shard {(change.upsert.id if change.HasField('upsert') else change.delete)!r}"


async def fetch_hints(
    client: ShardClient, request: pc.GetHintsRequest | str, *, timeout: float | None = None
) -> pc.GetHintsResponse:
    """Return the hints of a shard: the primary's, and those of past recoveries.

    Args:
        client: Client to use.
        request: ID of the shard, or a request.
        timeout: Seconds to wait, `math.inf` for no limit; None for that of the client.

    Raises:
        ValidationError: The request or the response is invalid.
        ShardStatusError: The shard doesn't exist.
        TransportError: The RPC failed, or no member answers.
        OperationTimeoutError: The time is over.

    Cancellation: safe.
    """
    if isinstance(request, str):
        request = pc.GetHintsRequest(shard=encodable(request, "Shard"))
    pb.validate(request)
    deadline = client.deadline("fetch hints", timeout)
    fetch = client.rpc.get_hints
    return await deadline.run(_call(client, deadline, fetch, request, shard=request.shard))


def pick_first_hints(response: pc.GetHintsResponse, log: str) -> FSMHints:
    """Return the primary hints, else the first backup that is set, else empty hints of `log`."""
    for listed in (response.primary_hints, *response.backup_hints):
        if listed.HasField("hints"):
            return listed.hints
    return FSMHints(log=log)


async def unassign_shards(
    client: ShardClient,
    request: pc.UnassignRequest | Iterable[str],
    *,
    only_failed: bool = False,
    dry_run: bool = False,
    timeout: float | None = None,
) -> pc.UnassignResponse:
    """Remove the assignments of primaries and of failed replicas, which are then made anew.

    `only_failed` and `dry_run` apply only if `request` isn't a request.

    Args:
        client: Client to use.
        request: IDs of the shards, or a request.
        only_failed: Whether to keep primaries that haven't failed.
        dry_run: Whether to only return the shards.
        timeout: Seconds to wait, `math.inf` for no limit; None for that of the client.

    Returns:
        The response, with the shards that had such assignments.

    Raises:
        ValidationError: The request or the response is invalid.
        ShardEtcdTransactionFailedError: Assignments changed meanwhile. Nothing was removed, unless
            there were more of them than fit into one transaction.
        ShardStatusError: The member refused.
        TransportError: The RPC failed, or no member answers.
        OperationTimeoutError: The time is over; assignments may have been removed.

    Cancellation: aborts — assignments may have been removed.
    """
    if not isinstance(request, pc.UnassignRequest):
        shards = [encodable(shard, "Shard") for shard in request]
        request = pc.UnassignRequest(shards=shards, only_failed=only_failed, dry_run=dry_run)
    pb.validate(request)
    doubt = "" if request.dry_run else "assignments may have been removed"
    deadline = client.deadline("unassign", timeout, doubt=doubt)
    return await deadline.run(_call(client, deadline, client.rpc.unassign, request))


async def _call(
    client: ShardClient,
    deadline: Deadline,
    rpc: Callable[[Request], Awaitable[Response]],
    request: Request,
    *,
    shard: str = "",
) -> Response:
    """Make an RPC, with retries, and return its response, which is valid and of status OK."""

    async def once() -> Response:
        response = await rpc(request)
        if isinstance(response, pc.ListResponse) and response.status == pc.Status.OK:
            await _check_shards(client, response)
        else:
            _check(client, response, shard)
        return response

    return await until_success(
        once,
        Operation.CONTROL,
        client.retry_policy,
        request,
        endpoint=client.endpoint,
        ready=client.dispatcher.ready,
        deadline=deadline,
    )


async def _check_shards(client: ShardClient, response: pc.ListResponse) -> None:
    """Check as `_check()`, and let other tasks have turns: listings may be long."""
    head = pc.ListResponse(status=response.status)
    if response.HasField("header"):
        head.header.CopyFrom(response.header)
    _check(client, head)
    for begin in range(0, len(response.shards), _SLICE_CHECKED):
        for index, shard in enumerate(response.shards[begin : begin + _SLICE_CHECKED], begin):
            within(f"Shards[{index}]", pb.validate, shard, strict=client.strict)
        await asyncio.sleep(0)


def _check(client: ShardClient, response: Any, shard: str = "") -> None:
    """Raise unless a response is valid, and its status OK."""
    is_ok = response.status == pc.Status.OK
    header = getattr(response, "header", None)  # Wire: that of Unassign has none.
    # Invariant: whether there's a header or not, a refusal is raised as the class of its status.
    pb.validate(response, strict=client.strict and (is_ok or header is not None))
    if not is_ok:
        raise shard_status_error(
            response.status,
            shard=shard,
            header=header,
            response=response,
            endpoint=client.endpoint,
        )
