"""The algebra of specs which journal spaces and shard spaces share."""

from __future__ import annotations

import gazette_aio.protocol as pb
from gazette_aio.protocol.consumer import ShardSpec
from gazette_aio.protocol.spaces.algebra import SpecAlgebra

SHARDS = SpecAlgebra[ShardSpec]("sources", "hot_standbys", "max_txn_duration", "disable")
MINUTE = pb.duration_proto(60 * 10**9)


def shard(name: str, **fields: object) -> ShardSpec:
    return ShardSpec(id=name, **fields)


def test_the_algebra_covers_any_spec():
    source = ShardSpec.Source(journal="a/b", min_offset=5)
    lhs = shard("one", sources=[source], hot_standbys=2, max_txn_duration=MINUTE)
    rhs = shard("two", sources=[source], hot_standbys=3, disable=True)
    rhs.labels.CopyFrom(pb.label_set("tag", "x"))

    assert SHARDS.intersect(lhs, rhs) == shard("one", sources=[source])
    assert SHARDS.subtract(lhs, rhs) == shard("one", hot_standbys=2, max_txn_duration=MINUTE)
    union = shard("one", sources=[source], hot_standbys=2, max_txn_duration=MINUTE, disable=True)
    union.labels.CopyFrom(rhs.labels)
    assert SHARDS.union(lhs, rhs) == union


def test_an_unset_duration_is_the_same_as_zero():
    zero = shard("one", max_txn_duration=pb.duration_proto(0))
    assert SHARDS.subtract(zero, shard("two")) == shard("one")
    assert SHARDS.union(zero, shard("two", max_txn_duration=MINUTE)).max_txn_duration == MINUTE
