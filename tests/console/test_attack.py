"""Short form of the attacks on the console."""

from __future__ import annotations

from benchmarks.attacks import console
from gazette_aio.console import exchange
from gazette_aio.serving import http_site
from tests.extent import seed


async def test_attacks_change_nothing_and_end(monkeypatch):
    monkeypatch.setattr(http_site, "FIRST_REQUEST_SECONDS", 0.5)
    monkeypatch.setattr(exchange, "BODY_SECONDS", 0.5)
    await console.attack(0, seed())
