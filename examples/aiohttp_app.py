"""The web service of `fastapi_app`, for aiohttp.

python -m aiohttp.web examples.aiohttp_app:create_app
"""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from gazette_aio import BrokerStatusError, OperationTimeoutError
from gazette_aio.contrib.aiohttp_web import CLIENT, client_context
from gazette_aio.contrib.health import problems

JOURNAL = "examples/events"
TIMEOUT = 5.0
"""Seconds within which a request is answered, and pending events are written at the end."""


async def post_event(request: web.Request) -> web.Response:
    """Append an event as one line of JSON, and tell where it is."""
    event = msgspec.json.decode(await request.read(), type=dict[str, Any])
    async with request.app[CLIENT].appends.append(JOURNAL) as pending:
        pending.write(msgspec.json.encode(event) + b"\n")
    try:
        await pending
    except BrokerStatusError as error:
        return web.json_response({"detail": str(error)}, status=503)
    except OperationTimeoutError as error:
        # The event stays pending, and is stored as soon as a broker takes it.
        return web.json_response({"detail": str(error)}, status=504)
    begin, end = pending.commit_range
    return web.json_response({"journal": JOURNAL, "begin": begin, "end": end}, status=201)


async def ready(request: web.Request) -> web.Response:
    """Tell whether events can be taken: a readiness probe."""
    found = problems(request.app[CLIENT])
    return web.json_response({"detail": found}, status=503 if found else 200)


def create_app(_argv: list[str] | None = None) -> web.Application:
    """Return the application."""
    app = web.Application()
    app.cleanup_ctx.append(client_context(timeout=TIMEOUT, drain_timeout=TIMEOUT))
    app.router.add_post("/events", post_event)
    app.router.add_get("/ready", ready)
    return app
