"""Shard service: its client and the functions that call it.

Imports `client`, `message.framing` and `protocol`.
"""

from __future__ import annotations

from gazette_aio.consumer.api.calls import (
    apply_shards,
    fetch_hints,
    list_shards,
    pick_first_hints,
    stat_shard,
    unassign_shards,
)
from gazette_aio.consumer.api.client import ShardClient, ShardClientOptions, connect_shards
from gazette_aio.consumer.api.references import verify_referenced_journals

__all__ = [
    "ShardClient",
    "ShardClientOptions",
    "apply_shards",
    "connect_shards",
    "fetch_hints",
    "list_shards",
    "pick_first_hints",
    "stat_shard",
    "unassign_shards",
    "verify_referenced_journals",
]
