from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gazette_aio import connect
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import JournalClient, RetryPolicy
from gazette_aio.testing.leaks import no_leaks


@pytest.fixture(autouse=True)
async def _nothing_leaks() -> AsyncIterator[None]:
    """Fail a test which leaves tasks, threads, files or connections behind."""
    async with no_leaks():
        yield


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[EmbeddedBroker]:
    async with EmbeddedBroker(fsync="off", file_root=tmp_path, http_port=None) as broker:
        yield broker


@pytest.fixture
async def client(broker: EmbeddedBroker, tmp_path: Path) -> AsyncIterator[JournalClient]:
    retry = RetryPolicy(backoff=lambda attempt: 0.0)
    async with connect(broker.endpoint, retry=retry, file_root=str(tmp_path)) as client:
        yield client


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory to recover files in, which is missing yet."""
    return tmp_path / "recovered"
