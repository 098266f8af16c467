"""Messages of consumer applications and their shards, and the functions of shard specs."""

from __future__ import annotations

from gazette_aio.protocol._generated.consumer_pb2 import (
    ApplyRequest as ApplyRequest,
    ApplyResponse as ApplyResponse,
    Checkpoint as Checkpoint,
    ConsumerSpec as ConsumerSpec,
    GetHintsRequest as GetHintsRequest,
    GetHintsResponse as GetHintsResponse,
    ListRequest as ListRequest,
    ListResponse as ListResponse,
    ReplicaStatus as ReplicaStatus,
    ShardSpec as ShardSpec,
    StatRequest as StatRequest,
    StatResponse as StatResponse,
    Status as Status,
    UnassignRequest as UnassignRequest,
    UnassignResponse as UnassignResponse,
)
from gazette_aio.protocol.shard_spec import (
    desired_replication as desired_replication,
    hint_backup_keys as hint_backup_keys,
    hint_primary_key as hint_primary_key,
    intersect_shard_specs as intersect_shard_specs,
    label_set_ext as label_set_ext,
    recovery_log as recovery_log,
    reduce_status as reduce_status,
    subtract_shard_specs as subtract_shard_specs,
    union_shard_specs as union_shard_specs,
)
