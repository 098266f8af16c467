"""Clients of web services: lifespan, dependency, context, and health."""

from __future__ import annotations

import subprocess
import sys
from contextlib import asynccontextmanager
from typing import Annotated, Any

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from fastapi import Depends, FastAPI

from gazette_aio import JournalClient, connect
from gazette_aio.client import AppendStatus, ClientStatus, WatchStatus
from gazette_aio.contrib.aiohttp_web import CLIENT, client_context
from gazette_aio.contrib.asgi import STATE, client_lifespan, journal_client
from gazette_aio.contrib.health import probe, problems, status_problems

Client = Annotated[JournalClient, Depends(journal_client)]
NOTHING = AppendStatus(0, 0, 0, 0, 0)


def status(**changes: Any) -> ClientStatus:
    fields = {
        "endpoint": "http://broker:8080",
        "connection": "ready",
        "members": (),
        "streams": (),
        "watches": (),
        "appends": NOTHING,
    }
    return ClientStatus(**{**fields, **changes})


def watching(error: str | None) -> WatchStatus:
    return WatchStatus(selector="a=b", state="watching", journals=1, revision=1, last_error=error)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (status(), None),
        (status(connection="idle"), None),
        (status(watches=(watching(None),)), None),
        (status(appends=AppendStatus(1, 1, 1, 100, 0)), None),
        (
            status(connection="transient_failure"),
            "the connection to http://broker:8080 is in state transient_failure",
        ),
        (status(connection="closed"), "the connection to http://broker:8080 is in state closed"),
        (status(appends=AppendStatus(1, 1, 1, 101, 0)), "101 bytes wait to be appended"),
        (
            status(appends=AppendStatus(0, 0, 0, 0, 2)),
            "appends to 2 journals fail until clear_error()",
        ),
        (
            status(watches=(watching("it broke"),)),
            "the list of journals 'a=b' isn't current: it broke",
        ),
    ],
)
def test_problems_of_a_status(found: ClientStatus, text: str | None):
    assert status_problems(found, max_pending_bytes=100) == (() if text is None else (text,))


async def test_probe(gazette_broker):
    async with connect(gazette_broker.endpoint) as client:
        assert await probe(client) == ()
        with gazette_broker.control.keep("list", fail="PERMISSION_DENIED"):
            (text,) = await probe(client)
        assert problems(client) == ()
    assert text.startswith("PERMISSION_DENIED")
    assert problems(client) != ()


def service(**options: Any) -> FastAPI:
    app = FastAPI(**options)

    @app.get("/")
    async def name(client: Client) -> str:
        return client.endpoint

    return app


async def get(app: Any) -> httpx.Response:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://app") as browser:
        return await browser.get("/")


async def test_lifespan_and_dependency(gazette_broker):
    app = service(lifespan=client_lifespan(gazette_broker.endpoint, timeout=5))

    async with app.router.lifespan_context(app):
        answer = await get(app)

    assert answer.json() == gazette_broker.endpoint
    client: JournalClient = app.state.gazette
    assert client.status().connection in ("idle", "closed")
    assert client.context.timeout == 5


async def test_state_of_a_request_comes_first(gazette_broker):
    @asynccontextmanager
    async def lifespan(app: FastAPI):
        async with client_lifespan("http://127.0.0.1:1")(app) as state:
            yield state

    app = service(lifespan=lifespan)
    async with app.router.lifespan_context(app), connect(gazette_broker.endpoint) as client:

        async def with_state(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "state": {STATE: client}}, receive, send)

        assert (await get(app)).json() == "http://127.0.0.1:1"
        assert (await get(with_state)).json() == gazette_broker.endpoint


async def test_without_the_lifespan():
    with pytest.raises(RuntimeError, match="lifespan=client_lifespan"):
        await get(service())


async def test_cleanup_context(gazette_broker):
    app = web.Application()
    app.cleanup_ctx.append(client_context(gazette_broker.endpoint, timeout=5))

    async def name(request: web.Request) -> web.Response:
        return web.Response(text=request.app[CLIENT].endpoint)

    app.router.add_get("/", name)
    async with TestClient(TestServer(app)) as browser:
        answer = await browser.get("/")
        assert await answer.text() == gazette_broker.endpoint

    assert app[CLIENT].context.timeout == 5


def test_without_starlette():
    code = "import sys; sys.modules['starlette.requests'] = None; import gazette_aio.contrib.asgi"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert "needs starlette: pip install 'gazette-aio[asgi]'" in done.stderr
