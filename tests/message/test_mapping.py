"""Mappings of messages to journals."""

from __future__ import annotations

import hashlib

import pytest

import gazette_aio.protocol as pb
from gazette_aio.message import (
    fnv1a32,
    framing_by_content_type,
    modulo_mapping,
    random_mapping,
    register_framing,
    rendezvous_mapping,
)
from gazette_aio.message.framing import NDJSONFraming
from gazette_aio.protocol.errors import EmptyListResponseError, UnrecognizedContentTypeError
from tests import golden

FIXTURES = [
    ("It always", 119, 21),
    ("seems", 54, 179),
    ("impossible", 308, 50),
    ("until", 97, 13),
    ("it is done.", 179, 337),
    ("- Nelson Mandela", 437, 29),
    ("Shall I compare", 84, 110),
    ("thee to", 300, 395),
    ("a summer's day?", 214, 192),
    ("Thou art more", 135, 394),
    ("lovely and more", 118, 344),
    ("temperate - Shakespeare", 228, 75),
]


def listing(parts):
    response = pb.ListResponse()
    for name, content_type in parts:
        spec = response.journals.add().spec
        spec.name = name
        if content_type is not None:
            spec.labels.labels.add(name="content-type", value=content_type)
    return response


def parts(count, content_type="application/x-ndjson"):
    return listing((f"a/topic/part-{i:03}", content_type) for i in range(count))


def outcome(mapping, message):
    try:
        return list(mapping(message))
    except EmptyListResponseError as error:
        return {"error": str(error).partition(": ")[0]}


def test_golden_cases():
    data = golden.load("mapping.json")
    sets = [listing(s["partitions"]) for s in data["partition_sets"]]
    modulo = [modulo_mapping(lambda k: k, lambda s=s: s) for s in sets]
    rendezvous = [rendezvous_mapping(lambda k: k, lambda s=s: s) for s in sets]
    for case in data["cases"]:
        key = bytes.fromhex(case["key"])
        assert fnv1a32(key) == case["fnv1a32"]
        assert outcome(modulo[case["set"]], key) == case["modulo"]
        assert outcome(rendezvous[case["set"]], key) == case["rendezvous"]
    for case in data["random_errors"]:
        assert outcome(random_mapping(lambda s=sets[case["set"]]: s), b"") == {
            "error": case["error"]
        }


def test_golden_framings():
    for case in golden.load("mapping.json")["framing_by_content_type"]:
        if case["error"] is None:
            assert framing_by_content_type(case["content_type"]).content_type == case["framing"]
        else:
            with pytest.raises(UnrecognizedContentTypeError) as raised:
                framing_by_content_type(case["content_type"])
            assert str(raised.value) == case["error"]


def test_registering_replaces():
    class Other(NDJSONFraming):
        content_type = "application/x-test-other"

    first, second = Other(), Other()
    register_framing(first)
    assert framing_by_content_type(Other.content_type) is first
    register_framing(second)
    assert framing_by_content_type(Other.content_type) is second


def test_random_spreads():
    some = parts(100)
    mapping = random_mapping(lambda: some)
    picked = {mapping(None) for _ in range(101)}
    assert len(picked) > 1
    assert {content_type for _, content_type in picked} == {"application/x-ndjson"}


@pytest.mark.parametrize(("key", "modulo", "rendezvous"), FIXTURES)
def test_fixtures(key, modulo, rendezvous):
    def name(count, make):
        some = parts(count)
        return make(lambda m: [m[:2].encode(), m[2:].encode()], lambda: some)(key)[0]

    assert name(443, modulo_mapping) == f"a/topic/part-{modulo:03}"
    assert name(400, rendezvous_mapping) == f"a/topic/part-{rendezvous:03}"
    assert name(500, rendezvous_mapping) == f"a/topic/part-{rendezvous:03}"


@pytest.mark.parametrize("listed", [None, listing([])])
def test_no_partitions(listed):
    def key(_message):
        raise AssertionError("asked for a key")

    for mapping in (
        random_mapping(lambda: listed),
        modulo_mapping(key, lambda: listed),
        rendezvous_mapping(key, lambda: listed),
    ):
        with pytest.raises(EmptyListResponseError) as raised:
            mapping("x")
        assert str(raised.value) == "empty ListResponse: no journal matches the partitions"


def test_one_partition_without_a_label():
    some = listing([("a/b", None)])
    for make in (modulo_mapping, rendezvous_mapping):
        assert make(lambda _: b"key", lambda: some)(None) == ("a/b", "")


@pytest.mark.parametrize("weight", ["gazette", "mix32"])
def test_removing_a_partition_only_moves_its_keys(weight):
    current = [parts(20)]
    mapping = rendezvous_mapping(str.encode, lambda: current[0], weight=weight)
    keys = [f"key {i}" for i in range(500)]
    before = {key: mapping(key)[0] for key in keys}
    same = listing([(j.spec.name, "application/x-ndjson") for j in current[0].journals])
    current[0] = same
    assert {key: mapping(key)[0] for key in keys} == before
    gone = before[keys[0]]
    current[0] = listing([(j.spec.name, "x") for j in same.journals if j.spec.name != gone])
    after = {key: mapping(key)[0] for key in keys}
    assert {k for k in keys if after[k] != before[k]} == {k for k in keys if before[k] == gone}


def test_mixed_weights_choose_the_same_partitions_for_ever():
    # The finalizer of MurmurHash3, computed apart.
    chosen = {name: [] for name in ("few", "many")}
    for name, count in (("few", 3), ("many", 100)):
        some = parts(count)
        mapping = rendezvous_mapping(str.encode, lambda some=some: some, weight="mix32")
        for key, *_ in FIXTURES:
            chosen[name].append(int(mapping(key)[0].removeprefix("a/topic/part-")))
    assert chosen == {
        "few": [1, 2, 2, 0, 2, 0, 1, 2, 0, 1, 0, 1],
        "many": [65, 3, 55, 22, 46, 37, 12, 34, 53, 31, 0, 1],
    }


def test_each_bit_of_mixed_weights_decides():
    # The chosen partitions of 1,000 keys, computed apart: some weights differ in their low bits only.
    some = parts(443)
    mapping = rendezvous_mapping(str.encode, lambda: some, weight="mix32")
    chosen = " ".join(
        mapping(f"key {i}")[0].removeprefix("a/topic/part-") for i in range(600, 1600)
    )
    assert (
        hashlib.sha256(chosen.encode()).hexdigest()
        == "6794cf7fb4b5bc6f4a3eb2b377058a956b72008d854c8c7b25c448715f632bb2"
    )


def test_mixed_weights_are_balanced():
    some = parts(16)
    counts = {}
    mapping = rendezvous_mapping(str.encode, lambda: some, weight="mix32")
    for i in range(3200):
        name = mapping(f"key {i}")[0]
        counts[name] = counts.get(name, 0) + 1
    assert len(counts) == 16
    assert max(counts.values()) < 2 * 200
