"""Hints of several authors, whose segments have gaps in which files end."""

from __future__ import annotations

from pathlib import Path

from gazette_aio.client import JournalClient
from gazette_aio.consumer.recoverylog import Player, Recorder, Resolved
from gazette_aio.protocol.recoverylog import FSMHints
from tests.consumer.recoverylog.recorder.support import FIRST, LOG, SECOND, open_recorder


async def recovered(client: JournalClient, hints: FSMHints, directory: Path) -> Resolved:
    player = Player()
    player.finish_at_write_head()
    return await player.play(hints, directory, client)


async def test_files_that_end_in_a_gap(client: JournalClient, tmp_path: Path):
    """Their creation is after that of the newest live file, and played; their removal isn't."""
    async with await open_recorder(client, author=FIRST) as first:
        old = first.record_create("/strip/old")
        temporary = first.record_create("/strip/temporary")
        first.record_write_at(temporary, b"temporary", 0)
        first.record_write_at(old, b"old", 0)
        first.record_remove("/strip/temporary")
    player = Player()
    player.inject_handoff(SECOND)
    resolved = await player.play(FSMHints(log=LOG), tmp_path / "second", client)
    async with await Recorder.open(client, LOG, resolved.fsm, SECOND, resolved.directory) as second:
        second.record_write_at(old, b"new", 0)
        second.record_link(resolved.directory / "old", resolved.directory / "temporary")
        hints = await second.build_hints()
    (node,) = hints.live_nodes
    early, late = node.segments
    assert early.last_seq_no + 1 < late.first_seq_no

    again = await recovered(client, hints, tmp_path / "third")
    assert again.fsm.links == {"/old": old, "/temporary": old}
    assert {path.name: path.read_bytes() for path in again.directory.iterdir()} == {
        "old": b"new",
        "temporary": b"new",
    }
