"""Labels and selectors against golden data."""

from __future__ import annotations

import gazette_aio.protocol as pb
from gazette_aio.protocol import well_known
from gazette_aio.protocol.labels import (
    validate_label_set,
    validate_single_value_labels,
)
from gazette_aio.protocol.selector import (
    compile_selector,
    validate_label_selector,
    with_name_prefixes,
)
from tests import golden
from tests.protocol.support import error_of, labels, listed, listed_selector, selector


def load(section: str) -> list[dict]:
    cases = golden.load("labels.json")[section]
    assert cases
    return cases


def test_mutations():
    for case in load("mutations"):
        built = pb.LabelSet()
        for op in case["ops"]:
            match op["op"]:
                case "add":
                    pb.add_value(built, op["name"], op["value"])
                case "set":
                    pb.set_value(built, op["name"], op["value"])
                case "remove":
                    pb.remove_label(built, op["name"])
            assert listed(built) == op["labels"], op
        for query in case["lookups"]:
            assert pb.values_of(built, query["name"]) == (query["values"] or None)
            assert pb.value_of(built, query["name"]) == query["value"]


def test_set_operations():
    for case in load("set_ops"):
        lhs, rhs = labels(case["lhs"]), labels(case["rhs"])
        assert listed(pb.union_label_sets(lhs, rhs)) == case["union"]
        assert listed(pb.intersect_label_sets(lhs, rhs)) == case["intersect"]
        assert listed(pb.subtract_label_set(lhs, rhs)) == case["subtract"]
        assert (lhs == rhs) == case["equal"]


def test_validation_of_sets():
    for case in load("validate"):
        built = labels(case["labels"])
        assert error_of(validate_label_set, built) == case["error"]
        as_include = error_of(validate_label_selector, pb.LabelSelector(include=built))
        assert as_include == case["error_as_include"]
        assert error_of(validate_single_value_labels, built) == case["single_value_error"]


def test_validation_of_labels():
    for case in load("validate_label"):
        label = pb.Label(name=case["name"], value=case["value"], prefix=case["prefix"])
        assert error_of(pb.validate, label) == case["error"]


def test_single_values():
    for case in load("single_value"):
        error = error_of(validate_single_value_labels, labels(case["labels"]))
        assert error == case["error"]


def test_meta_labels():
    journals = [case for case in load("meta_labels") if "journal" in case]
    assert journals
    for case in journals:
        spec = pb.JournalSpec(name=case["journal"], labels=labels(case["labels"]))
        assert listed(pb.label_set_ext(spec)) == case["result"]


def without_grammar(error: str | None) -> str | None:
    return error and error.partition(": write label=value, ")[0]


def test_parsing_of_selectors():
    for case in load("parse_selector"):
        error = error_of(pb.parse_label_selector, case["input"])
        # A text about the grammar also shows it.
        assert without_grammar(error) == case["error"], case["input"]
        if error is not None:
            continue
        parsed = pb.parse_label_selector(case["input"])
        assert listed_selector(parsed) == case["selector"]
        text = pb.format_label_selector(parsed)
        assert text == case["string"]
        if case["round_trips"]:
            assert pb.parse_label_selector(text) == parsed
        elif "reparsed" in case:
            assert listed_selector(pb.parse_label_selector(text)) == case["reparsed"]
        else:
            assert error_of(pb.parse_label_selector, text) == case["reparse_error"]


def test_text_of_selectors():
    for case in load("selector_string"):
        assert pb.format_label_selector(selector(case["selector"])) == case["string"]


def test_matching():
    for case in load("matches"):
        built, label_set = selector(case["selector"]), labels(case["labels"])
        assert pb.selector_matches(built, label_set) == case["matches"], case
        compiled = compile_selector(built)
        assert compiled(label_set) == case["matches"]
        pairs = [(name, value) for name, value, *_ in case["labels"]]
        assert compiled.matches_pairs(pairs) == case["matches"]


def test_selection_of_journals():
    for case in load("list_journals"):
        request = pb.ListRequest(selector=pb.parse_label_selector(case["selector"]))
        error = error_of(pb.validate, request)
        assert error == case["error"]
        if error is not None:
            continue
        applied = with_name_prefixes(request.selector)
        assert listed_selector(applied) == case["applied_selector"]
        spec = pb.JournalSpec(name=case["journal"], labels=labels(case["labels"]))
        assert pb.selector_matches(applied, pb.label_set_ext(spec)) == case["matches"]


def test_well_known_names():
    constants = {
        "ContentType": well_known.CONTENT_TYPE,
        "ContentType_CSV": well_known.CONTENT_TYPE_CSV,
        "ContentType_JSONLines": well_known.CONTENT_TYPE_JSON_LINES,
        "ContentType_ProtoFixed": well_known.CONTENT_TYPE_PROTO_FIXED,
        "ContentType_RecoveryLog": well_known.CONTENT_TYPE_RECOVERY_LOG,
        "Instance": well_known.INSTANCE,
        "ManagedBy": well_known.MANAGED_BY,
        "MessageSubType": well_known.MESSAGE_SUBTYPE,
        "MessageType": well_known.MESSAGE_TYPE,
        "Region": well_known.REGION,
        "Tag": well_known.TAG,
    }
    data = golden.load("labels.json")
    assert constants == data["well_known"]
    assert sorted(well_known.SINGLE_VALUE_LABELS) == data["single_value_labels"]
