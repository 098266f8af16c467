"""Unassign: removes assignments, which the allocator then makes anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gazette_aio.protocol as pb
from gazette_aio.consumer.handlers.authorization import check_authorized
from gazette_aio.consumer.keyspace.errors import KeyValueStoreError
from gazette_aio.consumer.keyspace.operations import MAX_OPERATIONS, Compare, Delete
from gazette_aio.consumer.shards.replica import spec_of
from gazette_aio.consumer.shards.status_writer import status_of
from gazette_aio.protocol import consumer as pc
from gazette_aio.serving.rpc_error import RpcError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_aio.consumer.allocator.model import Assignment
    from gazette_aio.consumer.handlers.serving import ShardServing


async def shard_unassign(
    claims: pb.Claims, service: ShardServing, request: pc.UnassignRequest
) -> pc.UnassignResponse:
    """Remove failed assignments, and those of primaries, and wait until this member shows it.

    Args:
        claims: Claims of the caller, which must match the labels and IDs of the shards.
        service: The service.
        request: The request. Shards that don't exist are passed over.

    Returns:
        The response, with the shards that have such assignments, in the order of the request. A
        large request takes several transactions: those before a failed one remain.

    Raises:
        ValidationError: The request is invalid.
        RpcError: The caller isn't authorized, or the store failed.

    Cancellation: aborts — assignments may have been removed.
    """
    pb.validate(request)
    response = pc.UnassignResponse(status=pc.Status.OK)
    removed: list[Assignment] = []
    for shard in dict.fromkeys(request.shards):
        item = service.host.group.items.get(shard)
        check_authorized(claims, shard, None if item is None else spec_of(item).labels)
        chosen = [
            assignment
            for assignment in service.host.group.assignments(shard)
            if _is_removed(assignment, only_failed=request.only_failed)
        ]
        if chosen:
            response.shards.append(shard)
            removed.extend(chosen)
    if request.dry_run:
        return response
    revision = 0
    for first in range(0, len(removed), MAX_OPERATIONS):
        revision = await _remove(service, removed[first : first + MAX_OPERATIONS])
        if not revision:
            response.status = pc.Status.ETCD_TRANSACTION_FAILED
            return response
    await service.host.key_space.wait_for_revision(revision)
    return response


def _is_removed(assignment: Assignment, *, only_failed: bool) -> bool:
    if status_of(assignment).code == pc.ReplicaStatus.FAILED:
        return True
    return assignment.slot == 0 and not only_failed


async def _remove(service: ShardServing, assignments: Sequence[Assignment]) -> int:
    """Remove assignments, and return the revision; 0 if one of them has changed."""
    try:
        result = await service.host.store.transact(
            [Compare.mod_revision(each.key, each.mod_revision) for each in assignments],
            [Delete(each.key) for each in assignments],
        )
    except KeyValueStoreError as error:
        raise RpcError(f"executing etcd transaction: {error}") from error
    return result.header.revision if result.succeeded else 0
