"""Sets of shard specs, and their YAML form."""

from __future__ import annotations

import base64
from typing import Any

import pytest

import gazette_aio.protocol as pb
from gazette_aio.consumer.shardspace import Set, Shard, dump_shard_space, load_shard_space
from gazette_aio.protocol.consumer import ApplyRequest, ListResponse, ShardSpec
from tests import golden
from tests.known_differences import SORTED_SPECS
from tests.protocol.support import error_of, without_empty

SECOND, MILLISECOND = 10**9, 10**6

FIXTURE = """\
common:
  recovery_log_prefix: prefix/path
  hint_prefix: /hint/prefix
  hint_backups: 2
  max_txn_duration: 1s
  min_txn_duration: 1ms
  hot_standbys: 1
  labels:
  - name: name-1
    value: val-1
  disable_wait_for_ack: true
shards:
- comment: This is a comment
  delete: true
  id: shard-A
  sources:
  - journal: foo/bar
    min_offset: 123
  labels:
  - name: name-2
    value: val-2
  revision: 123
- id: shard-B
  sources:
  - journal: baz/bing
  disable: true
  labels:
  - name: name-3
    value: val-3
  revision: 456
"""


def load(section: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = golden.load("specs_yaml.json")[section]
    assert cases
    return cases


def listing(shards: list[dict[str, Any]]) -> ListResponse:
    return ListResponse(
        shards=[
            ListResponse.Shard(
                spec=ShardSpec.FromString(base64.b64decode(shard["proto"])),
                mod_revision=shard["mod_revision"],
            )
            for shard in shards
        ]
    )


def test_documents_which_are_applied():
    for case in load("shards_apply"):
        error = error_of(load_shard_space, case["yaml"], source="x.yaml")
        assert (error is None) == ("yaml_error" not in case), (case["note"], error)
        if error is not None:
            assert error.startswith("x.yaml:")
            continue
        space = load_shard_space(case["yaml"])
        request = space.to_apply_request()
        if case["note"] in SORTED_SPECS:
            assert case["request_error"], case["note"]
            assert error_of(pb.validate, request) is None
            continue
        expected = [
            ApplyRequest.Change.FromString(base64.b64decode(change["proto"]))
            for change in case["changes"]
        ]
        assert list(map(without_empty, request.changes)) == list(map(without_empty, expected))
        assert error_of(pb.validate, request) == case["request_error"]
        # The same comes of specs which are pushed down for good, and of those written again.
        assert load_shard_space(dump_shard_space(space)).to_apply_request() == request
        space.push_down()
        assert space.to_apply_request() == request
        space.hoist()
        assert space.to_apply_request() == request


def test_hoisted_listings():
    for case in load("shards_hoist"):
        response = listing(case["shards"])
        space = Set.from_list_response(response)
        assert dump_shard_space(space) == case["yaml"]
        assert response == listing(case["shards"])
        assert dump_shard_space(load_shard_space(case["yaml"])) == case["yaml"]


def test_patches():
    for case in load("shards_patch"):
        space = load_shard_space(case["yaml"])
        for patch in case["patches"]:
            (shard,) = load_shard_space(_as_set(patch["yaml"])).shards
            patched = space.patch(shard)
            assert patched.id == shard.id
            assert patched.patched
        assert dump_shard_space(space) == case["patched_yaml"]
        space.mark_unpatched_for_deletion()
        assert dump_shard_space(space) == case["unpatched_marked_yaml"]


def _as_set(shard: str) -> str:
    first, *rest = shard.splitlines()
    return "\n".join(["shards:", f"- {first}", *(f"  {line}" for line in rest)])


def fixture() -> Set:
    """Return the set of FIXTURE with complete specs."""
    common: dict[str, Any] = {
        "recovery_log_prefix": "prefix/path",
        "hint_prefix": "/hint/prefix",
        "hint_backups": 2,
        "max_txn_duration": pb.duration_proto(SECOND),
        "min_txn_duration": pb.duration_proto(MILLISECOND),
        "hot_standbys": 1,
        "disable_wait_for_ack": True,
    }
    return Set(
        shards=[
            Shard(
                ShardSpec(
                    id="shard-A",
                    sources=[ShardSpec.Source(journal="foo/bar", min_offset=123)],
                    labels=pb.label_set("name-1", "val-1", "name-2", "val-2"),
                    **common,
                ),
                comment="This is a comment",
                delete=True,
                revision=123,
            ),
            Shard(
                ShardSpec(
                    id="shard-B",
                    sources=[ShardSpec.Source(journal="baz/bing")],
                    disable=True,
                    labels=pb.label_set("name-1", "val-1", "name-3", "val-3"),
                    **common,
                ),
                revision=456,
            ),
        ]
    )


def test_hoisting_and_pushing_down_round_trip():
    space = fixture()
    space.hoist()
    assert dump_shard_space(space) == FIXTURE
    assert load_shard_space(FIXTURE) == space
    space.push_down()
    assert space == fixture()


def test_patches_insert_update_and_mark():
    space = fixture()
    inserted = space.patch(Shard(ShardSpec(id="shard-C"), comment="new"))
    assert [shard.id for shard in space.shards] == ["shard-A", "shard-B", "shard-C"]
    assert inserted is space.shards[2]
    space.patch(Shard(ShardSpec(id="shard-A", hot_standbys=5), delete=False))
    updated = space.patch(Shard(ShardSpec(id="shard-A", hint_backups=3), revision=789))
    assert (updated.delete, updated.revision) == (False, 789)
    assert (updated.spec.hot_standbys, updated.spec.hint_backups) == (5, 3)
    assert updated.comment == "This is a comment"
    assert [source.journal for source in updated.spec.sources] == ["foo/bar"]
    space.mark_unpatched_for_deletion()
    assert [shard.delete for shard in space.shards] == [False, True, None]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("extra: 1", "x:1: extra: unknown key"),
        ("common:\n  delete: maybe", 'x:2: common.delete: expected true or false, found "maybe"'),
        (
            "shards:\n- id: a\n  revison: 1",
            "x:3: shards[0].revison: unknown key: did you mean 'revision'?",
        ),
        ("shards: [{sources: [{name: a}]}]", "x:1: shards[0].sources[0].name: unknown key"),
        (
            "common: {ring_buffer_size: -1}",
            "x:1: common.ring_buffer_size: integer doesn't fit 32 bits",
        ),
        (
            "common: {max_txn_duration: 1d}",
            'x:1: common.max_txn_duration: time: unknown unit "d" in duration "1d"',
        ),
        ("shards: {}", "x:1: shards: expected a list, found a mapping"),
    ],
)
def test_errors_name_source_line_and_field(text: str, error: str):
    assert error_of(load_shard_space, text, source="x") == error


