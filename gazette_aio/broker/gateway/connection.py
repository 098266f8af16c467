"""Connections, requests and responses of the gateway, on its HTTP library."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.http import StreamWriter

from gazette_aio.broker.gateway.answers import CLOSE_ERROR, TEXT, header_value
from gazette_aio.serving.calls import Caller
from gazette_aio.serving.http_site import BoundedConnection, BoundedServer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiohttp.abc import AbstractStreamWriter
    from aiohttp.http_parser import RawRequestMessage
    from aiohttp.streams import StreamReader

_logger = logging.getLogger(__name__)

_MAX_HEADER_BYTES = 64 << 10
_END_SECONDS = 0.1
IDLE_SECONDS = 0.05


class TruncatedBodyError(Exception):
    """A client closed its side of the connection before the end of a body, or sent none."""


class GatewayConnection(BoundedConnection):
    """A connection of a client.

    A client that closes its side may still wait for answers, and a client that is gone looks the
    same. So finite answers are completed, and endless answers are ended.
    """

    def __init__(self, server: GatewayServer, **options: Any) -> None:
        super().__init__(server, **options)
        self._owner = server
        self._body: StreamReader | None = None
        self._half_closed = False
        self._endless = False

    def begin(self, body: StreamReader) -> None:
        """Declare that the request with this body is being answered."""
        self._body = body
        if self._half_closed or self._has_further:
            self._truncate(body)

    def endless(self) -> None:
        """Declare that the response may last as long as the connection.

        Raises:
            ConnectionResetError: The client closed its side already.
        """
        if self._half_closed:
            raise ConnectionResetError("the client has closed the connection")
        self._endless = True

    def finish(self) -> None:
        """Declare that the request is answered. The end of the answer may not be written yet."""
        self._body = None
        self._endless = False
        if self._half_closed:
            self._close_when_idle()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Follow a connection from its beginning."""
        super().connection_made(transport)
        assert self._link is not None
        self._owner.opened(self._link)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Follow a connection to its end."""
        link = self._link
        super().connection_lost(exc)
        if link is not None:
            self._owner.lost(link)

    def data_received(self, data: bytes) -> None:
        """Receive bytes of the client."""
        super().data_received(data)
        # Wire: if the body hasn't ended, the library has found that its rest isn't HTTP. The
        # library doesn't end the body.
        if self._body is not None and self._has_further:
            self._truncate(self._body)

    def eof_received(  # type: ignore[override] # The base keeps to one of the answers.
        self,
    ) -> bool | None:
        """Receive the end of the client's side; return whether the client may still receive."""
        if self._endless:
            return None
        self._half_closed = True
        if self._body is not None:
            self._truncate(self._body)
        else:
            self._close_when_idle()
        # TLS as the event loop speaks it ends both directions together.
        return self._link is None or self._link.get_extra_info("ssl_object") is None

    # The library has no public API for either, and a later release may not have these names. Then
    # garbage after a body is found only by a time-out, and half-closed connections stay a while.

    @property
    def _has_further(self) -> bool:
        """Whether the library holds messages after the present one."""
        return bool(getattr(self, "_messages", ()))

    @property
    def _is_waiting(self) -> bool:
        """Whether the library has written all answers, and waits for a message."""
        waiter: asyncio.Future[None] | None = getattr(self, "_waiter", None)
        return waiter is not None and not waiter.done()

    @staticmethod
    def _truncate(body: StreamReader) -> None:
        if not body.is_eof():
            body.set_exception(TruncatedBodyError())
            body.feed_eof()

    def _close_when_idle(self) -> None:
        asyncio.get_running_loop().call_later(IDLE_SECONDS, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if self._body is not None or self._link is None or self._link.is_closing():
            return
        # Race: an answer may not be written yet, or a received request may not have begun.
        if self._is_waiting:
            self._link.close()
        else:
            self._close_when_idle()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - It tells the client's bytes.
    ) -> web.StreamResponse:
        """Return the response to bytes that aren't HTTP."""
        _logger.debug("bad request", extra={"client": request.remote}, exc_info=exc)
        if isinstance(exc, ConnectionError) or request.writer.output_size > 0:
            raise ConnectionAbortedError("the response is missing or incomplete")
        response = text_response(f"{status} {'Bad Request' if status == 400 else 'Error'}", status)
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kwargs: Any) -> None:
        """Log a failure that a client caused. The gateway logs its own failures."""
        _logger.debug(*args, **kwargs)


