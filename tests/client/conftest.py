from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gazette_aio.client import JournalClient, RetryPolicy, connect
from gazette_aio.testing.stub_broker import StubBroker


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Keep what the developer's shell says out of the tests, but for those which ask for it."""
    if "interop" in request.keywords:
        return
    for name in tuple(os.environ):
        if name.startswith("BROKER_"):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
async def _nothing_leaks() -> AsyncIterator[None]:
    """Fail a test which leaves tasks, temporary files or unclosed owners behind."""
    before = asyncio.all_tasks()
    yield
    gc.collect(1)  # Those who warn about themselves do so now.
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    if left:
        # What a stopped server has under way ends by itself.
        _, left = await asyncio.wait(left, timeout=1)
    assert not left, f"tasks left: {left}"
    assert not list(_temporary_files()), "temporary files left"


def _temporary_files() -> Iterator[str]:
    for entry in Path("/proc/self/fd").glob("*") if Path("/proc/self/fd").is_dir() else ():
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if "gazette-append" in target:
            yield target


@pytest.fixture
def instant() -> RetryPolicy:
    """A policy which doesn't wait between attempts."""
    return RetryPolicy(backoff=lambda attempt: 0.0)


@pytest.fixture
async def broker() -> AsyncIterator[StubBroker]:
    async with StubBroker() as broker:
        yield broker


@pytest.fixture
async def client(broker: StubBroker, instant: RetryPolicy) -> AsyncIterator[JournalClient]:
    async with connect(broker.endpoint, retry=instant, strict=True, drain_timeout=5) as client:
        yield client
