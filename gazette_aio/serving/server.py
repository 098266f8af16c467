"""gRPC server: its address, its limits, and its planned stop."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import grpc

import gazette_aio.protocol as pb
from gazette_aio.aio.finish import finish
from gazette_aio.aio.task import start_task
from gazette_aio.serving.address import listen_address
from gazette_aio.serving.calls import CallsOfOthers
from gazette_aio.serving.connections import Connections
from gazette_aio.serving.library import library_server
from gazette_aio.serving.listening import probe
from gazette_aio.serving.unix_socket import UnixSocket

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from pathlib import Path

    import grpc.aio

    from gazette_aio.serving.drain import Drain
    from gazette_aio.serving.extras import Health


_logger = logging.getLogger(__name__)

_MAX_METADATA_BYTES = 64 << 10
"""Longest metadata of a call: tokens travel there, and claims with many selectors are long."""
_MAX_PENDING_CALLS = 1 << 14
"""Calls that may wait to be served. Beyond this limit, the library cancels calls at random."""
MAX_PENDING_SECONDS = 600
"""Time that a call may wait, while the event loop is busy, before the library cancels it."""
_LINGER_SECONDS = 2.0
"""Longest wait for clients to read the ends of their connections."""


class GrpcServer:
    """A server on `grpc.aio` that listens on one address.

    Args:
        handlers: The services.
        drain: Knows the calls of these services, and refuses them during a planned stop.
        max_receive_bytes: Longest message which is accepted.
        health: Health service among `handlers`; it reports the end of the server.
        others: Whether there may be services that don't register calls with the drain.
    """

    def __init__(
        self,
        handlers: Iterable[grpc.GenericRpcHandler],
        drain: Drain,
        *,
        max_receive_bytes: int = 4 << 20,
        health: Health | None = None,
        others: bool = False,
    ) -> None:
        self._handlers = tuple(handlers)
        self._drain = drain
        self._max_receive_bytes = max_receive_bytes
        self._health = health
        self._others = others
        self._server: grpc.aio.Server | None = None
        self._socket: UnixSocket | None = None
        self._connections: Connections | None = None
        self._bind_anew: Callable[[], Awaitable[None]] | None = None
        self._reviving: asyncio.Task[None] | None = None
        self._is_started = False

    def __repr__(self) -> str:
        return f"<GrpcServer {'running' if self._server else 'stopped'}>"

    def add(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Serve further services. Call it before `start()`."""
        added = tuple(handlers)
        self._handlers += added
        if self._server is not None:
            self._server.add_generic_rpc_handlers(added)

    def bind(self, host: str, port: int, credentials: grpc.ServerCredentials | None = None) -> int:
        """Listen on an address, and return the port. Needs a running event loop.

        Args:
            host: The address.
            port: The port; zero takes any free one.
            credentials: Credentials of TLS; None is plaintext.

        Raises:
            ListenError: The address can't be listened on.
        """
        port = self._bind(host, port, credentials)

        async def bind_anew() -> None:
            self._bind(host, port, credentials)

        self._bind_anew = bind_anew
        return port

    def _bind(self, host: str, port: int, credentials: grpc.ServerCredentials | None) -> int:
        server = self._new_server()
        address = listen_address(host, port)
        try:
            if credentials is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, credentials)
        except RuntimeError as error:
            # Wire: gRPC has the reason in the text of its log only.
            reason = probe(host, port) or "the library doesn't say why"
            raise pb.ListenError(f"unable to listen on {address}: {reason}") from error
        self._connections = Connections(host, port)
        self._connections.leave_children(server)
        return port

    async def bind_socket(self, path: Path, mode: int) -> None:
        """Listen on a Unix socket.

        Args:
            path: Absolute path of the socket.
            mode: Permissions of its file.

        Raises:
            ListenError: The path can't be listened on.

        Cancellation: safe.
        """
        # Set first: the library leaves the file behind of a server which was never started.
        socket = self._socket = UnixSocket(path, mode)

        async def bind() -> None:
            server = self._new_server()
            try:
                await socket.bind(lambda: server.add_insecure_port(f"unix:{path}"))
            except RuntimeError as error:
                raise pb.ListenError(f"unable to listen on unix://{path}") from error
            self._connections = Connections("", path)
            self._connections.leave_children(server)

        await bind()
        self._bind_anew = bind

    async def start(self) -> None:
        """Begin to answer.

        Cancellation: safe — raised once the server has started, so that it can be stopped.
        """
        assert self._server is not None, "not bound"
        self._is_started = True
        # The task of the library that serves calls fails if the start is cancelled.
        await finish(self._server.start())

    async def stop(self, grace: float) -> None:
        """Serve the calls in progress within `grace` seconds, refuse all others, and end.

        Idempotent. Calls that aren't served fail as UNAVAILABLE.

        Cancellation: safe — takes effect when the server has ended.
        """
        while (reviving := self._reviving) is not None and not reviving.done():
            await finish(asyncio.wait((reviving,)))
        server, self._server = self._server, None
        started, self._is_started = self._is_started, False
        socket, self._socket = self._socket, None
        if self._health is not None:
            self._health.end()
        try:
            if server is not None and not started:
                await finish(_unbind(server))
            elif server is not None:
                await finish(self._end(server, grace))
        finally:
            self._bind_anew = None  # It's a cycle.
            if socket is not None:
                socket.remove()

    def _new_server(self) -> grpc.aio.Server:
        server = self._server = library_server(
            (CallsOfOthers(self._drain),) if self._others else (),
            (
                ("grpc.max_receive_message_length", self._max_receive_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
                ("grpc.absolute_max_metadata_size", _MAX_METADATA_BYTES),
                ("grpc.so_reuseport", 0),
                ("grpc.server.max_pending_requests", _MAX_PENDING_CALLS),
                ("grpc.server.max_pending_requests_hard_limit", _MAX_PENDING_CALLS),
                ("grpc.server_max_unrequested_time_in_server", MAX_PENDING_SECONDS),
            ),
            self._fail,
        )
        server.add_generic_rpc_handlers(self._handlers)
        return server

    def _fail(self, error: Exception) -> None:
        """Replace the library's server, which stopped serving because of a request."""
        if self._is_started and (server := self._server) is not None:
            _logger.error(
                "the gRPC library can't read a request, and stopped serving: it's started anew",
                extra={"error": repr(error)},
            )
            self._reviving = start_task(self._revive(server), "gazette revival of a gRPC server")

    async def _revive(self, failed: grpc.aio.Server) -> None:
        # Calls in progress end: the library doesn't learn of their messages any longer.
        await failed.stop(None)
        assert self._bind_anew is not None, "not bound"
        try:
            await self._bind_anew()
            assert self._server is not None
            await self._server.start()
        except pb.ConfigurationError:
            self._server, self._is_started = None, False
            _logger.exception("the gRPC server can't be started anew")

    async def _end(self, server: grpc.aio.Server, grace: float) -> None:
        await self._drain.finish(grace)
        # Invariant: whatever arrives from here on has no effect, nor an answer. Clients see the end
        # of their connections, before the library would cancel any of it.
        assert self._connections is not None, "not bound"
        await self._connections.finish(_LINGER_SECONDS)
        await server.stop(None)


async def _unbind(server: grpc.aio.Server) -> None:
    # The library ends nothing of a server that was never started, which would keep its listeners.
    await server.start()
    await server.stop(None)
