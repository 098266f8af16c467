"""Listener of HTTP servers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import TYPE_CHECKING, Any, Self

from gazette_aio.protocol.errors import ListenError
from gazette_aio.serving.address import listen_address
from gazette_aio.serving.listening import bound_listener, listen_failure

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable

_logger = logging.getLogger(__name__)

_HANDSHAKE_SECONDS = 10.0
_SHUTDOWN_SECONDS = 0.5
PAUSE_SECONDS = 1.0
_BACKLOG = 100


class Listener:
    """Accepts connections, and starts their protocol after the handshake of TLS, if any.

    A server of the event loop doesn't know connections during their handshake, and can't end them.
    If the process has no free descriptor, it logs many errors.

    Args:
        sockets: Bound sockets, which are closed at the end.
        factory: Makes the protocol of a connection.
        context: Context of TLS; None is plain HTTP.
    """

    def __init__(
        self,
        sockets: Iterable[socket.socket],
        factory: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext | None,
    ) -> None:
        self.sockets: tuple[socket.socket, ...] = tuple(sockets)
        self._factory = factory
        self._options: dict[str, Any] = {}
        if context is not None:
            self._options["ssl"] = context
            self._options["ssl_handshake_timeout"] = _HANDSHAKE_SECONDS
            self._options["ssl_shutdown_timeout"] = _SHUTDOWN_SECONDS
        self._is_warned = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepted: set[socket.socket] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}

    @classmethod
    async def bound(
        cls,
        factory: Callable[[], asyncio.Protocol],
        host: str,
        port: int,
        context: ssl.SSLContext | None,
    ) -> Self:
        """Return a listener that is bound to an address, and doesn't accept connections yet.

        Args:
            factory: As of the class.
            host: Address to listen on; empty is all of them.
            port: Port; zero takes any that is free on all of the host's addresses.
            context: As of the class.

        Raises:
            ListenError: The address can't be listened on.

        Cancellation: safe.
        """
        try:
            server = await bound_listener(factory, host, port)
        except OSError as error:
            raise ListenError(
                f"unable to listen on {listen_address(host, port)}: {listen_failure(error)}"
            ) from error
        listener = cls([each.dup() for each in server.sockets], factory, context)
        server.close()
        return listener

    def __repr__(self) -> str:
        return f"<Listener sockets={len(self.sockets)} tasks={len(self._tasks)}>"

    async def start_serving(self) -> None:
        """Begin to accept connections.

        Cancellation: safe.
        """
        self._loop = asyncio.get_running_loop()
        for each in self.sockets:
            each.settimeout(0)
            each.listen(_BACKLOG)
            self._loop.add_reader(each, self._accept, each)

    def close(self) -> None:
        """Stop listening, and end the connections in their handshake. Idempotent."""
        for pause in self._pauses.values():
            pause.cancel()
        for each in self.sockets:
            if self._loop is not None and each.fileno() >= 0:
                self._loop.remove_reader(each)
            each.close()
        for task in self._tasks:
            task.cancel()
        # Race: a task that is cancelled before it begins never sees its connection.
        for each in self._accepted:
            each.close()
        self._accepted.clear()

    async def wait_closed(self) -> None:
        """Wait for the end of the handshakes.

        Cancellation: safe.
        """
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))

    def _accept(self, listener: socket.socket) -> None:
        assert self._loop is not None, "not serving"
        try:
            connection, _ = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):
            return  # It's gone again.
        except OSError as error:
            if not self._is_warned:
                self._is_warned = True
                _logger.warning(
                    "unable to accept connections, which wait: %s (see `ulimit -n`)", error.strerror
                )
            self._loop.remove_reader(listener)
            self._pauses[listener] = self._loop.call_later(
                PAUSE_SECONDS, self._loop.add_reader, listener, self._accept, listener
            )
            return
        self._is_warned = False
        connection.settimeout(0)
        self._accepted.add(connection)
        task = asyncio.ensure_future(self._agree(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _agree(self, connection: socket.socket) -> None:
        self._accepted.discard(connection)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._factory, connection, **self._options
            )
        except OSError as error:  # Errors of TLS are such, too.
            _logger.debug("no TLS was agreed on", extra={"error": str(error)})
        except asyncio.CancelledError:
            # Race: the event loop forgets a connection whose handshake hasn't begun.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            raise
