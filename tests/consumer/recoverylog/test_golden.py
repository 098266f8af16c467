"""Recovery logs against data of a real Gazette."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gazette_aio.protocol as pb
from gazette_aio.consumer.recoverylog import (
    FSM,
    Author,
    Outcome,
    Segment,
    SegmentSet,
    decode_hints,
    encode_hints,
    encode_operation,
    live_log_segments,
    next_checksum,
)
from gazette_aio.protocol.recoverylog import FSMHints
from tests import golden
from tests.consumer.recoverylog.golden_data import agrees, hints_of, load, op_of, rows, state_of


def error_of(call: Callable[..., Any], *args: Any) -> str | None:
    try:
        call(*args)
    except pb.GazetteError as error:
        return str(error)
    return None


def test_errors():
    names = {
        "Err" + outcome.name.title().replace("_", ""): outcome.value
        for outcome in Outcome
        if outcome is not Outcome.APPLIED
    }
    assert names == golden.load("recoverylog.json")["errors"]


def test_adding_segments():
    for case in load("segment_set_add"):
        segments = SegmentSet()
        for step in case["ops"]:
            error = error_of(segments.add, Segment(*step["add"]))
            assert agrees(error, step), (step, error)
            assert rows(segments) == step["set"]


def test_histories():
    for case in load("fsm"):
        fsm = FSM(hints_of({"json": case["hints"]}))
        for step in case["steps"]:
            outcome = fsm.apply(op_of(step["op"]), bytes.fromhex(step["frame"]))
            assert (outcome.value or None) == step["error"]
            assert fsm.next_seq_no == step["next_seq_no"]
            assert fsm.next_checksum == step["next_checksum"]
        assert state_of(fsm) == case["state"]
        assert fsm.build_hints(fsm.last_log) == hints_of(case["built_hints"])


def test_players_of_one_log():
    for case in load("fsm_players"):
        ops = [(op_of(op["op"]), bytes.fromhex(op["frame"])) for op in case["ops"]]
        for player in case["players"]:
            hints = hints_of(player["hints"])
            fnodes, segments = live_log_segments(hints)
            assert fnodes == player["live_fnodes"]
            assert rows(segments) == player["live_segments"]
            fsm = FSM(hints)
            outcomes = [fsm.apply(op, frame).value or None for op, frame in ops]
            assert outcomes == player["errors"]
            assert state_of(fsm) == player["state"]
            assert fsm.build_hints(fsm.last_log) == hints_of(player["built_hints"])


def test_hints():
    for case in load("hints"):
        hints = hints_of(case["hints"])
        text = case["hints"]["etcd_json"].encode()
        assert encode_hints(hints) == text
        assert decode_hints(text) == hints
        if case["hints"]["json"]:
            assert decode_hints(hints.SerializeToString()) == hints
        assert agrees(error_of(live_log_segments, hints), case), case
        assert agrees(error_of(FSM, hints), case, "new_fsm_error"), case
        assert error_of(pb.validate, hints) == case["validate_error"]
        if case["error"] is None:
            fnodes, segments = live_log_segments(hints)
            assert fnodes == case["live_fnodes"]
            assert rows(segments) == case["live_segments"]


def test_hints_of_all_other_cases():
    built = [case["built_hints"] for case in load("fsm")]
    built += [player["hints"] for case in load("fsm_players") for player in case["players"]]
    for case in built:
        assert encode_hints(hints_of(case)) == case["etcd_json"].encode()
        assert decode_hints(case["etcd_json"].encode()) == hints_of(case)


def test_checksums():
    for case in load("checksums"):
        checksum = 0
        for step in case["steps"]:
            checksum = next_checksum(checksum, bytes.fromhex(step["payload"]))
            assert checksum == step["checksum"]


def test_fences():
    for case in load("author_fences"):
        fence = Author(case["author"]).fence()
        assert [[label.name, label.value] for label in fence.labels] == case["labels"]
        assert int(fence.labels[0].value, 32) == case["author"]


def test_encoded_operations():
    for case in load("encoded_ops"):
        payload, frame = encode_operation(op_of(case["op"]))
        assert frame.hex() == case["frame"]
        assert frame[8:] == payload


def test_messages():
    seen = 0
    for case in golden.load("validation.json")["messages"]:
        if case["type"].startswith("recoverylog."):
            from tests.protocol.support import parse

            error = error_of(pb.validate, parse(case))
            assert error == case["error"], case
            seen += 1
    assert seen == 70


def test_an_empty_log_has_empty_hints():
    assert FSM(FSMHints(log="a/log")).build_hints("a/log") == FSMHints(log="a/log")
