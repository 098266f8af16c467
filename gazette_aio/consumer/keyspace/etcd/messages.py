"""Messages of Etcd for requests of a key-value store, and values for Etcd's responses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gazette_aio.consumer.keyspace.etcd._generated import etcd_pb2 as pb
from gazette_aio.consumer.keyspace.operations import Compare, Delete, Get, KeyValue, Put, Target
from gazette_aio.consumer.keyspace.store import (
    Deleted,
    RangeResult,
    StoreHeader,
    TransactionResult,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gazette_aio.consumer.keyspace.operations import Operation
    from gazette_aio.consumer.keyspace.store import Event

_TARGETS: Final = {
    Target.VERSION: pb.Compare.VERSION,
    Target.CREATE_REVISION: pb.Compare.CREATE,
    Target.MOD_REVISION: pb.Compare.MOD,
    Target.LEASE: pb.Compare.LEASE,
}
_NUL: Final = b"\0"


def key_bytes(key: str) -> bytes:
    """Return a key as Etcd has it. Keys that aren't UTF-8 survive both ways."""
    return key.encode("utf-8", "surrogateescape")


def key_text(key: bytes) -> str:
    """Return a key of Etcd as text."""
    return key.decode("utf-8", "surrogateescape")


def prefix_bounds(prefix: str, after: str = "") -> tuple[bytes, bytes]:
    """Return the range of keys that begin with `prefix` and come after the key `after`."""
    begin = key_bytes(prefix)
    # Wire: an end of one NUL is the end of all keys.
    stripped = begin.rstrip(b"\xff")
    end = stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else _NUL
    begin = begin or _NUL
    return (max(begin, key_bytes(after) + _NUL) if after else begin), end


def range_request(prefix: str, *, revision: int, after: str, limit: int) -> pb.RangeRequest:
    """Return the request for keys in their order, which is Etcd's default."""
    begin, end = prefix_bounds(prefix, after)
    return pb.RangeRequest(key=begin, range_end=end, revision=revision, limit=limit)


def range_result(response: pb.RangeResponse) -> RangeResult:
    """Return the keys of a response."""
    return RangeResult(
        header(response.header), tuple(map(key_value, response.kvs)), more=response.more
    )


def transaction_request(
    compares: Sequence[Compare], operations: Sequence[Operation], otherwise: Sequence[Operation]
) -> pb.TxnRequest:
    """Return the request of a transaction."""
    return pb.TxnRequest(
        compare=map(_compare, compares),
        success=map(_operation, operations),
        failure=map(_operation, otherwise),
    )


def transaction_result(
    response: pb.TxnResponse, operations: Sequence[Operation], otherwise: Sequence[Operation]
) -> TransactionResult:
    """Return the outcome of a transaction."""
    chosen = operations if response.succeeded else otherwise
    found = (
        each.response_range.kvs
        for each, operation in zip(response.responses, chosen, strict=True)
        if isinstance(operation, Get)
    )
    return TransactionResult(
        header(response.header),
        response.succeeded,
        tuple(key_value(kvs[0]) if kvs else None for kvs in found),
    )


def watch_request(prefix: str, start_revision: int) -> pb.WatchRequest:
    """Return the request that begins a watch."""
    begin, end = prefix_bounds(prefix)
    return pb.WatchRequest(
        create_request=pb.WatchCreateRequest(
            key=begin,
            range_end=end,
            start_revision=start_revision,
            progress_notify=True,
            fragment=True,
        )
    )


def header(message: pb.ResponseHeader) -> StoreHeader:
    """Return the origin of a response."""
    return StoreHeader(message.cluster_id, message.member_id, message.revision, message.raft_term)


def key_value(message: pb.KeyValue) -> KeyValue:
    """Return a key with its value."""
    return KeyValue(
        key_text(message.key),
        message.value,
        message.create_revision,
        message.mod_revision,
        message.version,
        message.lease,
    )


def events(messages: Iterable[pb.Event]) -> tuple[Event, ...]:
    """Return the events of a watch."""
    return tuple(
        Deleted(key_text(each.kv.key), each.kv.mod_revision)
        if each.type == pb.Event.DELETE
        else key_value(each.kv)
        for each in messages
    )


def _compare(compare: Compare) -> pb.Compare:
    message = pb.Compare(target=_TARGETS[compare.target], key=key_bytes(compare.key))
    match compare.target:
        case Target.VERSION:
            message.version = compare.value
        case Target.CREATE_REVISION:
            message.create_revision = compare.value
        case Target.MOD_REVISION:
            message.mod_revision = compare.value
        case Target.LEASE:
            message.lease = compare.value
    return message


def _operation(operation: Operation) -> pb.RequestOp:
    key = key_bytes(operation.key)
    match operation:
        case Get():
            return pb.RequestOp(request_range=pb.RangeRequest(key=key))
        case Put():
            put = pb.PutRequest(
                key=key,
                value=operation.value,
                lease=0 if operation.ignore_lease else operation.lease,
                ignore_lease=operation.ignore_lease,
            )
            return pb.RequestOp(request_put=put)
        case Delete():
            return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key))
