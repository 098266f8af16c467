"""Operations of an encoder against what a real recorder appended."""

from __future__ import annotations

from typing import Any

import pytest

from gazette_aio.consumer.recoverylog import (
    FSM,
    Author,
    LogDecoder,
    LogEncoder,
    Outcome,
    RecorderError,
)
from gazette_aio.consumer.recoverylog.recording import encoder as encoder_module
from gazette_aio.protocol.recoverylog import FSMHints
from tests import known_differences
from tests.consumer.recoverylog.golden_data import hints_of, load, state_of


def test_recorded_operations(monkeypatch: pytest.MonkeyPatch):
    # Other implementations record no checksum of content.
    monkeypatch.setattr(encoder_module, "content_checksum", lambda _: 0)
    cases = load("recorder", "recoverylog_playback.json")
    assert len(cases) == 30
    calls = different = 0
    for case in cases:
        fsm = FSM(FSMHints(log=case["log"]))
        for session in case["sessions"]:
            handoff = bytes.fromhex(session["handoff"])
            apply_frames(fsm, case["log"], session["begins_at"], handoff)
            begin = session["begins_at"] + len(session["handoff"]) // 2
            encoder = LogEncoder(fsm, Author(session["author"]), case["log"], begin)
            for call in session["calls"]:
                if renames_to_itself(fsm, call):
                    make(encoder, call)
                    assert encoder.take() == []
                    appended = bytes.fromhex(call["appended"])
                    apply_frames(fsm, case["log"], encoder.offset, appended)
                    encoder.offset += len(appended)
                    encoder.take()
                    different += 1
                    continue
                returned = make(encoder, call)
                assert returned == call.get("returns")
                assert b"".join(encoder.take()).hex() == call.get("appended", ""), call
                calls += 1
            check(fsm, case["log"], session)
    assert calls > 300
    assert different == known_differences.RECORDED_RENAMES


def renames_to_itself(fsm: FSM, call: dict[str, Any]) -> bool:
    if call["call"] != "rename":
        return False
    return fsm.links.get(call["source"]) == fsm.links.get(call["target"])


def apply_frames(fsm: FSM, log: str, offset: int, frames: bytes) -> None:
    decoder = LogDecoder(log, offset)
    decoder.feed(frames)
    for op, _, payload, _, begin, end in decoder:
        op.log, op.first_offset, op.last_offset = log, begin, end
        assert fsm.apply(op, payload) is Outcome.APPLIED


def make(encoder: LogEncoder, call: dict[str, Any]) -> int | None:
    match call["call"]:
        case "create":
            return encoder.open(call["path"], create=True, truncate=True)
        case "open":
            return encoder.open(
                call["path"],
                create="CREATE" in call["flags"],
                exclusive="EXCL" in call["flags"],
                truncate="TRUNC" in call["flags"],
            )
        case "write_at":
            encoder.write(call["fnode"], bytes.fromhex(call["data"]), call["offset"])
        case "remove":
            encoder.remove(call["path"])
        case "link":
            encoder.link(call["source"], call["target"])
        case "rename":
            encoder.rename(call["source"], call["target"], call.get("target_content"))
        case other:
            raise AssertionError(other)
    return None


def check(fsm: FSM, log: str, session: dict[str, Any]) -> None:
    """Compare state and hints. Offsets of other recorders are lower bounds, or unknown."""
    state, hints = state_of(fsm), fsm.build_hints(log)
    expected, expected_hints = session["state"], hints_of(session["hints"])
    for node, other in zip(state["live_nodes"], expected["live_nodes"], strict=True):
        for segment, bound in zip(node["segments"], other["segments"], strict=True):
            assert bound[2] <= segment[2] < segment[5]
            segment[2], segment[5], bound[5] = bound[2], 0, 0
    assert state == expected
    for node, other in zip(hints.live_nodes, expected_hints.live_nodes, strict=True):
        for segment, bound in zip(node.segments, other.segments, strict=True):
            assert bound.first_offset <= segment.first_offset < segment.last_offset
            segment.first_offset, segment.last_offset = bound.first_offset, bound.last_offset
    assert hints == expected_hints


MISUSES = {
    "open of a property path": lambda encoder: encoder.open("/IDENTITY", create=True),
    "open of an unknown file without create": lambda encoder: encoder.open("/unknown"),
    "exclusive open of a known file": lambda encoder: encoder.open(
        "/known", create=True, exclusive=True
    ),
    "remove of a property path": lambda encoder: encoder.remove("/IDENTITY"),
    "remove of an unknown path": lambda encoder: encoder.remove("/unknown"),
    "link onto a property path": lambda encoder: encoder.link("/known", "/IDENTITY"),
    "link of an unknown path": lambda encoder: encoder.link("/unknown", "/other"),
    "rename of an unknown path": lambda encoder: encoder.rename("/unknown", "/other"),
    "link onto a known path": lambda encoder: encoder.link("/known", "/known"),
    "write to an unknown fnode": lambda encoder: encoder.write(99, b"data", 0),
}


@pytest.mark.parametrize("note", MISUSES)
def test_misuse(note: str):
    texts = {
        case["note"]: case["error"]
        for case in load("recorder_misuse", "recoverylog_playback.json")
        if "directory" not in case["note"]
    }
    assert texts.keys() == MISUSES.keys()
    encoder = LogEncoder(FSM(FSMHints(log="a/log")), Author(7), "a/log")
    encoder.open("/known", create=True)
    encoder.take()
    with pytest.raises(RecorderError, match=f"^{texts[note]}"):
        MISUSES[note](encoder)
    assert encoder.take() == []
