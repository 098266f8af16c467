"""Handlers of the Shard service, which users' servicers can wrap.

Imports `consumer.shards`, `consumer.api`, and outside of consumers `serving`, `client` and
`protocol`.
"""

from __future__ import annotations

from gazette_aio.consumer.handlers.changes import shard_apply as shard_apply
from gazette_aio.consumer.handlers.changes import shard_unassign as shard_unassign
from gazette_aio.consumer.handlers.peers import Peers as Peers
from gazette_aio.consumer.handlers.reads import shard_get_hints as shard_get_hints
from gazette_aio.consumer.handlers.reads import shard_list as shard_list
from gazette_aio.consumer.handlers.reads import shard_stat as shard_stat
from gazette_aio.consumer.handlers.service import ShardAPI as ShardAPI
from gazette_aio.consumer.handlers.service import shard_service as shard_service
