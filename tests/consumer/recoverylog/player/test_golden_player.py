"""Logs of real recorders, played from a broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gazette_aio.client import JournalClient
from gazette_aio.consumer.recoverylog import PlaybackError, Resolved
from gazette_aio.message.framing import FixedFraming
from gazette_aio.protocol.recoverylog import FSMHints
from tests import known_differences
from tests.consumer.recoverylog.golden_data import hints_of, load, op_of, state_of
from tests.consumer.recoverylog.player.logs import create_log, files_of, is_there, recover

FILE = "recoverylog_playback.json"
GARBAGE = "trailing garbage"


def renamed(hints: FSMHints, log: str) -> FSMHints:
    copy = FSMHints.FromString(hints.SerializeToString())
    copy.log = log
    return copy


def result_of(resolved: Resolved) -> tuple[Any, ...]:
    fsm = resolved.fsm
    assert not fsm.has_remaining_hints
    files = {path: data.hex() for path, data in files_of(resolved.directory).items()}
    return files, fsm.next_seq_no, fsm.next_checksum


async def test_playback(client: JournalClient, directory: Path):
    cases = load("playback", FILE)
    assert len(cases) == 83
    recovered: dict[str, Any] = {}
    for index, case in enumerate(cases):
        log, content = f"{case['log']}/{index}", bytes.fromhex(case["content"])
        await create_log(client, log)
        await client.append(log, content)
        playing = recover(client, directory / str(index), renamed(hints_of(case["hints"]), log))
        if case.get("error") is None:
            resolved = await playing
            assert result_of(resolved) == tuple(
                case[key] for key in ("files", "next_seq_no", "next_checksum")
            )
            assert resolved.read_through == len(content)
            if case["note"] == "latest hints":
                recovered[case["log"]] = result_of(resolved)
        elif case["note"] == GARBAGE:
            assert known_differences.RECOVERYLOG_TAILS[GARBAGE]
            # Brokers tell where an append ends, and files of the golden data don't.
            assert result_of(await playing) == recovered[case["log"]]
        else:
            with pytest.raises(PlaybackError) as caught:
                await playing
            assert (caught.value.log, log in str(caught.value)) == (log, True)
            assert 0 <= caught.value.offset <= len(content)
            assert not is_there(directory / str(index))


@pytest.mark.slow
async def test_recorders(client: JournalClient, directory: Path):
    for index, case in enumerate(load("recorder", FILE)):
        log = case["log"]
        await create_log(client, log)
        await client.append(log, bytes.fromhex(case["content"]))
        expected = case["sessions"][-1]["state"]
        hints = [hints_of(session["hints"]) for session in case["sessions"]]
        for number, each in enumerate((FSMHints(log=log), *hints)):
            resolved = await recover(client, directory / f"{index}.{number}", each)
            state = state_of(resolved.fsm)
            for key in ("next_seq_no", "next_checksum", "last_log", "links", "properties"):
                assert state[key] == expected[key]
            assert files_of(resolved.directory).keys() == {
                *expected["links"],
                *expected["properties"],
            }


@pytest.mark.slow
async def test_racing_recorders(client: JournalClient, directory: Path):
    """Players of a log with several histories follow that of their hints."""
    for index, case in enumerate(load("fsm_players")):
        log = f"{case['log']}/{index}"
        content = b""
        for each in case["ops"]:
            op, payload = op_of(each["op"]), bytes.fromhex(each["frame"])
            assert op.first_offset == len(content)
            content += FixedFraming().encode(payload) + bytes(op.write.length)
        await create_log(client, log)
        await client.append(log, content)
        for number, player in enumerate(case["players"]):
            hints = renamed(hints_of(player["hints"]), log)
            playing = recover(client, directory / f"{index}.{number}", hints)
            if player["state"]["remaining_hinted_segments"]:
                with pytest.raises(PlaybackError, match="unused hints"):
                    await playing
                continue
            fsm = (await playing).fsm
            built = fsm.build_hints(log)
            assert built == renamed(hints_of(player["built_hints"]), log)
            assert fsm.links == player["state"]["links"]
