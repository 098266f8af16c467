"""Fixtures of tests that read topics."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gazette_aio.aio.finish import finish
from gazette_aio.message.publishing import intents
from gazette_aio.testing import no_leaks


@pytest.fixture
async def nothing_leaks():
    async with no_leaks():
        yield


@pytest.fixture
def quick_leaving(monkeypatch):
    monkeypatch.setattr("gazette_aio.message.reading.pump.LEAVING_SECONDS", 0.01)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch):
    """Run what goes to threads within the loop, so that suspensions are the same each time."""

    async def call(function: Any, *args: Any, **options: Any):
        await asyncio.sleep(0)
        result = function(*args, **options)
        await asyncio.sleep(0)
        return result

    async def called(*given: Any, **options: Any) -> Any:
        return await finish(call(*given, **options))

    monkeypatch.setattr(intents, "in_thread", called)
