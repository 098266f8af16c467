"""Fixtures of the broker's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gazette_aio.broker import EmbeddedBroker
from tests.broker.caller import Caller, calling


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[EmbeddedBroker]:
    """A broker of the test's own, which doesn't sync."""
    async with EmbeddedBroker(tmp_path / "data", fsync="off", persist_delay=0.0) as broker:
        yield broker


@pytest.fixture
async def caller(broker: EmbeddedBroker) -> AsyncIterator[Caller]:
    """Calls of `broker`."""
    async with calling(broker.endpoint) as caller:
        yield caller
