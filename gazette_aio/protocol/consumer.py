"""Messages of consumer applications and their shards, and the functions of shard specs."""

from __future__ import annotations

from gazette_aio.protocol._generated.consumer_pb2 import (
    ApplyRequest,
    ApplyResponse,
    Checkpoint,
    ConsumerSpec,
    GetHintsRequest,
    GetHintsResponse,
    ListRequest,
    ListResponse,
    ReplicaStatus,
    ShardSpec,
    StatRequest,
    StatResponse,
    Status,
    UnassignRequest,
    UnassignResponse,
)
from gazette_aio.protocol.shard_spec import (
    desired_replication,
    hint_backup_keys,
    hint_primary_key,
    intersect_shard_specs,
    label_set_ext,
    recovery_log,
    reduce_status,
    subtract_shard_specs,
    union_shard_specs,
)

__all__ = [
    "ApplyRequest",
    "ApplyResponse",
    "Checkpoint",
    "ConsumerSpec",
    "GetHintsRequest",
    "GetHintsResponse",
    "ListRequest",
    "ListResponse",
    "ReplicaStatus",
    "ShardSpec",
    "StatRequest",
    "StatResponse",
    "Status",
    "UnassignRequest",
    "UnassignResponse",
    "desired_replication",
    "hint_backup_keys",
    "hint_primary_key",
    "intersect_shard_specs",
    "label_set_ext",
    "recovery_log",
    "reduce_status",
    "subtract_shard_specs",
    "union_shard_specs",
]
