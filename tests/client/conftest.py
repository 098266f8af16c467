from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest

from gazette_aio.client import JournalClient, RetryPolicy, connect
from gazette_aio.client.appends import appender
from gazette_aio.client.fragments import stream as fragment_stream
from gazette_aio.client.rpc import dispatch
from gazette_aio.protocol import GazetteError
from gazette_aio.testing.leaks import no_leaks
from gazette_aio.testing.ports import free_port
from gazette_aio.testing.stub_broker import StubBroker
from tests.client.rpc.cluster import Cluster


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Keep what the developer's shell says out of the tests, but for those which ask for it."""
    if "interop" in request.keywords:
        return
    for name in tuple(os.environ):
        if name.startswith("BROKER_"):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _machine_may_be_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log no wait for a connection, and give up no roll-back or file that takes a while."""
    monkeypatch.setattr(dispatch, "_SHORT_WAIT", 60.0)
    monkeypatch.setattr(appender, "ROLLBACK_SECONDS", 60.0)
    monkeypatch.setattr(fragment_stream, "CLOSE_SECONDS", 60.0)


@pytest.fixture(autouse=True)
async def _nothing_leaks(caplog: pytest.LogCaptureFixture) -> AsyncIterator[None]:
    """Fail a test which leaves tasks, threads, files or connections behind."""
    async with no_leaks():
        yield
    # Whoever keeps the record of an error would keep its RPC, and with that the connection.
    records = [record for record in caplog.records if record.name.startswith("gazette_aio.client")]
    assert not any(isinstance(arg, GazetteError) for r in records for arg in r.args or ())


@pytest.fixture
def instant() -> RetryPolicy:
    """A policy which doesn't wait between attempts."""
    return RetryPolicy(backoff=lambda attempt: 0.0)


@pytest.fixture
async def broker() -> AsyncIterator[StubBroker]:
    broker = StubBroker()
    # Race: nobody else gets the port, while tests stop the broker and start it again.
    await broker.start(f"127.0.0.1:{free_port()}")
    yield broker
    await broker.aclose()


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
