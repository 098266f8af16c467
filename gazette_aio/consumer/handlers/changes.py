"""RPCs that change the group: Apply and Unassign, and who may do so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

import gazette_aio.protocol as pb
from gazette_aio.aio.turns import Turns
from gazette_aio.consumer.handlers.examination import examine
from gazette_aio.consumer.keyspace.errors import KeyValueStoreError
from gazette_aio.consumer.keyspace.operations import MAX_OPERATIONS, Compare, Delete, Get, Put
from gazette_aio.consumer.recoverylog import encode_hints
from gazette_aio.protocol import consumer as pc
from gazette_aio.protocol.labels import with_id_label
from gazette_aio.serving.rpc_error import RpcError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gazette_aio.consumer.allocator.model import Assignment
    from gazette_aio.consumer.keyspace.operations import KeyValue, Operation
    from gazette_aio.consumer.service.service import Service

_ANY_REVISION: Final = -1


async def shard_apply(
    claims: pb.Claims, service: Service, request: pc.ApplyRequest
) -> pc.ApplyResponse:
    """Create, update and delete shards in one transaction, and wait until this member shows it.

    Args:
        claims: Claims of the caller. They must match the labels and ID of each shard, both before
            and after the change.
        service: The service.
        request: The changes. Hints of a change are stored as those of the shard's primary.

    Raises:
        ValidationError: The request is invalid.
        RpcError: The caller isn't authorized, or hints of a shard would be keys of the group.
        KeyValueStoreError: The store failed, or refused the transaction.

    Cancellation: aborts — the changes may have been applied.
    """
    await examine(request, _check_request, claims, service, request)
    compares = await _check_replaced(claims, service, request.changes)
    operations: list[Operation] = []
    for change in request.changes:
        key = _add(service, change, operations)
        if change.expect_mod_revision != _ANY_REVISION:
            expected = Compare.mod_revision(key, change.expect_mod_revision)
            compares.setdefault(expected)
    response = pc.ApplyResponse(status=pc.Status.OK, header=service.resolver.unrouted_header())
    result = await service.store.transact(list(compares), operations)
    if not result.succeeded:
        response.status = pc.Status.ETCD_TRANSACTION_FAILED
    # A comparison with revision 0 tells that there was nothing to delete.
    elif any(each.value for each in compares) or any(isinstance(each, Put) for each in operations):
        await service.key_space.wait_for_revision(result.header.revision)
    else:
        keys = [each.key for each in operations]
        await _wait_until_gone(service, keys, result.header.revision)
    response.header.etcd.revision = result.header.revision
    return response


def _check_request(claims: pb.Claims, service: Service, request: pc.ApplyRequest) -> None:
    pb.validate(request)
    for change in request.changes:
        if change.HasField("upsert"):
            _check_spec(claims, service, change.upsert)


def _check_spec(claims: pb.Claims, service: Service, spec: pc.ShardSpec) -> None:
    """Check that the caller may have such a shard, and that its hints are no keys of the group."""
    _check_authorized(claims, spec.id, spec.labels)
    if service.keys.is_kept(pc.hint_primary_key(spec)):
        text = f"HintPrefix of {spec.id} is among keys of the group ({spec.hint_prefix})"
        raise RpcError(text, "INVALID_ARGUMENT")


async def _check_replaced(
    claims: pb.Claims, service: Service, changes: Sequence[pc.ApplyRequest.Change]
) -> dict[Compare, None]:
    """Check that the caller may change the shards as they are, and return what holds then.

    They are read from the store: this member may not have seen their newest labels.
    """
    compares: dict[Compare, None] = {}
    if _is_unconfined(claims):
        return compares
    for first in range(0, len(changes), MAX_OPERATIONS):
        part = changes[first : first + MAX_OPERATIONS]
        keys = [service.keys.item(change.upsert.id or change.delete) for change in part]
        result = await service.store.transact([], [Get(key) for key in keys])
        for change, key, entry in zip(part, keys, result.entries, strict=True):
            if entry is not None:
                shard = change.upsert.id or change.delete
                _check_authorized(claims, shard, _labels(shard, entry))
            elif change.delete:
                _check_authorized(claims, change.delete)
            revision = 0 if entry is None else entry.mod_revision
            compares[Compare.mod_revision(key, revision)] = None
    return compares


def _labels(shard: str, entry: KeyValue) -> pb.LabelSet:
    try:
        return pc.ShardSpec.FromString(entry.value).labels
    except DecodeError:
        raise _not_authorized(shard) from None


def _add(service: Service, change: pc.ApplyRequest.Change, operations: list[Operation]) -> str:
    """Add the operations of a change, and return the key of its shard."""
    keys = service.keys
    if not change.HasField("upsert"):
        key = keys.item(change.delete)
        operations.append(Delete(key))
        return key
    spec = change.upsert
    key = keys.item(spec.id)
    operations.append(Put(key, spec.SerializeToString()))
    if change.HasField("primary_hints"):
        operations.append(Put(pc.hint_primary_key(spec), encode_hints(change.primary_hints)))
    return key


async def _wait_until_gone(service: Service, keys: Sequence[str], revision: int) -> None:
    """Wait for the deletion of keys that may not have existed.

    A transaction that deleted nothing has no revision to wait for: it may never come.
    """
    key_space = service.key_space
    while key_space.header.revision < revision and any(
        key_space.entries.get(key) is not None for key in keys
    ):
        await key_space.next_change()


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
        if item is not None and _is_hidden(claims, shard, item.spec.labels):
            continue
        _check_authorized(claims, shard, None if item is None else item.spec.labels)
        if not _is_unconfined(claims):
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


def _is_unconfined(claims: pb.Claims) -> bool:
    """Return whether claims are of any shard."""
    return not claims.selector.include.labels and not claims.selector.exclude.labels


def _check_authorized(claims: pb.Claims, shard: str, labels: pb.LabelSet | None = None) -> None:
    """Check that a caller may change a shard.

    Args:
        claims: Claims of the caller.
        shard: ID of the shard.
        labels: Labels of its spec; None if there is none.

    Raises:
        RpcError: The caller may not.
    """
    if not pb.selector_matches(claims.selector, with_id_label(shard, labels or pb.LabelSet())):
        raise _not_authorized(shard)


def _is_hidden(claims: pb.Claims, shard: str, labels: pb.LabelSet) -> bool:
    """Return whether a shard is to look like a missing one, as its labels don't match.

    Of a selector that wouldn't match a missing shard either, the refusal of both is the same.
    """
    if pb.selector_matches(claims.selector, with_id_label(shard, labels)):
        return False
    return pb.selector_matches(claims.selector, with_id_label(shard, pb.LabelSet()))


def _not_authorized(shard: str) -> RpcError:
    """Return the refusal of a change of a shard."""
    return RpcError(f"not authorized to {shard}", "UNAUTHENTICATED")
