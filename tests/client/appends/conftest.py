from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gazette_aio.client import AppendService, JournalClient, StrictAppendService
from gazette_aio.testing import StubBroker
from tests.client.support import MemoryJournals


@pytest.fixture
async def journals(broker: StubBroker) -> AsyncIterator[MemoryJournals]:
    journals = MemoryJournals(broker)
    yield journals
    journals.gate.set()


@pytest.fixture
async def service(client: JournalClient) -> AsyncIterator[AppendService]:
    async with AppendService(client, drain_timeout=5) as service:
        yield service


@pytest.fixture
async def strict_service(client: JournalClient) -> AsyncIterator[StrictAppendService]:
    async with StrictAppendService(client, drain_timeout=5) as service:
        yield service


@pytest.fixture
def no_memory(client: JournalClient) -> None:
    """No batch may retain content: what's long moves to a file."""
    client.context.append_memory.free_bytes = 0
