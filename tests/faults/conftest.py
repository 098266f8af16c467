"""A broker behind a proxy, and a client which knows no other way to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import JournalClient, connect
from gazette_aio.testing import FaultProxy, create_journals, journal_spec, no_leaks
from gazette_aio.testing.ports import free_port
from tests.faults.support import CONTENT_TYPE, JOURNALS, SWIFT


@pytest.fixture(autouse=True)
async def _nothing_leaks(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Fail a test which leaves tasks, threads, files or connections behind."""
    monkeypatch.delenv("BROKER_ADDRESS", raising=False)
    async with no_leaks():
        yield


@pytest.fixture
async def proxy() -> AsyncIterator[FaultProxy]:
    async with FaultProxy() as proxy:
        yield proxy


@pytest.fixture
async def broker(proxy: FaultProxy, tmp_path: Path) -> AsyncIterator[EmbeddedBroker]:
    """A broker which tells clients that it's where the proxy is."""
    port = free_port()
    async with EmbeddedBroker(
        tmp_path / "broker",
        port=port,
        advertise=proxy.endpoint,
        fsync="off",
        http_port=None,
        watch_delay=0.0,
    ) as broker:
        proxy.upstream = f"http://127.0.0.1:{port}"
        yield broker


@pytest.fixture
async def client(proxy: FaultProxy, broker: EmbeddedBroker) -> AsyncIterator[JournalClient]:
    async with connect(proxy.endpoint, retry=SWIFT, drain_timeout=5) as client:
        labels = {"content-type": CONTENT_TYPE}
        await create_journals(client, *(journal_spec(name, labels=labels) for name in JOURNALS))
        yield client
