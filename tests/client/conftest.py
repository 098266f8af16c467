from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest

from gazette_aio.client import JournalClient, RetryPolicy, connect
from gazette_aio.testing.leaks import no_leaks
from gazette_aio.testing.stub_broker import StubBroker
from tests.client.cluster import Cluster


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
    """Fail a test which leaves tasks, threads, files or connections behind."""
    async with no_leaks():
        yield


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


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    cluster = Cluster()
    yield cluster
    await cluster.aclose()


@pytest.fixture
async def pair(cluster: Cluster) -> Cluster:
    """Brokers `one`, which is the address of the client, and `two`, which is the primary."""
    await cluster.add("one")
    await cluster.add("two")
    cluster.primary = "two"
    return cluster
