"""What a store does before hints are built, so that they name less."""

from __future__ import annotations

import pytest

from gazette_aio.client import JournalClient
from gazette_aio.consumer.recoverylog import FSM
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
