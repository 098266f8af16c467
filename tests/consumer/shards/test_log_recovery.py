"""Recoveries from a log that are cancelled, as an assignment may be lost at any moment."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gazette_aio.aio.finish import finish
from gazette_aio.client import JournalClient
from gazette_aio.consumer.recoverylog import Author, Player, live_nodes
from gazette_aio.consumer.shards import log_recovery
from gazette_aio.consumer.shards.log_recovery import LogRecovery
from gazette_aio.testing import StubShard, no_leaks
from tests.cancellation import cancel_at_every_await
from tests.consumer.recoverylog.player.logs import LogWriter, create_log
from tests.consumer.shards.group import Group, shard_spec
from tests.consumer.transactions.world import serve
from tests.waiting import eventually, turns

LOG = "recovery/logs/shard-A"


SPEC = shard_spec(recovery_log_prefix="recovery/logs", hint_prefix="/hints")


class ClientShard(StubShard):
    """A shard with a client."""

    def __init__(self, client: JournalClient) -> None:
        super().__init__(SPEC)
        self._client = client

    @property
    def client(self) -> JournalClient:
        return self._client


class Recoveries:
    """Recoveries of a shard, one after the other, and tasks of what is called beside them."""

    def __init__(self, group: Group, client: JournalClient, directory: Path) -> None:
        self.directory = directory
        self._group = group
        self.client = client
        self.beside: list[asyncio.Task[object]] = []

    def begin(self) -> LogRecovery:
        self._shard = ClientShard(self.client)
        self.recovery = LogRecovery(self._shard, self._group.service, LOG)
        return self.recovery

    async def check(self) -> None:
        """Check that nothing is left once a replica has ended its recovery."""
        self.recovery.cancel()
        for task in self.beside:
            task.cancel()
        if self.beside:
            await asyncio.wait(self.beside)
        self.beside.clear()
        await self.recovery.aclose()
        assert not self.directory.exists() or not list(self.directory.iterdir())


@pytest.fixture
async def recoveries(tmp_path: Path) -> AsyncIterator[Recoveries]:
    directory = tmp_path / "files"
    async with no_leaks(), serve(tmp_path) as client:
        await create_log(client, LOG)
        async with Group(client, recovery_directory=directory) as group:
            await group.create(SPEC)
            yield Recoveries(group, client, directory)


async def test_playing_is_cancelled_at_each_await(recoveries: Recoveries):
    async def play() -> None:
        recovery = recoveries.begin()

        def complete() -> None:
            completing = asyncio.create_task(recovery.complete(Author.random()))
            recoveries.beside.append(completing)

        await recovery.play(complete)

    assert await cancel_at_every_await(play, recoveries.check) >= 4


async def test_taking_over_is_cancelled_at_each_await(recoveries: Recoveries):
    async def complete() -> None:
        recovery = recoveries.begin()
        tailing = asyncio.Event()
        recoveries.beside.append(asyncio.create_task(recovery.play(tailing.set)))
        await tailing.wait()
        _, hints = await recovery.complete(Author.random())
        assert hints.log == LOG

    assert await cancel_at_every_await(complete, recoveries.check) >= 3


@pytest.mark.parametrize(("budget", "segments"), [(log_recovery.HINTS_BYTES, 3), (1, 1)])
async def test_hints_of_what_was_recovered_are_short(
    recoveries: Recoveries, monkeypatch: pytest.MonkeyPatch, budget: int, segments: int
):
    """Etcd takes no long ones, and without them nothing is ever pruned."""
    monkeypatch.setattr(live_nodes, "SPLIT_GAP_BYTES", 100)
    monkeypatch.setattr(log_recovery, "HINTS_BYTES", budget)
    writer = LogWriter(log=LOG)
    writer.create("/rare")
    for _ in range(2):
        writer.create("/often")
        writer.write("/often", bytes(200))
        writer.unlink("/often")
        writer.write("/rare", b"content")
    writer.create("/newest")
    await recoveries.client.append(LOG, writer.content)
    recovery = recoveries.begin()
    playing = asyncio.create_task(recovery.play(lambda: None))
    _, hints = await recovery.complete(Author.random())
    await playing
    await recovery.aclose()
    assert [len(node.segments) for node in hints.live_nodes] == [segments, 1]


async def test_a_directory_that_is_made_after_a_cancellation_is_removed(
    recoveries: Recoveries, monkeypatch: pytest.MonkeyPatch
):
    entered, leave = threading.Event(), threading.Event()
    mkdtemp = tempfile.mkdtemp

    def make(*args: Any) -> str:
        entered.set()
        leave.wait()
        return mkdtemp(*args)

    monkeypatch.setattr(tempfile, "mkdtemp", make)
    playing = asyncio.create_task(recoveries.begin().play(lambda: None))
    await eventually(entered.is_set)
    playing.cancel()
    leave.set()
    await asyncio.wait((playing,))
    assert playing.cancelled()
    await recoveries.check()


async def test_playing_outlives_cancellations_until_files_are_closed(
    recoveries: Recoveries, monkeypatch: pytest.MonkeyPatch
):
    may_end, play = asyncio.Event(), Player.play

    async def slow(*args: Any) -> None:
        try:
            await play(*args)
        finally:
            await finish(may_end.wait())

    monkeypatch.setattr(Player, "play", slow)
    tailing = asyncio.Event()
    playing = asyncio.create_task(recoveries.begin().play(tailing.set))
    await tailing.wait()
    for _ in range(3):
        playing.cancel()
        await turns()
        assert not playing.done(), "it left although the player has files"
    may_end.set()
    await asyncio.wait((playing,))
    assert playing.cancelled()
    await recoveries.check()
