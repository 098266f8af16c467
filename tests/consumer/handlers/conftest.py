"""Fixtures of handlers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gazette_aio.client import JournalClient
from tests.consumer.handlers.served import ServedGroup


@pytest.fixture
async def member(client: JournalClient) -> AsyncIterator[ServedGroup]:
    """A member whose transactions are idle."""
    async with ServedGroup(client) as member:
        yield member
