"""Validation against golden data."""

from __future__ import annotations

import base64
import collections
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor

import gazette_aio.protocol as pb
from gazette_aio.protocol.endpoint import parse_endpoint
from gazette_aio.protocol.journal import (
    split_meta,
    strip_meta,
    validate_path_component,
    validate_token,
)
from gazette_aio.protocol.journal_spec import desired_replication, may_read, may_write
from gazette_aio.protocol.validation import specs as spec_validation
from gazette_aio.protocol.validation.specs import route_equivalent, validate_offsets
from tests import golden, known_differences
from tests.protocol.support import agrees, error_of, parse, pruned, spec, without_empty

FAILED = pb.consumer.ReplicaStatus.FAILED


def load(section: str) -> list[dict[str, Any]]:
    cases = golden.load("validation.json")[section]
    assert cases
    return cases


def scalars(type_name: str) -> list[dict[str, Any]]:
    cases = [case for case in load("scalars") if case["type"] == type_name]
    assert cases
    return cases


def test_messages():
    seen: collections.Counter[str] = collections.Counter()
    different: set[str] = set()
    for case in load("messages"):
        seen[case["type"]] += 1
        error = error_of(pb.validate, parse(case))
        template = case["json"].get("path_postfix_template")
        if template in known_differences.VALIDATED_TEMPLATES and error is None:
            assert case["error"].startswith("PathPostfixTemplate: ")
            different.add(template)
            continue
        assert agrees(error, case), (case["type"], case["json"], error, case["error"])
    assert different == set(known_differences.VALIDATED_TEMPLATES)
    assert len(seen) == 48
    assert seen.total() == len(load("messages"))


def test_valid_messages_are_valid_in_structure_too():
    for case in load("messages"):
        if case["error"] is None:
            pb.validate(parse(case), strict=False)


def test_what_is_wrong_in_structure_is_wrong_in_full():
    for case in load("messages"):
        if error_of(pb.validate, parse(case), strict=False) is not None:
            assert case["error"] is not None, case


def test_journals():
    for case in scalars("Journal"):
        name = case["value"]
        assert error_of(pb.validate_journal, name) == case["error"], name
        assert list(split_meta(name)) == case["split_meta"]
        assert strip_meta(name) == case["strip_meta"]
        journal = pb.Journal(name)
        assert error_of(journal.validate) == case["error"]
        assert list(journal.split_meta()) == case["split_meta"]
        assert journal.strip_meta() == case["strip_meta"]


def test_shard_ids():
    for case in scalars("ShardID"):
        error = error_of(pb.validate, pb.consumer.GetHintsRequest(shard=case["value"]))
        assert error == (case["error"] and f"Shard: {case['error']}"), case


def test_fragment_stores():
    for case in scalars("FragmentStore"):
        error = error_of(pb.parse_fragment_store, case["value"])
        if "panics" in case:
            assert error is not None, case
        elif error is not None:
            assert agrees(error, case), (case, error)
        else:
            assert case["error"] is None, case
            url = pb.parse_fragment_store(case["value"])
            parts = {"scheme": url.scheme, "host": url.host, "path": url.path, "query": url.query}
            assert parts == case["url"]


def test_endpoints():
    for case in scalars("Endpoint"):
        error = error_of(parse_endpoint, case["value"])
        assert agrees(error, case), (case, error)
        if error is None:
            assert parse_endpoint(case["value"]).grpc_target == case["grpc_addr"]


def test_offsets():
    for case in scalars("Offsets"):
        assert error_of(validate_offsets, case["value"]) == case["error"]


def test_journal_flags():
    for case in scalars("JournalSpec.Flag"):
        flags = case["value"]
        assert may_read(flags) == case["may_read"]
        assert may_write(flags) == case["may_write"]
        if flags >= 0:
            broken = valid_spec(flags=flags)
            prefix = "Flags: " if case["error"] else ""
            assert error_of(pb.validate, broken) == (case["error"] and prefix + case["error"])


def valid_spec(**fields: Any) -> pb.JournalSpec:
    return pb.JournalSpec(
        name="a/journal",
        replication=1,
        fragment=pb.JournalSpec.Fragment(
            length=1 << 20,
            compression_codec=pb.CompressionCodec.GZIP,
            refresh_interval=pb.duration_proto(60 * 10**9),
        ),
        **fields,
    )


@pytest.mark.parametrize(
    ("type_name", "message", "context"),
    [
        (
            "protocol.Status",
            lambda number: pb.ReadResponse(status=number),
            "Status: ",
        ),
        (
            "protocol.CompressionCodec",
            lambda number: pb.Fragment(journal="a/journal", compression_codec=number),
            "CompressionCodec: ",
        ),
        (
            "protocol.JournalSpec.Suspend.Level",
            lambda number: pb.JournalSpec.Suspend(level=number),
            "Level: ",
        ),
        (
            "protocol.AppendRequest.Suspend",
            lambda number: pb.AppendRequest(journal="a/journal", suspend=number),
            "Suspend: ",
        ),
        (
            "consumer.Status",
            lambda number: pb.consumer.GetHintsResponse(status=number),
            "Status: ",
        ),
        (
            "consumer.ReplicaStatus.Code",
            lambda number: pb.consumer.ReplicaStatus(
                code=number, errors=["text"] if number == FAILED else []
            ),
            "Code: ",
        ),
    ],
)
def test_enums(type_name: str, message: Any, context: str):
    for case in scalars(type_name):
        error = error_of(pb.validate, message(case["value"]))
        assert error == (case["error"] and context + case["error"]), case


