"""Stopping, cancelled wherever it may be suspended, takes effect as a whole."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import aiohttp
import pytest

from gazette_aio.broker import EmbeddedBroker
from gazette_aio.broker.host.workers import Background
from gazette_aio.client import RetryPolicy, connect
from gazette_aio.testing import create_journals, journal_spec, no_leaks
from tests.cancellation import cancel_at, close_at_every_await
from tests.waiting import turns

JOURNAL = "test/journal"


@pytest.mark.parametrize("socket", [False, True])
async def test_a_broker_under_load(tmp_path: Path, *, socket: bool) -> None:
    """Blocked reads and watches by gRPC, and a blocked read by HTTP."""
    path = tmp_path / "socket" if socket else None
    once = RetryPolicy(on_error=lambda failure: False)
    async with no_leaks():
        for number in itertools.count():
            broker = EmbeddedBroker(tmp_path / "data", socket=path)
            await broker.start()
            async with (
                connect(broker.endpoint, retry=once) as client,
                aiohttp.ClientSession() as http,
            ):
                if not number:
                    await create_journals(client, journal_spec(JOURNAL))
                    await client.append(JOURNAL, b"content")
                reader = client.read(JOURNAL, block=True)
                assert await reader.read() == b"content"
                async with client.watch() as watched:
                    await watched.ready()
                    url = f"{broker.http_endpoint}/{JOURNAL}?block=true"
                    async with http.get(url) as response:
                        assert await response.content.readany() == b"content"
                        was_cancelled = await cancel_at(broker.stop(0.0), number)
                        await broker.stop(0.0)
                        assert repr(broker).startswith("<EmbeddedBroker stopped")
                        assert path is None or not path.exists()
                        # Its directory isn't locked any more.
                        async with EmbeddedBroker(tmp_path / "data") as another:
                            assert another.stats()["gazette_write_head"] in ({}, {JOURNAL: 7})
                await reader.aclose()
            if not was_cancelled:
                break
        assert number >= 1


async def test_background_tasks_are_cancelled_once() -> None:
    ended = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await turns(3)
            ended.append(True)

    async def opened() -> Background:
        ended.clear()
        background = Background()
        for number in range(3):
            background.start(work(), f"gazette test {number}")
        await asyncio.sleep(0)
        return background

    def check() -> None:
        assert ended == [True] * 3

    assert await close_at_every_await(opened, check) >= 1
