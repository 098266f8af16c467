"""Shard service: its client and the functions that call it.

Imports `client`, `message.framing` and `protocol`.
"""

from __future__ import annotations

from gazette_aio.consumer.api.calls import apply_shards as apply_shards
from gazette_aio.consumer.api.calls import fetch_hints as fetch_hints
from gazette_aio.consumer.api.calls import list_shards as list_shards
from gazette_aio.consumer.api.calls import pick_first_hints as pick_first_hints
from gazette_aio.consumer.api.calls import stat_shard as stat_shard
from gazette_aio.consumer.api.calls import unassign_shards as unassign_shards
from gazette_aio.consumer.api.client import ShardClient as ShardClient
from gazette_aio.consumer.api.client import ShardClientOptions as ShardClientOptions
from gazette_aio.consumer.api.client import connect_shards as connect_shards
from gazette_aio.consumer.api.references import (
    verify_referenced_journals as verify_referenced_journals,
)
