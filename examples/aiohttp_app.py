"""The web service of `fastapi_app`, for aiohttp.

python -m aiohttp.web examples.aiohttp_app:create_app
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from gazette_aio import BrokerStatusError, JournalClient, OperationTimeoutError, connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

JOURNAL = "examples/events"
TIMEOUT = 5.0
"""Seconds within which a request is answered, and pending events are written at the end."""
CLIENT = web.AppKey("client", JournalClient)


async def client_context(app: web.Application) -> AsyncIterator[None]:
    """Keep one client for the life of the service."""
    async with connect(timeout=TIMEOUT, drain_timeout=TIMEOUT) as client:
        app[CLIENT] = client
        yield


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


def create_app(_argv: list[str] | None = None) -> web.Application:
    """Return the application."""
    app = web.Application()
    app.cleanup_ctx.append(client_context)
    app.router.add_post("/events", post_event)
    return app
