"""Client of a service of aiohttp: a context for `cleanup_ctx`.

app.cleanup_ctx.append(client_context(timeout=5))
...
await request.app[CLIENT].append("a/journal", b"content")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiohttp import web

from gazette_aio.client import JournalClient, connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from typing import Unpack

    from gazette_aio.client import ClientOptions

CLIENT: Final = web.AppKey("gazette", JournalClient)
"""Key of the client in the application."""


def client_context(
    address: str | None = None, **options: Unpack[ClientOptions]
) -> Callable[[web.Application], AsyncIterator[None]]:
    """Return a context with one client for the life of an application.

    At the end, also after SIGTERM, the server first waits for requests, up to `shutdown_timeout` of
    `web.run_app()`. The client then waits for pending appends, up to `drain_timeout` (30 seconds by
    default), and cancels the rest.

    Args:
        address: Endpoint of a broker, as for `connect()`.
        **options: Options of `connect()`.
    """

    async def context(app: web.Application) -> AsyncIterator[None]:
        async with connect(address, **options) as client:
            app[CLIENT] = client
            yield

    return context
