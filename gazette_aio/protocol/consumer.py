"""Messages of consumer applications and their shards."""

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
]
