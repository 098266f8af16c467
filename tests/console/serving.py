"""A console on a broker, and requests to it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import aiohttp

import gazette_aio.protocol as pb
from gazette_aio.client import connect
from gazette_aio.console import Console
from gazette_aio.console.guards import HEADERS

KEYS = "c2VjcmV0"


@asynccontextmanager
async def serving(broker: Any, **options: Any) -> AsyncIterator[aiohttp.ClientSession]:
    """Serve a console, and return a session whose paths are those of the console.

    Args:
        broker: Broker, or client of brokers, whose endpoint the console calls.
        **options: Options of the console.
    """
    console = Console(lambda auth: connect(broker.endpoint, auth=auth), **options)
    await console.start()
    try:
        async with aiohttp.ClientSession(console.url) as session:
            yield session
    finally:
        await console.stop(1.0)


async def asked(
    session: aiohttp.ClientSession,
    path: str,
    status: int = 200,
    *,
    body: Any = None,
    **headers: str,
) -> Any:
    """Return the answer to a request, which has a status and all headers of the console."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    method = "GET" if body is None else "POST"
    async with session.request(method, path, json=body, headers=named) as response:
        assert response.status == status, await response.text()
        require_headers(response)
        return await response.json()


def require_headers(response: aiohttp.ClientResponse) -> None:
    """Require all headers of the console."""
    assert {name: response.headers.get(name) for name in HEADERS} == HEADERS


async def next_event(response: aiohttp.ClientResponse) -> Any:
    """Return the data of the next event of a tail, or None if it has no data."""
    lines: list[bytes] = []
    while (line := await response.content.readline()) != b"\n":
        assert line, "the tail ended"
        lines.append(line)
    data = [line for line in lines if line.startswith(b"data: ")]
    return json.loads(data[0][6:]) if data else None


async def bearer(capability: int, selector: str = "") -> str:
    """Return the Authorization header of a token of KEYS."""
    claims = pb.Claims(
        capability=pb.Capability(capability), selector=pb.parse_label_selector(selector)
    )
    metadata = await pb.KeyedAuth(KEYS).authorize(claims, timedelta(minutes=1))
    return dict(metadata)["authorization"]
