"""Fixtures of tests that read topics."""

from __future__ import annotations

import pytest

from gazette_aio.testing import no_leaks


@pytest.fixture
async def nothing_leaks():
    async with no_leaks(grace_seconds=20.0):
        yield


@pytest.fixture
def quick_leaving(monkeypatch):
    monkeypatch.setattr("gazette_aio.message.reading.pump.LEAVING_SECONDS", 0.01)
