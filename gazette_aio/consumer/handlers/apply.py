"""Apply: changes of shard specs, as one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

import gazette_aio.protocol as pb
from gazette_aio.consumer.handlers.authorization import (
    check_authorized,
    is_unconfined,
    not_authorized,
)
from gazette_aio.consumer.handlers.examination import examine
from gazette_aio.consumer.keyspace.operations import MAX_OPERATIONS, Compare, Delete, Get, Put
from gazette_aio.consumer.recoverylog import encode_hints
from gazette_aio.protocol import consumer as pc
from gazette_aio.serving.rpc_error import RpcError

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    check_authorized(claims, spec.id, spec.labels)
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
    if is_unconfined(claims):
        return compares
    for first in range(0, len(changes), MAX_OPERATIONS):
        part = changes[first : first + MAX_OPERATIONS]
        keys = [service.keys.item(change.upsert.id or change.delete) for change in part]
        result = await service.store.transact([], [Get(key) for key in keys])
        for change, key, entry in zip(part, keys, result.entries, strict=True):
            if entry is not None:
                shard = change.upsert.id or change.delete
                check_authorized(claims, shard, _labels(shard, entry))
            elif change.delete:
                check_authorized(claims, change.delete)
            revision = 0 if entry is None else entry.mod_revision
            compares[Compare.mod_revision(key, revision)] = None
    return compares


def _labels(shard: str, entry: KeyValue) -> pb.LabelSet:
    try:
        return pc.ShardSpec.FromString(entry.value).labels
    except DecodeError:
        raise not_authorized(shard) from None


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
