"""Fixtures of transactions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gazette_aio.client import JournalClient
from tests.consumer.transactions.world import serve


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[JournalClient]:
    """A client of an embedded broker with the journals of the world."""
    async with serve(tmp_path) as client:
        yield client
