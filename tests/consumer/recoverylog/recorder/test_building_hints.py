"""What a store does before hints are built, so that they name less, and what goes on meanwhile."""

from __future__ import annotations

import asyncio
import threading

import pytest

from gazette_aio.client import JournalClient
from gazette_aio.consumer.recoverylog import FSM
from gazette_aio.consumer.recoverylog.live_nodes import LiveNodes
from gazette_aio.protocol.recoverylog import FSMHints
from tests.consumer.recoverylog.recorder.support import open_recorder, play


async def test_what_a_store_replaces_is_not_hinted(client: JournalClient):
    async with await open_recorder(client) as recorder:
        log = recorder.record_create("/strip/log")
        recorder.record_write_at(log, b"many changes", 0)

        async def flush() -> None:
            table = recorder.record_create("/strip/table")
            recorder.record_write_at(table, b"state", 0)
            recorder.record_remove("/strip/log")

        recorder.before_hints = flush
        hints = await recorder.build_hints()
        assert [node.fnode for node in hints.live_nodes] == [log + 2]
        assert (await play(client, hints)).files == {"/table": b"state"}


async def test_hints_of_a_store_that_fails(client: JournalClient):
    """They aren't built, and recording goes on."""
    async with await open_recorder(client) as recorder:

        async def fail() -> None:
            raise OSError("no space")

        recorder.before_hints = fail
        with pytest.raises(OSError, match="no space"):
            await recorder.build_hints()
        recorder.record_create("/strip/file")
        await recorder.barrier()
        recorder.before_hints = None
        FSM(await recorder.build_hints())


async def test_neither_the_event_loop_nor_recording_waits_for_the_building(
    client: JournalClient, monkeypatch: pytest.MonkeyPatch
):
    """The files may be thousands."""
    build = LiveNodes.build_hints
    building, goes_on = threading.Event(), threading.Event()

    def build_slowly(nodes: LiveNodes, log: str) -> FSMHints:
        building.set()
        assert goes_on.wait(30), "the event loop or recording waits"
        return build(nodes, log)

    monkeypatch.setattr(LiveNodes, "build_hints", build_slowly)
    async with await open_recorder(client) as recorder:
        first, second = (recorder.record_create(f"/strip/{name}") for name in ("first", "second"))
        recorder.record_write_at(first, b"before", 0)
        hints = asyncio.create_task(recorder.build_hints())
        await asyncio.to_thread(building.wait)
        recorder.record_write_at(first, b"after", 0)
        recorder.record_remove("/strip/second")
        recorder.record_create("/strip/third")
        await recorder.barrier()
        goes_on.set()
        assert [node.fnode for node in (await hints).live_nodes] == [first, second]
        played = await play(client, await hints)
        assert played.files == {"/first": b"aftere", "/third": b""}
