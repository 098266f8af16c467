"""Apply: changes of shard specs, as one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import gazette_aio.protocol as pb
from gazette_aio.consumer.handlers.authorization import check_authorized
from gazette_aio.consumer.keyspace.operations import Compare, Delete, Put
from gazette_aio.consumer.recoverylog import encode_hints
from gazette_aio.protocol import consumer as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gazette_aio.consumer.handlers.serving import ShardServing
    from gazette_aio.consumer.keyspace.operations import Operation

_ANY_REVISION: Final = -1


async def shard_apply(
    claims: pb.Claims, service: ShardServing, request: pc.ApplyRequest
) -> pc.ApplyResponse:
    """Create, update and delete shards in one transaction, and wait until this member shows it.

    Args:
        claims: Claims of the caller. They must match the labels and ID of each spec, and the ID of
            each deleted shard.
        service: The service.
        request: The changes. Hints of a change are stored as those of the shard's primary.

    Raises:
        ValidationError: The request is invalid.
        RpcError: The caller isn't authorized.
        KeyValueStoreError: The store failed, or refused the transaction.

    Cancellation: aborts — the changes may have been applied.
    """
    pb.validate(request)
    compares: list[Compare] = []
    operations: list[Operation] = []
    for change in request.changes:
        key = _add(claims, service, change, operations)
        if change.expect_mod_revision != _ANY_REVISION:
            compares.append(Compare.mod_revision(key, change.expect_mod_revision))
    response = pc.ApplyResponse(status=pc.Status.OK, header=service.resolver.unrouted_header())
    result = await service.host.store.transact(compares, operations)
    if not result.succeeded:
        response.status = pc.Status.ETCD_TRANSACTION_FAILED
    elif compares or any(isinstance(each, Put) for each in operations):
        await service.host.key_space.wait_for_revision(result.header.revision)
    else:
        keys = [each.key for each in operations]
        await _wait_until_gone(service, keys, result.header.revision)
    response.header.etcd.revision = result.header.revision
    return response


def _add(
    claims: pb.Claims,
    service: ShardServing,
    change: pc.ApplyRequest.Change,
    operations: list[Operation],
) -> str:
    """Add the operations of a change, and return the key of its shard."""
    keys = service.host.keys
    if not change.HasField("upsert"):
        check_authorized(claims, change.delete)
        key = keys.item(change.delete)
        operations.append(Delete(key))
        return key
    spec = change.upsert
    check_authorized(claims, spec.id, spec.labels)
    key = keys.item(spec.id)
    operations.append(Put(key, spec.SerializeToString()))
    if change.HasField("primary_hints"):
        operations.append(Put(pc.hint_primary_key(spec), encode_hints(change.primary_hints)))
    return key


async def _wait_until_gone(service: ShardServing, keys: Sequence[str], revision: int) -> None:
    """Wait for the deletion of keys that may not have existed.

    A transaction that deleted nothing has no revision to wait for: it may never come.
    """
    key_space = service.host.key_space
    while key_space.header.revision < revision and any(
        key_space.entries.get(key) is not None for key in keys
    ):
        await key_space.next_change()
