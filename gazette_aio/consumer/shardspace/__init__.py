"""Shard spaces: sets of shard specs, and their YAML.

Imports `protocol.spaces` and shard specs.
"""

from __future__ import annotations

from gazette_aio.consumer.shardspace.space import Set, Shard
from gazette_aio.consumer.shardspace.yaml import dump_shard_space, load_shard_space

__all__ = ["Set", "Shard", "dump_shard_space", "load_shard_space"]
