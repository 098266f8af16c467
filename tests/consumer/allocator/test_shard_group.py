"""Meaning of the keys of a group of consumers."""

from __future__ import annotations

import pytest

from gazette_aio.consumer.allocator.model import Assignment, MemberID, shard_is_consistent
from gazette_aio.consumer.allocator.shard_group import group_decoder, new_key_space
from gazette_aio.consumer.keyspace.embedded import EmbeddedStore
from gazette_aio.consumer.keyspace.keys import GroupKeys
from gazette_aio.consumer.keyspace.operations import KeyValue, Put
from gazette_aio.protocol.consumer import ConsumerSpec, ReplicaStatus, ShardSpec
from gazette_aio.protocol.errors import ValidationError

KEYS = GroupKeys("/root")
RAW = KeyValue(KEYS.assignment("a", "z", "m", 0), b"", 1, 1, 1)


def consumer(zone="zone", suffix="suffix", **fields):
    spec = ConsumerSpec(**{"shard_limit": 3, **fields})
    spec.process_spec.id.zone, spec.process_spec.id.suffix = zone, suffix
    spec.process_spec.endpoint = "http://host:1"
    return spec


def shard(shard_id="a/shard", **fields):
    spec = ShardSpec(id=shard_id, **fields)
    spec.sources.add(journal="a/journal")
    spec.max_txn_duration.seconds = 1
    return spec


def decoded(key, message):
    value = message if isinstance(message, bytes) else message.SerializeToString()
    return group_decoder(KEYS)(KeyValue(key, value, 4, 5, 2, 6))


def test_members():
    member = decoded(KEYS.member("zone", "suffix"), consumer(exiting=True))
    assert (member.id, member.limit, member.exiting) == (MemberID("zone", "suffix"), 3, True)
    assert (member.raw.create_revision, member.raw.mod_revision, member.raw.lease) == (4, 5, 6)
    assert member.spec == consumer(exiting=True)


@pytest.mark.parametrize(
    ("fields", "replication"),
    [({}, 1), ({"hot_standbys": 2}, 3), ({"disable": True}, 0)],
)
def test_shards(fields, replication):
    item = decoded(KEYS.item("a/shard"), shard(**fields))
    assert (item.id, item.replication, item.spec) == ("a/shard", replication, shard(**fields))


def test_numbers_of_a_spec_by_others_are_clamped():
    fields = {
        "hint_backups": 2**31 - 1,
        "hot_standbys": 2**32 - 1,
        "ring_buffer_size": 2**32 - 1,
        "read_channel_size": 2**32 - 1,
    }
    item = decoded(KEYS.item("a/shard"), shard(**fields))
    clamped = dict(zip(fields, (127, 127, 1 << 24, 1 << 24), strict=True))
    assert (item.replication, item.spec) == (128, shard(**clamped))
    assert decoded(KEYS.item("a/shard"), shard(**clamped)).spec == shard(**clamped)


def test_assignments():
    key = KEYS.assignment("a/shard", "zone", "suffix", 2)
    assignment = decoded(key, ReplicaStatus(code=ReplicaStatus.STANDBY))
    assert (assignment.item, assignment.slot, assignment.raw.lease) == ("a/shard", 2, 6)
    assert assignment.status.code == ReplicaStatus.STANDBY
    assert decoded(key, b"").status == ReplicaStatus()


ASSIGNMENT_KEY = r"expected \(item-id, member-zone, member-suffix, slot\)"


@pytest.mark.parametrize(
    ("key", "message", "text"),
    [
        (KEYS.member("other", "suffix"), consumer(), "Zone doesn't match Member Zone"),
        (KEYS.member("zone", "other"), consumer(), "Suffix doesn't match Member Suffix"),
        (KEYS.item("b/shard"), shard(), "ShardSpec ID doesn't match Item ID"),
        (KEYS.item("a/shard"), b"\xff", "value isn't a ShardSpec"),
        (KEYS.item("a/shard"), b"", "ID|id|length"),
        (KEYS.assignment("a", "b", "member", 0), ReplicaStatus(code=ReplicaStatus.FAILED), "rror"),
        (KEYS.assignment("a", "b", "c", 0), ReplicaStatus(), "Suffix: invalid length"),
        ("/root/other", b"", "unexpected key prefix"),
        ("/root/other/a", b"", "unexpected key prefix"),
        ("/root-2/items/a", b"", "unexpected key prefix"),
        ("/root/members/zone", b"", r"expected \(zone, suffix\) in member key"),
        ("/root/members/a#b#c", b"", r"expected \(zone, suffix\) in member key"),
        ("/root/items/a#b", b"", r"expected \(id\) in item key"),
        ("/root/assign/a#b#c", b"", ASSIGNMENT_KEY),
        ("/root/assign/a#b#c#x", b"", ASSIGNMENT_KEY),
        ("/root/assign/a#b#c#-1", b"", ASSIGNMENT_KEY),
        ("/root/assign/a#b#c#²", b"", ASSIGNMENT_KEY),
        ("/root/assign/a#b#c#1000000000", b"", ASSIGNMENT_KEY),
        pytest.param(
            "/root/assign/a#b#c#" + "9" * 5000,
            b"",
            ASSIGNMENT_KEY,
            id="more digits than the interpreter converts",
        ),
        ("/root/items/a b", b"", "an invalid character"),
        ("/root/items/\udcff", b"", "an invalid character"),
    ],
)
def test_what_is_not_of_the_group(key, message, text):
    with pytest.raises(ValidationError, match=text):
        decoded(key, message)


def status(code, slot=0):
    return Assignment(RAW, ReplicaStatus(code=code), "a", MemberID("z", "m"), slot)


@pytest.mark.parametrize(
    ("name", "ready"),
    [("IDLE", False), ("BACKFILL", False), ("STANDBY", True), ("PRIMARY", True), ("FAILED", True)],
)
def test_consistency(name, ready):
    own = status(ReplicaStatus.Code.Value(name))
    assert shard_is_consistent(own, [own]) == ready


def test_a_failed_replica_waits_for_its_primary():
    failed = status(ReplicaStatus.FAILED, 1)
    assert not shard_is_consistent(failed, [status(ReplicaStatus.PRIMARY), failed])
    assert shard_is_consistent(failed, [status(ReplicaStatus.FAILED), failed])


async def test_a_key_space():
    async with EmbeddedStore() as store:
        for key, message in [
            (KEYS.item("a/shard"), shard()),
            (KEYS.member("zone", "suffix"), consumer()),
            (KEYS.item("b/shard"), shard()),
        ]:
            await store.transact((), [Put(key, message.SerializeToString())])
        space = new_key_space(store, KEYS)
        await space.load()
        assert set(space.entries) == {KEYS.item("a/shard"), KEYS.member("zone", "suffix")}