async def ask_for_body(request: web.BaseRequest) -> None:
    """Let a client send its body, if it waits for `100 Continue`.

    Cancellation: safe.
    """
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0


def caller_of(request: web.BaseRequest) -> Caller:
    """Return the client of a request."""
    return Caller(lambda: request.headers.get("Authorization"), lambda: request.remote)


def connection_of(request: web.BaseRequest) -> GatewayConnection:
    """Return the connection of a request."""
    connection = request.protocol
    assert isinstance(connection, GatewayConnection)
    return connection


class GatewayRequest(web.BaseRequest):
    """A request of a client."""

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        # Wire: clients aren't told the library and its version.
        response.headers.pop("Server", None)


class GatewayServer(BoundedServer):
    """Accepts connections, and calls a function with each request.

    Args:
        answer: Answers a request. It's cancelled when the client is gone.
    """

    def __init__(self, answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> None:
        super().__init__(answer, _request)
        self._transports: dict[asyncio.Transport, None] = {}
        self._ending = False
        self._empty = asyncio.Event()
        self._empty.set()

    def __call__(self) -> GatewayConnection:
        """Return the protocol of a new connection."""
        return GatewayConnection(
            self,
            auto_decompress=False,  # What's put is what's appended.
            max_line_size=_MAX_HEADER_BYTES,
            max_field_size=_MAX_HEADER_BYTES,  # Tokens may select many labels.
        )

    def __len__(self) -> int:
        return len(self._transports)

    def opened(self, transport: asyncio.Transport) -> None:
        """Take a new connection."""
        if self._ending:
            transport.abort()
        self._transports[transport] = None
        self._empty.clear()

    def lost(self, transport: asyncio.Transport) -> None:
        """Forget a connection."""
        self._transports.pop(transport, None)
        if not self._transports:
            self._empty.set()

    async def end(self) -> None:
        """Close all connections. No request may be in progress.

        Cancellation: safe.
        """
        # Race: a connection may be accepted, but not made yet.
        self._ending = True
        self.pre_shutdown()
        await self.shutdown(_END_SECONDS)
        for transport in list(self._transports):
            if transport.get_write_buffer_size() == 0:
                transport.close()
            else:
                transport.abort()  # The client doesn't take what it's sent.
        await self._empty.wait()


class TrailedResponse(web.StreamResponse):
    """A response whose body is flushed per chunk, and whose trailer has the reason of the end.

    HTTP/1.0 has no trailers: its clients get the body alone.
    """

    def __init__(
        self, request: web.BaseRequest, status: int, headers: list[tuple[str, str]]
    ) -> None:
        super().__init__(status=status)
        self.reason_of_end = ""
        self._writer = request.writer
        if request.version >= (1, 1):
            self.headers["Trailer"] = CLOSE_ERROR
            self.enable_chunked_encoding()
        else:
            self.force_close()  # The end of the connection is that of the body.
        self.headers.extend(headers)

    async def write_eof(self, data: bytes = b"") -> None:
        """Write the end of the body, and the trailer.

        Cancellation: poisons — the connection can't be used any more.
        """
        if self.chunked and not data and isinstance(self._writer, StreamWriter):
            # Wire: the library ends a chunked body without trailers. From here on, the library
            # writes bytes as they are: the last chunk, and the trailer.
            self._writer.chunked = False
            trailer = f"{CLOSE_ERROR}: {header_value(self.reason_of_end)}"
            data = f"0\r\n{trailer}\r\n\r\n".encode("ascii")
        await super().write_eof(data)


def text_response(
    text: str, status: int, headers: list[tuple[str, str]] | None = None
) -> web.Response:
    """Return the response of a failure: its text on a line."""
    response = web.Response(status=status, body=f"{text}\n".encode("utf-8", "replace"))
    response.headers.extend(headers or [])
    response.headers["Content-Type"] = TEXT
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response


def _request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: web.RequestHandler,
    writer: AbstractStreamWriter,
    task: asyncio.Task[None],
) -> GatewayRequest:
    return GatewayRequest(message, payload, protocol, writer, task, asyncio.get_running_loop())
