"""Unassign: removes assignments, which the allocator then makes anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.aio.turns import Turns
from gazette_aio.consumer.handlers.authorization import (
    check_authorized,
    is_hidden,
    is_unconfined,
)
from gazette_aio.consumer.handlers.examination import examine
from gazette_aio.consumer.keyspace.errors import KeyValueStoreError
from gazette_aio.consumer.keyspace.operations import MAX_OPERATIONS, Compare, Delete
from gazette_aio.protocol import consumer as pc
from gazette_aio.serving.rpc_error import RpcError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gazette_aio.consumer.allocator.model import Assignment
    from gazette_aio.consumer.service.service import Service


async def shard_unassign(
    claims: pb.Claims, service: Service, request: pc.UnassignRequest
) -> pc.UnassignResponse:
    """Remove failed assignments, and those of primaries, and wait until this member shows it.

    Args:
        claims: Claims of the caller, which must match the labels and IDs of the shards.
        service: The service.
        request: The request. Shards that don't exist are passed over, and so are those that the
            claims exclude: the caller can't tell them apart.

    Returns:
        The response, with the shards that have such assignments, in the order of the request. A
        large request takes several transactions: those before a failed one remain.

    Raises:
        ValidationError: The request is invalid.
        RpcError: The caller isn't authorized, or the store failed.

    Cancellation: aborts — assignments may have been removed.
    """
    await examine(request, pb.validate, request)
    response = pc.UnassignResponse(status=pc.Status.OK)
    removed: list[Assignment] = []
    # What holds of shards whose labels were matched: this member may not have seen their newest.
    matched: dict[str, Compare] = {}
    turns = Turns()
    for shard in dict.fromkeys(request.shards):
        await turns.rest()
        item = service.group.items.get(shard)
        if item is not None and is_hidden(claims, shard, item.spec.labels):
            continue
        check_authorized(claims, shard, None if item is None else item.spec.labels)
        if not is_unconfined(claims):
            key, mod_revision = (
                service.keys.item(shard),
                0 if item is None else item.raw.mod_revision,
            )
            matched[shard] = Compare.mod_revision(key, mod_revision)
        chosen = [
            assignment
            for assignment in service.group.assignments(shard)
            if _is_removed(assignment, only_failed=request.only_failed)
        ]
        if chosen:
            response.shards.append(shard)
            removed.extend(chosen)
    if request.dry_run:
        return response
    revision, step = 0, MAX_OPERATIONS // (2 if matched else 1)
    for first in range(0, len(removed), step):
        revision = await _remove(service, removed[first : first + step], matched)
        if not revision:
            response.status = pc.Status.ETCD_TRANSACTION_FAILED
            return response
    await service.key_space.wait_for_revision(revision)
    return response


def _is_removed(assignment: Assignment, *, only_failed: bool) -> bool:
    if assignment.status.code == pc.ReplicaStatus.FAILED:
        return True
    return assignment.slot == 0 and not only_failed


async def _remove(
    service: Service, assignments: Sequence[Assignment], matched: Mapping[str, Compare]
) -> int:
    """Remove assignments, and return the revision; 0 if one of them, or its shard, has changed."""
    compares = [Compare.unchanged(each.raw) for each in assignments]
    shards = dict.fromkeys(each.item for each in assignments)
    compares += [matched[shard] for shard in shards if shard in matched]
    try:
        result = await service.store.transact(
            compares, [Delete(each.raw.key) for each in assignments]
        )
    except KeyValueStoreError as error:
        raise RpcError(f"executing etcd transaction: {error}") from error
    return result.header.revision if result.succeeded else 0
