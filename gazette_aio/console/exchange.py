"""Requests of the page, and answers to them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from aiohttp import web

import gazette_aio.protocol as pb
from gazette_aio.console.guards import bearer_token

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from gazette_aio.client import JournalClient
    from gazette_aio.consumer.api import ShardClient

    OpenClient = Callable[[pb.Authorizer], AbstractAsyncContextManager[JournalClient]]
    """Opens a client that authorizes its calls as it's told."""

    OpenShards = Callable[[pb.Authorizer], AbstractAsyncContextManager[ShardClient]]
    """Opens a client of the members of a consumer, as OpenClient does of brokers."""

T = TypeVar("T")

MAX_ROWS: Final = 200
"""Most rows of an answer, and items of a request."""
MAX_BODY_BYTES: Final = 256 << 10
"""Most bytes of a request."""
BODY_SECONDS = 10.0
"""Seconds within which the body of a request must arrive."""
CALL_SECONDS: Final = 20.0
"""Seconds of a call to brokers or members."""
HEAD_SECONDS: Final = 5.0
"""Seconds within which a broker must answer with a write head."""

_JSON: Final = "application/json; charset=utf-8"


def credentials(request: web.Request) -> pb.Authorizer:
    """Return the authorizer of the browser's token, or an authorizer without a token.

    Raises:
        ValueError: The header has no token.
    """
    token = bearer_token(request.headers.get("Authorization"))
    return pb.NoopAuth() if token is None else pb.BearerAuth(token)


def part(request: web.Request) -> tuple[int, int]:
    """Return the first row and the number of rows of the part of a list that a request wants.

    Raises:
        ValueError: A parameter isn't a number.
    """
    offset, limit = (
        _number(request.query.get(name, default))
        for name, default in (("offset", "0"), ("limit", "100"))
    )
    return offset, min(limit, MAX_ROWS)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError("expected a number that isn't negative")
    return int(text)


async def body(request: web.Request, form: type[T]) -> T:
    """Return the body of a request.

    Raises:
        ValidationError: The body isn't of this form.
        HTTPRequestEntityTooLarge: The body is too large.
        HTTPRequestTimeout: The body hasn't arrived in time.

    Cancellation: aborts — the request fails.
    """
    try:
        async with asyncio.timeout(BODY_SECONDS):
            content = await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout from None
    return msgspec.json.decode(content, type=form)


def answer(view: Any) -> web.Response:
    """Return an answer of JSON."""
    return web.Response(body=msgspec.json.encode(view), headers={"Content-Type": _JSON})


def failure(status: int, problem: str) -> web.Response:
    """Return the answer to a request that failed."""
    encoded = msgspec.json.encode({"problem": problem})
    return web.Response(status=status, body=encoded, headers={"Content-Type": _JSON})
