"""Logs of real recorders, damaged in various ways, played in chunks without a broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from gazette_aio.consumer.recoverylog import FSM, PlaybackError
from gazette_aio.consumer.recoverylog.playing.files import StagedFiles
from gazette_aio.consumer.recoverylog.playing.playback import Playback
from gazette_aio.protocol.recoverylog import FSMHints
from tests import known_differences
from tests.consumer.recoverylog.golden_data import hints_of, load
from tests.consumer.recoverylog.player.logs import files_of

FILE = "recoverylog_playback.json"


def play(directory: Path, hints: FSMHints, content: bytes, chunk_bytes: int = 1 << 20) -> FSM:
    """Play a log to its end, and return its history."""
    files = StagedFiles(directory)
    files.prepare(wipe=True)
    try:
        playback = Playback(hints, files)
        playback.begin(dict.fromkeys(playback.logs, len(content)))
        for begin in range(0, len(content), chunk_bytes):
            if playback.offset < begin + chunk_bytes:
                playback.play(begin, [content[begin : begin + chunk_bytes]])
        if not playback.has_reached(len(content)):
            raise PlaybackError("the log ends within an operation")
        playback.check_hints()
        playback.check_history()
        files.make_live(playback.fsm)
    except BaseException:
        files.discard()
        raise
    return playback.fsm


@pytest.mark.parametrize("chunk_bytes", [1, 7, 1 << 20])
def test_playback(tmp_path: Path, chunk_bytes: int):
    cases = load("playback", FILE)
    assert len(cases) == 83
    for index, case in enumerate(cases):
        content, hints = bytes.fromhex(case["content"]), hints_of(case["hints"])
        tail = known_differences.RECOVERYLOG_TAILS.get(case["note"])
        if case.get("error") is not None and tail is None:
            is_known = index in known_differences.RECOVERYLOG_PLAYBACK
            with pytest.raises(
                PlaybackError, match="doesn't continue operation" if is_known else "."
            ):
                play(tmp_path, hints, content, chunk_bytes)
            continue
        fsm = play(tmp_path, hints, content, chunk_bytes)
        assert not fsm.has_remaining_hints
        if tail is not None:
            continue
        assert fsm.next_seq_no == case["next_seq_no"]
        assert fsm.next_checksum == case["next_checksum"]
        files = {path: content.hex() for path, content in files_of(tmp_path).items()}
        assert files == case["files"]
