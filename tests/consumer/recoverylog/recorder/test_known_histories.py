"""Short histories whose checksums and offsets are known from other recorders."""

from __future__ import annotations

from typing import Any

from gazette_aio.client import JournalClient
from gazette_aio.consumer.recoverylog import Recorder
from gazette_aio.protocol.recoverylog import FSMHints
from tests.consumer.recoverylog.recorder.support import (
    LOG,
    OTHER_LOG,
    SECOND,
    kinds,
    open_recorder,
    play,
)


async def recorder_of(client: JournalClient, **options: Any) -> Recorder:
    """Return a recorder whose first operation is number 1, as it appends no fence."""
    return await open_recorder(client, fence=False, **options)


def segments_of(hints: FSMHints) -> list[tuple[int, list[tuple[int, ...]]]]:
    return [
        (
            node.fnode,
            [
                (each.first_seq_no, each.first_offset, each.first_checksum, each.last_seq_no)
                for each in node.segments
            ],
        )
        for node in hints.live_nodes
    ]


async def test_new_files(client: JournalClient):
    async with await recorder_of(client) as recorder:
        recorder.record_create("/strip/path/to/file")
        await recorder.barrier()
        recorder.record_create("/strip/other/file")
        hints = await recorder.build_hints()
    assert segments_of(hints) == [(1, [(1, 0, 0, 1)]), (2, [(2, 32, 0x568E8E4E, 2)])]


async def test_a_file_which_is_replaced(client: JournalClient):
    async with await recorder_of(client) as recorder:
        recorder.record_create("/strip/path/to/file")
        await recorder.barrier()
        recorder.record_create("/strip/path/to/file")
        hints = await recorder.build_hints()
    played = await play(client)
    assert kinds(played.ops) == ["create", "unlink", "create"]
    # The offset is exact; others have that of the append, 32.
    assert segments_of(hints) == [(3, [(3, played.ops[2].first_offset, 0x8EE45505, 3)])]


async def test_a_rename_onto_a_file(client: JournalClient):
    async with await recorder_of(client) as recorder:
        recorder.record_create("/strip/target/path")
        await recorder.barrier()
        recorder.record_create("/strip/source/path")
        await recorder.barrier()
        recorder.record_rename("/strip//source/path", "/strip/target/path")
        hints = await recorder.build_hints()
    assert segments_of(hints) == [(2, [(2, 31, 0x5CCBEEAA, 5)])]
    ops = (await play(client)).ops
    assert kinds(ops) == ["create", "create", "unlink", "link", "unlink"]
    assert [(op.unlink.fnode, op.unlink.path) for op in (ops[2], ops[4])] == [
        (1, "/target/path"),
        (2, "/source/path"),
    ]


async def test_a_rename_to_a_new_path(client: JournalClient):
    async with await recorder_of(client) as recorder:
        recorder.record_create("/strip/source/path")
        recorder.record_rename("/strip/source/path", "/strip//target/path")
        hints = await recorder.build_hints()
    assert segments_of(hints) == [(1, [(1, 0, 0, 3)])]
    assert kinds((await play(client)).ops) == ["create", "link", "unlink"]


async def test_files_that_are_made_and_removed(client: JournalClient):
    async with await recorder_of(client) as recorder:
        recorder.record_create("/strip/delete/path")
        await recorder.barrier()
        fnode = recorder.record_create("/strip/a/path")
        recorder.record_write_at(fnode, b"file-write", 0)
        recorder.record_remove("/strip/delete/path")
        hints = await recorder.build_hints()
    assert segments_of(hints) == [(2, [(2, 31, 0x950C2859, 3)])]


async def test_another_log(client: JournalClient):
    async with await recorder_of(client) as recorder:
        recorder.record_create("/strip/file1")
        await recorder.barrier()
    fsm = (await play(client)).fsm
    async with await open_recorder(client, log=OTHER_LOG, fsm=fsm, author=SECOND) as fork:
        fork.record_create("/strip/file2")
        hints = await fork.build_hints()
    # The offset is exact; others have that of the append of the operation before.
    offset = hints.live_nodes[1].segments[0].first_offset
    assert offset == (await play(client, log=OTHER_LOG)).ops[0].last_offset
    assert segments_of(hints) == [(1, [(1, 0, 0, 1)]), (3, [(3, offset, 0x61669370, 3)])]
    assert [node.segments[0].log for node in hints.live_nodes] == [LOG, ""]
