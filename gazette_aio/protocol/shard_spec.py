"""Shard specs: algebra, replication, keys of hints, and labels for selectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gazette_aio.protocol._generated.consumer_pb2 import ReplicaStatus, ShardSpec
from gazette_aio.protocol.labels import with_id_label
from gazette_aio.protocol.spaces.algebra import SpecAlgebra

if TYPE_CHECKING:
    from gazette_aio.protocol._generated.broker_pb2 import LabelSet

_ALGEBRA: Final = SpecAlgebra[ShardSpec](
    "sources",
    "recovery_log_prefix",
    "hint_prefix",
    "hint_backups",
    "max_txn_duration",
    "min_txn_duration",
    "disable",
    "hot_standbys",
    "disable_wait_for_ack",
    "ring_buffer_size",
    "read_channel_size",
)


def desired_replication(spec: ShardSpec, max_hot_standbys: int | None = None) -> int:
    """Return the number of members to assign a shard to, its primary included.

    Args:
        spec: Spec of the shard.
        max_hot_standbys: Limit of the standbys of all shards, if there is one.
    """
    if spec.disable:
        return 0
    standbys = spec.hot_standbys
    return 1 + (standbys if max_hot_standbys is None else min(standbys, max_hot_standbys))


def recovery_log(spec: ShardSpec) -> str:
    """Return the journal of the shard's recovery log, or an empty string if it has none."""
    return f"{spec.recovery_log_prefix}/{spec.id}" if spec.recovery_log_prefix else ""


def hint_primary_key(spec: ShardSpec) -> str:
    """Return the Etcd key of the hints which the shard's primary records."""
    return f"{spec.hint_prefix}/{spec.id}.primary"


def hint_backup_keys(spec: ShardSpec) -> list[str]:
    """Return the Etcd keys of the hints of past recoveries, the newest first."""
    return [f"{spec.hint_prefix}/{spec.id}.backup.{index}" for index in range(spec.hint_backups)]


def label_set_ext(spec: ShardSpec) -> LabelSet:
    """Return the labels of a shard and its derived label `id`, for selectors to match."""
    return with_id_label(spec.id, spec.labels)


def reduce_status(into: ReplicaStatus, other: ReplicaStatus) -> None:
    """Raise the code of `into` to that of `other` if it's less, and add its errors."""
    into.code = max(into.code, other.code)
    into.errors.extend(other.errors)


def union_shard_specs(lhs: ShardSpec, rhs: ShardSpec) -> ShardSpec:
    """Return `lhs` with its unset fields taken from `rhs`; the ID stays."""
    return _ALGEBRA.union(lhs, rhs)


def intersect_shard_specs(lhs: ShardSpec, rhs: ShardSpec) -> ShardSpec:
    """Return the fields which are equal in both, with the ID of `lhs`."""
    return _ALGEBRA.intersect(lhs, rhs)


def subtract_shard_specs(lhs: ShardSpec, rhs: ShardSpec) -> ShardSpec:
    """Return the fields of `lhs` which differ from `rhs`; the ID stays."""
    return _ALGEBRA.subtract(lhs, rhs)
