"""Shard specs and checkpoints: bytes of other writers, what follows from specs, and algebra."""

from __future__ import annotations

from typing import Any

import pytest

import gazette_aio.protocol as pb
from gazette_aio.protocol import consumer as pc

SECOND, MILLISECOND = 10**9, 10**6

FULL = pc.ShardSpec(
    id="shard-A",
    sources=[pc.ShardSpec.Source(journal="a/journal", min_offset=5)],
    recovery_log_prefix="recovery/logs",
    hint_prefix="/hints",
    hint_backups=2,
    max_txn_duration=pb.duration_proto(1500 * MILLISECOND),
    min_txn_duration=pb.duration_proto(0),
    hot_standbys=1,
    labels=pb.label_set("foo", "bar"),
    disable_wait_for_ack=True,
    ring_buffer_size=16,
    read_channel_size=32,
)
OTHER = pc.ShardSpec(
    id="shard-A",
    sources=[pc.ShardSpec.Source(journal="other/journal")],
    recovery_log_prefix="other/logs",
    hint_prefix="/other",
    hint_backups=5,
    max_txn_duration=pb.duration_proto(SECOND),
    min_txn_duration=pb.duration_proto(MILLISECOND),
    disable=True,
    hot_standbys=3,
    labels=pb.label_set("foo", "baz"),
    disable_wait_for_ack=True,
    ring_buffer_size=1,
    read_channel_size=2,
)
EMPTY = pc.ShardSpec(id="shard-A")


def status(code: pc.ReplicaStatus.Code.ValueType, *errors: str) -> pc.ReplicaStatus:
    return pc.ReplicaStatus(code=code, errors=errors)


@pytest.mark.parametrize(
    ("encoded", "message"),
    [
        (
            (
                "0a0773686172642d41120d0a09612f6a6f75726e616c18051a0d7265636f766572792f6c6f677322062f68"
                "696e74732802320808011080cab5ee013a004801520c0a0a0a03666f6f1203626172580160106820"
            ),
            FULL,
        ),
        (
            "0a2a0a110a056c6f63616c1208636f6e73756d65721215687474703a2f2f6c6f63616c686f73743a383038301020",
            pc.ConsumerSpec(
                process_spec=pb.ProcessSpec(
                    id=pb.ProcessSpec.ID(zone="local", suffix="consumer"),
                    endpoint="http://localhost:8080",
                ),
                shard_limit=32,
            ),
        ),
        ("", status(pc.ReplicaStatus.IDLE)),
        ("0864", status(pc.ReplicaStatus.BACKFILL)),
        ("08c801", status(pc.ReplicaStatus.STANDBY)),
        ("08ac02", status(pc.ReplicaStatus.PRIMARY)),
        ("0890031203657272", status(pc.ReplicaStatus.FAILED, "err")),
    ],
)
def test_bytes_of_other_writers(encoded: str, message: Any):
    assert type(message).FromString(bytes.fromhex(encoded)) == message


def test_producers_once_were_a_map():
    encoded = bytes.fromhex(
        "0a210a03626172121a08de0112150a06aabbccddeeff120b09150300000000000010650a210a03666f6f121a08"
        "6f12160a06010203040506120c09c801000000000000109506120d0a0362617a1206696e74656e7412140a0462"
        "696e67120c6f746865722d696e74656e74"
    )
    entry, state = pc.Checkpoint.Source.ProducerEntry, pc.Checkpoint.ProducerState
    foo = entry(id=bytes.fromhex("010203040506"), state=state(last_ack=456, begin=789))
    bar = entry(id=bytes.fromhex("aabbccddeeff"), state=state(last_ack=789, begin=101))
    assert pc.Checkpoint.FromString(encoded) == pc.Checkpoint(
        sources={
            "foo": pc.Checkpoint.Source(read_through=111, producers=[foo]),
            "bar": pc.Checkpoint.Source(read_through=222, producers=[bar]),
        },
        ack_intents={"baz": b"intent", "bing": b"other-intent"},
    )


def test_replication():
    spec = pc.ShardSpec(hot_standbys=4)
    assert pc.desired_replication(spec) == 5
    assert pc.desired_replication(spec, 2) == 3
    assert pc.desired_replication(pc.ShardSpec(hot_standbys=4, disable=True)) == 0
    assert pc.desired_replication(pc.ShardSpec(), 2) == 1


def test_statuses_of_replicas_are_reduced():
    reduced = status(pc.ReplicaStatus.IDLE)
    for other in (
        status(pc.ReplicaStatus.STANDBY),
        status(pc.ReplicaStatus.BACKFILL),
    ):
        pc.reduce_status(reduced, other)
        assert reduced == status(pc.ReplicaStatus.STANDBY)
    for error in ("err-1", "err-2"):
        pc.reduce_status(reduced, status(pc.ReplicaStatus.FAILED, error))
    assert reduced == status(pc.ReplicaStatus.FAILED, "err-1", "err-2")


def test_algebra():
    full = pc.ShardSpec.FromString(FULL.SerializeToString())
    full.min_txn_duration.CopyFrom(pb.duration_proto(2 * MILLISECOND))
    full.disable = True
    for spec in (full, OTHER):
        assert pc.union_shard_specs(EMPTY, spec) == spec == pc.union_shard_specs(spec, EMPTY)
        assert pc.intersect_shard_specs(spec, spec) == spec
        assert pc.intersect_shard_specs(spec, EMPTY) == EMPTY
        assert pc.subtract_shard_specs(spec, spec) == EMPTY
        assert pc.subtract_shard_specs(spec, EMPTY) == spec
        assert pc.subtract_shard_specs(EMPTY, spec) == EMPTY
    assert pc.union_shard_specs(OTHER, full) == OTHER
    assert pc.union_shard_specs(full, OTHER) == full
    # Both have these flags, and nothing else in common.
    common = pc.ShardSpec(id="shard-A", disable=True, disable_wait_for_ack=True)
    assert pc.intersect_shard_specs(full, OTHER) == common
