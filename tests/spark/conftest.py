"""Fixtures of Spark's tests: brokers with stores, and streaming queries."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import JournalClient
from tests.spark.stream_queries import World


@pytest.fixture
def gazette_broker_options(tmp_path: Path) -> dict[str, Any]:
    """Options of brokers whose complete fragments go to a store at once."""
    (tmp_path / "fragments").mkdir()
    return {"file_root": tmp_path / "fragments", "persist_delay": 0.0}


@pytest.fixture
async def world(
    gazette_broker: EmbeddedBroker, gazette_client: JournalClient, tmp_path: Path
) -> AsyncIterator[World]:
    """Journals, and streaming queries of them."""
    world = World(gazette_broker, gazette_client, tmp_path / "fragments")
    yield world
    await world.aclose()
