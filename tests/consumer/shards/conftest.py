"""Fixtures of shards."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gazette_aio.client import JournalClient, connect
from tests.consumer.shards.group import Group


@pytest.fixture
async def client() -> AsyncIterator[JournalClient]:
    """A client that isn't connected: no test of this fixture reaches a broker."""
    async with connect("http://127.0.0.1:1") as client:
        yield client


@pytest.fixture
async def group(client: JournalClient) -> AsyncIterator[Group]:
    """A member whose transactions are idle."""
    async with Group(client) as group:
        yield group
