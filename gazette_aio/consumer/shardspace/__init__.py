"""Shard spaces: sets of shard specs, and their YAML.

Imports `protocol.spaces` and shard specs.
"""

from __future__ import annotations

from gazette_aio.consumer.shardspace.space import Set as Set
from gazette_aio.consumer.shardspace.space import Shard as Shard
from gazette_aio.consumer.shardspace.yaml import dump_shard_space as dump_shard_space
from gazette_aio.consumer.shardspace.yaml import load_shard_space as load_shard_space
