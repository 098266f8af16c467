"""Handlers of the Shard service, which users' servicers can wrap.

Imports `consumer.shards`, `consumer.api`, and outside of consumers `serving`, `client` and
`protocol`.
"""

from __future__ import annotations

from gazette_aio.consumer.handlers.apply import shard_apply
from gazette_aio.consumer.handlers.delegates import ShardAPI
from gazette_aio.consumer.handlers.hints import shard_get_hints
from gazette_aio.consumer.handlers.listing import shard_list
from gazette_aio.consumer.handlers.peers import Peers
from gazette_aio.consumer.handlers.service import shard_service
from gazette_aio.consumer.handlers.stat import shard_stat
from gazette_aio.consumer.handlers.unassign import shard_unassign

__all__ = [
    "Peers",
    "ShardAPI",
    "shard_apply",
    "shard_get_hints",
    "shard_list",
    "shard_service",
    "shard_stat",
    "shard_unassign",
]
