"""Logs of real recorders, damaged in various ways, decoded and played into memory."""

from __future__ import annotations

from typing import Any

import pytest

import gazette_aio.protocol as pb
from gazette_aio.consumer.recoverylog import FSM, LogDecoder, Outcome
from tests import known_differences
from tests.consumer.recoverylog.golden_data import hints_of, load, state_of


class Playback:
    """Plays a whole log into memory, as far as it is sound."""

    def __init__(self, case: dict[str, Any], chunk_bytes: int) -> None:
        self.content = bytes.fromhex(case["content"])
        self.log = case["log"]
        self.fsm = FSM(hints_of(case["hints"]))
        self.chunk_bytes = chunk_bytes
        self.ops: list[list[Any]] = []
        self.files: dict[int, bytearray] = {}
        self.target: tuple[bytearray, int] | None = None
        self.error: pb.RecoveryError | None = None

    def run(self) -> None:
        decoder = LogDecoder(self.log)
        try:
            while True:
                if decoder.is_at_boundary:
                    decoder.skip_to(self.seek(decoder.offset))
                if (part := next(iter(decoder), None)) is not None:
                    self.take(*part)
                elif fed := self.content[decoder.fed_offset :][: self.chunk_bytes]:
                    decoder.feed(fed)
                else:
                    break
            decoder.end()
            if self.fsm.hinted_segment is not None:
                raise pb.RecoveryError("FSM has unused hints")
        except pb.RecoveryError as error:
            self.error = error

    def seek(self, offset: int) -> int:
        segment = self.fsm.hinted_segment
        return offset if segment is None else max(offset, segment.first_offset)

    def take(
        self,
        op: Any,
        _write: Any,
        payload: bytes,
        content: memoryview | None,
        begin: int,
        end: int,
    ) -> None:
        if op is not None:
            self.target = self.apply(op, payload, begin, end)
        elif content is None:
            if self.ops and self.ops[-1][1:3] == [begin, 0]:
                self.ops[-1][1] = end
            else:
                self.ops.append([begin, end, 0, False])
        if content and self.target is not None:
            file, at = self.target
            file.extend(bytes(max(0, at + len(content) - len(file))))
            file[at : at + len(content)] = content
            self.target = file, at + len(content)

    def apply(self, op: Any, payload: bytes, begin: int, end: int) -> tuple[bytearray, int] | None:
        op.log, op.first_offset, op.last_offset = self.log, begin, end
        applied = self.fsm.apply(op, payload) is Outcome.APPLIED
        self.ops.append([begin, end, op.seq_no, applied])
        if applied and op.HasField("create"):
            self.files[op.seq_no] = bytearray()
        elif applied and op.HasField("unlink"):
            if op.unlink.fnode not in self.fsm.live_nodes:
                del self.files[op.unlink.fnode]
        elif applied and op.HasField("write"):
            return self.files[op.write.fnode], op.write.offset
        return None


@pytest.mark.parametrize("chunk_bytes", [1, 7, 1 << 20])
def test_playback(chunk_bytes: int):
    cases = load("playback", "recoverylog_playback.json")
    assert len(cases) == 83
    for index, case in enumerate(cases):
        check(index, case, chunk_bytes)


def check(index: int, case: dict[str, Any], chunk_bytes: int) -> None:
    played = Playback(case, chunk_bytes)
    played.run()
    expected = [*map(list, case["ops"])]
    if reason := known_differences.RECOVERYLOG_PLAYBACK.get(index):
        assert reason
        assert played.ops != expected
        assert "unused hints" in str(played.error)
        return
    if case.get("error") is not None:
        assert played.error is not None, case["error"]
        # An operation whose content is missing is told by its decoder, and not yet re-enacted.
        assert [op for op in played.ops if op[1] <= len(played.content)] == expected
        return
    assert played.error is None
    assert played.ops == expected
    assert not played.fsm.has_remaining_hints
    assert played.fsm.next_seq_no == case["next_seq_no"]
    assert played.fsm.next_checksum == case["next_checksum"]
    files = {path: bytes(played.files[fnode]).hex() for path, fnode in played.fsm.links.items()}
    files |= {path: text.encode().hex() for path, text in played.fsm.properties.items()}
    assert files == case["files"]


def test_recorders():
    """What recorders appended is what their operations are, and leaves their hints and state."""
    for case in load("recorder", "recoverylog_playback.json"):
        hints = {"json": {"log": case["log"]}}
        for session in case["sessions"]:
            begin = session["begins_at"]
            appended = session["handoff"] + "".join(
                call.get("appended", "") for call in session["calls"]
            )
            content = bytes.fromhex(appended)
            assert bytes.fromhex(case["content"])[begin : begin + len(content)] == content
        played = Playback({**case, "hints": hints}, 1 << 20)
        played.run()
        assert played.error is None
        state = state_of(played.fsm)
        last = case["sessions"][-1]["state"]
        for key in ("next_seq_no", "next_checksum", "last_log", "links", "properties"):
            assert state[key] == last[key]
