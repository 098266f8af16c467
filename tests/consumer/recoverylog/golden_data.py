"""Golden data of recovery logs, in the terms of this package."""

from __future__ import annotations

from typing import Any

from google.protobuf import json_format

from gazette_aio.consumer.recoverylog import FSM, Segment, SegmentSet
from gazette_aio.protocol.recoverylog import FSMHints, RecordedOp
from tests import golden


def load(section: str, file: str = "recoverylog.json") -> list[dict[str, Any]]:
    cases = golden.load(file)[section]
    assert cases
    return cases


def hints_of(case: dict[str, Any]) -> FSMHints:
    return json_format.ParseDict(case["json"], FSMHints())


def op_of(case: dict[str, Any]) -> RecordedOp:
    return json_format.ParseDict(case, RecordedOp())


def rows(segments: SegmentSet | list[Segment]) -> list[list[Any]]:
    return [list(segment) for segment in segments]


def state_of(fsm: FSM) -> dict[str, Any]:
    segments, fnodes = fsm.remaining_hints
    return {
        "next_seq_no": fsm.next_seq_no,
        "next_checksum": fsm.next_checksum,
        "last_log": fsm.last_log,
        "links": fsm.links,
        "live_nodes": [
            {"fnode": fnode, "links": sorted(node.links), "segments": rows(node.segments)}
            for fnode, node in sorted(fsm.live_nodes.items())
        ],
        "properties": fsm.properties,
        "remaining_hinted_segments": segments,
        "remaining_hinted_fnodes": fnodes,
    }


def agrees(error: str | None, case: dict[str, Any], key: str = "error") -> bool:
    expected = case[key]
    if error is None or expected is None:
        return error is expected
    return error.startswith(case.get("stable_prefix", expected))
