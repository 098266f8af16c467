from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import JournalClient, RetryPolicy, connect
from gazette_aio.testing.leaks import no_leaks
from gazette_aio.testing.specs import create_journals, journal_spec
from tests.consumer.recoverylog.recorder.support import LOG, OTHER_LOG


@pytest.fixture(autouse=True)
async def _nothing_leaks() -> AsyncIterator[None]:
    async with no_leaks():
        yield


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[EmbeddedBroker]:
    async with EmbeddedBroker(tmp_path / "broker", fsync="off") as broker:
        yield broker


@pytest.fixture
async def client(broker: EmbeddedBroker) -> AsyncIterator[JournalClient]:
    instant = RetryPolicy(backoff=lambda attempt: 0.0)
    async with connect(broker.endpoint, retry=instant, drain_timeout=5) as client:
        await create_journals(client, journal_spec(LOG), journal_spec(OTHER_LOG))
        yield client