def test_delete_may_be_common():
    """Gazette's documents name it, but its tools refuse it."""
    space = load_shard_space(
        "common: {delete: true, hot_standbys: 1}\n"
        "shards: [{id: shard-A, revision: 1}, {id: shard-B, delete: false}, {id: shard-C, delete: ~}]"
    )
    assert [shard.delete for shard in space.shards] == [True, False, True]
    changes = space.to_apply_request().changes
    assert [change.delete for change in changes] == ["shard-A", "", "shard-C"]
    assert load_shard_space(dump_shard_space(space)) == space
    # A shard without `common` is the same as before.
    (shard,) = load_shard_space("common: {delete: ~}\nshards: [{id: shard-A}]").shards
    assert shard.delete is None


def test_spellings():
    space = load_shard_space(
        "common: {id: ignored, max_txn_duration: 5}\n"
        "shards: [{id: a-shard, min_txn_duration: 1m30s, disable: ~, delete: ~}]\n"
    )
    (change,) = space.to_apply_request().changes
    assert change.upsert == ShardSpec(
        id="a-shard",
        max_txn_duration=pb.duration_proto(5),
        min_txn_duration=pb.duration_proto(90 * SECOND),
        labels=pb.LabelSet() if change.upsert.HasField("labels") else None,
    )
    assert dump_shard_space(load_shard_space("")) == "common: {}\nshards: []\n"
    assert dump_shard_space(Set()) == "common: {}\nshards: []\n"
