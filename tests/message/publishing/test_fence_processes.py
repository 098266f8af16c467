"""Processes that publish by one log, and are killed, or pause and awake, at each step of a commit.

They run with an embedded broker, or the one which BROKER_ADDRESS names.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import uuid
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import pytest

import gazette_aio.protocol as pb
from gazette_aio import ReadCommittedIter, connect, json_adapter
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import RetryPolicy
from gazette_aio.testing import create_journals, journal_spec
from tests.message.publishing.fence_worker import FENCED, LOCKED, STEPS

pytestmark = pytest.mark.interop
ROWS = 6


class Site:
    """A broker with journals, a log, and the processes of a test."""

    def __init__(self, client: Any, endpoint: Any, path: Path) -> None:
        self.client, self.endpoint = client, endpoint
        self.log = path / "rows.intents"
        prefix = f"fence/{uuid.uuid4().hex[:12]}"
        self.journals = [f"{prefix}/one", f"{prefix}/two"]
        self.fence = f"{prefix}/fence"
        self.processes: list[asyncio.subprocess.Process] = []

    async def create(self):
        labels = {"content-type": "application/x-ndjson"}
        names = [*self.journals, self.fence]
        await create_journals(self.client, *(journal_spec(name, labels=labels) for name in names))
        for name in names:
            await self.client.append(name, retry_policy=RetryPolicy(retry_not_found=True))

    async def start(self, *options: Any, is_fenced: Any = True):
        fence = [f"--fence={self.fence}"] if is_fenced else []
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.message.publishing.fence_worker",
            f"--broker={self.endpoint}", f"--log={self.log}", f"--rows={ROWS}", *fence, *options,
            *self.journals, stderr=PIPE,
        )  # fmt: skip
        self.processes.append(process)
        return process

    async def published(self):
        """Return the committed rows of each journal."""
        rows: dict[str, list[int]] = {journal: [] for journal in self.journals}
        source = ReadCommittedIter(
            self.journals, json_adapter(), client=self.client, skip_acks=True
        )
        async with source as messages:
            async for envelope in messages:
                rows[envelope.journal].append(envelope.message["row"])
        return list(rows.values())

    async def aclose(self):
        for process in self.processes:
            if process.returncode is None:
                process.kill()
            await process.communicate()
        names = (*self.journals, self.fence)
        changes = [pb.ApplyRequest.Change(delete=name, expect_mod_revision=-1) for name in names]
        await self.client.apply(changes)


@pytest.fixture
async def site(tmp_path: Path):
    async with contextlib.AsyncExitStack() as stack:
        endpoint = os.environ.get("BROKER_ADDRESS", "")
        if not endpoint:
            broker = EmbeddedBroker(tmp_path / "broker", fsync="off")
            endpoint = (await stack.enter_async_context(broker)).endpoint
        client = await stack.enter_async_context(connect(endpoint))
        site = Site(client, endpoint, tmp_path)
        await site.create()
        stack.push_async_callback(site.aclose)
        yield site


@pytest.mark.slow
@pytest.mark.parametrize("is_fenced", [False, True])
async def test_processes_that_are_killed(site: Any, is_fenced: Any):
    """Each is killed at another step of another transaction, and the next one goes on."""
    for number, step in enumerate(STEPS):
        process = await site.start(
            f"--halt-at={number}", f"--step={step}", "--signal=SIGKILL", is_fenced=is_fenced
        )
        assert await process.wait() == -signal.SIGKILL
    process = await site.start(is_fenced=is_fenced)
    assert await process.wait() == 0
    assert await site.published() == [list(range(ROWS))] * 2


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
async def test_a_process_that_pauses_and_awakes(site: Any, step: Any):
    """Its successor, on another machine, does the rest, and what it does after that fails."""
    zombie = await site.start(f"--halt-at={ROWS // 2}", f"--step={step}", "--signal=SIGSTOP")
    await asyncio.to_thread(os.waitid, os.P_PID, zombie.pid, os.WSTOPPED | os.WNOWAIT)
    # Here locks don't reach other machines.
    site.log.with_name(f"{site.log.name}.lock").unlink()
    successor = await site.start()
    assert await successor.wait() == 0
    zombie.send_signal(signal.SIGCONT)
    assert await zombie.wait() == FENCED
    # And the one after that finds nothing to do.
    last = await site.start()
    assert await last.wait() == 0
    assert await site.published() == [list(range(ROWS))] * 2


@pytest.mark.parametrize("is_fenced", [False, True])
async def test_a_rolling_restart(site: Any, is_fenced: Any):
    """A process that is started too early says so, or waits for the end of its predecessor."""
    old = await site.start(
        f"--halt-at={ROWS // 2}", "--step=mark_written", "--signal=SIGSTOP", is_fenced=is_fenced
    )
    await asyncio.to_thread(os.waitid, os.P_PID, old.pid, os.WSTOPPED | os.WNOWAIT)
    refused = await site.start(is_fenced=is_fenced)
    _, output = await refused.communicate()
    assert refused.returncode == LOCKED
    assert f"rows.intents.lock: the log is in use by process {old.pid}" in output.decode()
    new = await site.start("--lock-timeout=120", is_fenced=is_fenced)
    old.kill()
    assert await new.wait() == 0
    assert await site.published() == [list(range(ROWS))] * 2


@pytest.mark.parametrize("is_fenced", [False, True])
async def test_processes_that_start_together(site: Any, is_fenced: Any):
    """One of them publishes. The others are refused, or find nothing to do if they're late."""
    processes = [await site.start(is_fenced=is_fenced) for _ in range(3)]
    codes = [await process.wait() for process in processes]
    assert 0 in codes
    assert set(codes) <= {0, LOCKED}
    assert await site.published() == [list(range(ROWS))] * 2