def test_tokens():
    for case in load("tokens"):
        bounds = {"min_length": case["min"], "max_length": case["max"]}
        if case["fn"] == "token":
            error = error_of(validate_token, case["value"], symbols=case["symbols"], **bounds)
        else:
            error = error_of(validate_path_component, case["value"], **bounds)
        assert error == case["error"], case


def test_equivalence_of_routes():
    for case in load("route_equivalent"):
        lhs, rhs = (json_format.ParseDict(case[side], pb.Route()) for side in "ab")
        assert route_equivalent(lhs, rhs) == case["equivalent"]


def test_order_of_process_ids():
    for case in load("process_id_less"):
        lhs, rhs = (
            pb.ProcessSpec.ID(zone=zone, suffix=suffix) for zone, suffix in (case["a"], case["b"])
        )
        key = spec_validation.process_id_key
        assert (key(lhs) < key(rhs)) == case["less"]


def test_what_follows_from_specs():
    for case in load("journal_spec_derived"):
        built = spec(case["json"])
        assert desired_replication(built) == case["desired_replication"]
        assert may_read(built.flags) == case["may_read"]
        assert may_write(built.flags) == case["may_write"]


def shard(json: dict[str, Any]) -> pb.consumer.ShardSpec:
    return json_format.ParseDict(json, pb.consumer.ShardSpec())


def test_what_follows_from_shard_specs():
    for case in load("shard_spec_derived"):
        built = shard(case["json"])
        desired = case["desired_replication"]
        assert pb.consumer.desired_replication(built) == desired
        assert pb.consumer.desired_replication(built, 1) == min(desired, 2)
        assert pb.consumer.recovery_log(built) == case["recovery_log"]
        assert pb.consumer.hint_primary_key(built) == case["hint_primary_key"]
        assert pb.consumer.hint_backup_keys(built) == (case["hint_backup_keys"] or [])


def test_labels_which_selectors_of_shards_match():
    built = pb.consumer.ShardSpec(id="a-shard", labels=pb.label_set("aa", "1", "zz", "2"))
    extended = pb.consumer.label_set_ext(built)
    assert extended == pb.label_set("aa", "1", "id", "a-shard", "zz", "2")
    for selector, matches in {
        "id=a-shard": True,
        "id=other": False,
        "aa=1,id=a-shard": True,
    }.items():
        assert pb.selector_matches(pb.parse_label_selector(selector), extended) is matches


def test_algebra_of_shard_specs():
    for case in golden.load("specs_yaml.json")["shard_spec_ops"]:
        lhs, rhs = shard(case["a"]), shard(case["b"])
        for name in ("union", "intersect", "subtract"):
            operation = getattr(pb.consumer, f"{name}_shard_specs")
            assert without_empty(operation(lhs, rhs)) == without_empty(shard(case[name])), name
        assert (lhs, rhs) == (shard(case["a"]), shard(case["b"]))


def test_reduced_statuses():
    for case in load("replica_status_reduce"):
        into, other, result = (
            json_format.ParseDict(case[name], pb.consumer.ReplicaStatus())
            for name in ("a", "b", "result")
        )
        pb.consumer.reduce_status(into, other)
        assert into == result


def has_maps(descriptor: Descriptor) -> bool:
    nested = [field.message_type for field in descriptor.fields if field.message_type]
    return any(type_.GetOptions().map_entry or has_maps(type_) for type_ in nested)


def test_protobuf_encoding():
    cases = golden.load("protobuf.json")["messages"]
    assert len(cases) == 300
    for case in cases:
        encoded = base64.b64decode(case["proto"])
        message = parse(case)
        assert type(message).FromString(message.SerializeToString()) == message
        assert len(message.SerializeToString()) == len(encoded)
        if not has_maps(message.DESCRIPTOR):
            # The order of map entries is free.
            assert message.SerializeToString() == encoded, case
        parsed = json_format.ParseDict(case["json"], type(message)())
        assert without_empty(parsed) == without_empty(message) == pruned(case["json"])


def test_protobuf_json_with_defaults():
    for case in golden.load("protobuf.json")["messages"]:
        shown = json_format.MessageToDict(
            parse(case),
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
        )
        for name in known_differences.PROTOBUF_FIELDS.get(case["type"], ()):
            del shown[name]
        assert pruned(shown) == pruned(case["json_original_names_with_defaults"]), case
