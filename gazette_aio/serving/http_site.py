"""Addresses of HTTP servers, and bounds of their connections."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from aiohttp import web

from gazette_aio.serving.connections import Connections
from gazette_aio.serving.listener import Listener

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Collection

    from aiohttp.abc import AbstractStreamWriter
    from aiohttp.http_parser import RawRequestMessage
    from aiohttp.streams import StreamReader

FIRST_REQUEST_SECONDS = 10.0
_KEEP_ALIVE_SECONDS = 75.0
LINGERING_SECONDS = 2.0
_ALLOWED_HEADERS = (
    "Cache-Control, Content-Language, Content-Length, Content-Type, Expires, Last-Modified, "
    "Pragma, Authorization"
)


def cors_headers(request: web.BaseRequest, allowed: Collection[str]) -> dict[str, str]:
    """Return headers of a response by which scripts of allowed origins may read it in a browser."""
    origin = request.headers.get("Origin", "")
    if not allowed:
        return {}
    # The answer depends on the origin: caches have to know.
    if origin not in allowed:
        return {"Vary": "Origin"}
    return {
        "Vary": "Origin",
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
        "Access-Control-Allow-Headers": _ALLOWED_HEADERS,
    }


class BoundedConnection(web.RequestHandler):
    """A connection of a client, which ends unless the head of a first request arrives in time.

    The library bounds the time between requests, but hardly the time before the first request.
    """

    def __init__(self, server: web.Server, **options: Any) -> None:
        # Typed as though there were always a log.
        options["access_log"] = None
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=_KEEP_ALIVE_SECONDS,
            lingering_time=LINGERING_SECONDS,
            **options,
        )
        self._link: asyncio.Transport | None = None
        self._first_request: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Follow a connection from its beginning."""
        super().connection_made(transport)
        # Transports of other event loops have the methods, but not the class.
        self._link = cast("asyncio.Transport", transport)
        loop = asyncio.get_running_loop()
        self._first_request = loop.call_later(FIRST_REQUEST_SECONDS, self._link.abort)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Follow a connection to its end."""
        super().connection_lost(exc)
        self.stop_waiting()
        self._link = None

    def stop_waiting(self) -> None:
        """Let the connection stay: the head of a request has arrived. Idempotent."""
        if self._first_request is not None:
            self._first_request.cancel()
            self._first_request = None


class BoundedServer(web.Server):
    """Accepts connections, and calls a function with each request.

    Args:
        answer: Answers a request. It's cancelled when the client is gone.
        request: Makes a request of its head, its body, its connection and more.
    """

    def __init__(
        self,
        answer: Callable[[Any], Awaitable[web.StreamResponse]],
        request: Callable[..., web.BaseRequest],
    ) -> None:
        super().__init__(answer, request_factory=self._arrived, handler_cancellation=True)
        self._request = request

    def __call__(self) -> BoundedConnection:
        """Return the protocol of a new connection."""
        return BoundedConnection(self)

    def _arrived(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: web.RequestHandler,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
    ) -> web.BaseRequest:
        assert isinstance(protocol, BoundedConnection)
        protocol.stop_waiting()
        return self._request(message, payload, protocol, writer, task)


class SiteRunner(web.AppRunner):
    """Runs an application, whose connections are bounded."""

    def __init__(self, app: web.Application) -> None:
        super().__init__(app)
        self._listener: Listener | None = None

    async def listen(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> int:
        """Set up, listen on an address, and return the port.

        Args:
            host: Address to listen on; empty is all of them.
            port: Port; zero takes any that is free on all of the host's addresses.
            tls: Context of HTTPS; None is plain HTTP.

        Raises:
            ListenError: The address can't be listened on.

        Cancellation: safe — the caller cleans up.
        """
        await self.setup()
        assert self.server is not None, "not set up"
        listener = self._listener = await Listener.bound(self.server, host, port, tls)
        await listener.start_serving()
        found: int = listener.sockets[0].getsockname()[1]
        Connections(host, found).leave_children(self.server)
        return found

    async def stop_listening(self) -> None:
        """Accept no further connections. Idempotent.

        Cancellation: safe — call again.
        """
        if self._listener is not None:
            self._listener.close()
            await self._listener.wait_closed()

    async def cleanup(self) -> None:
        """Stop listening, and end the connections. Idempotent.

        Cancellation: safe — call again.
        """
        await self.stop_listening()
        await super().cleanup()

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        return BoundedServer(made.request_handler, made.request_factory)
