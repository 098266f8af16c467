"""Fixtures of shards."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gazette_aio.client import JournalClient
from tests.consumer.shards.group import Group


@pytest.fixture
async def group(client: JournalClient) -> AsyncIterator[Group]:
    """A member whose transactions are idle."""
    async with Group(client) as group:
        yield group
