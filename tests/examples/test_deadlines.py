"""The services of the examples, without a broker."""

from __future__ import annotations

import httpx
import pytest

from gazette_aio.contrib.asgi import client_lifespan
from gazette_aio.testing.ports import free_port


async def test_services_answer_in_time_if_the_broker_is_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from aiohttp.test_utils import TestClient, TestServer

    from examples import aiohttp_app, fastapi_app

    monkeypatch.setenv("BROKER_ADDRESS", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setattr(aiohttp_app, "TIMEOUT", 0.2)
    transport = httpx.ASGITransport(fastapi_app.app)
    async with (
        client_lifespan(timeout=0.2, drain_timeout=0.2)(fastapi_app.app),
        httpx.AsyncClient(transport=transport, base_url="http://app") as client,
    ):
        answer = await client.post("/events", json={})
        assert (answer.status_code, "still pending" in answer.text) == (504, True)
    async with TestClient(TestServer(aiohttp_app.create_app())) as browser:
        refusal = await browser.post("/events", json={})
        assert (refusal.status, "still pending" in await refusal.text()) == (504, True)
