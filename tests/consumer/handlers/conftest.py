"""Fixtures of handlers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gazette_aio.client import JournalClient, connect
from tests.consumer.handlers.served import ServedGroup


@pytest.fixture
async def client() -> AsyncIterator[JournalClient]:
    """A client that isn't connected: no test of this fixture reaches a broker."""
    async with connect("http://127.0.0.1:1") as client:
        yield client


@pytest.fixture
async def member(client: JournalClient) -> AsyncIterator[ServedGroup]:
    """A member whose transactions are idle."""
    async with ServedGroup(client) as member:
        yield member
