"""Server of the gRPC library, which reports the end of its serving loop."""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import warnings
from typing import TYPE_CHECKING, Any, cast

import grpc.aio

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

_Options = tuple[tuple[str, Any], ...]


def library_server(
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    options: _Options = (),
    on_failure: Callable[[Exception], object] | None = None,
) -> grpc.aio.Server:
    """Return a server of `grpc.aio`.

    Wire: in grpcio 1.85, but not in 1.71, one request whose path isn't UTF-8 ends the loop in which
    the library accepts requests. No public API reports the end, so this server observes the loop.

    Args:
        interceptors: Interceptors of calls.
        options: Arguments of the library.
        on_failure: Called when the loop fails, if given. The server accepts no further requests
            then, and has to be stopped.
    """
    # Guard: without it, the library is built in another way.
    if not hasattr(_Base, "_server_main_loop"):
        return grpc.aio.server(interceptors=interceptors, options=options)
    # Made by parts: a server of the library that's never started can't be dropped safely.
    loop = asyncio.get_running_loop()
    server: Any = object.__new__(_OwnedServer)
    server._loop = loop
    server._server = _ObservedServer(loop, None, (), tuple(interceptors) or None, options, None)
    server._server.on_failure = on_failure
    return cast("grpc.aio.Server", server)


_Server: Any = importlib.import_module("grpc.aio._server").Server
_incref: Any = ctypes.pythonapi.Py_IncRef
# It has no types.
_Base: Any = getattr(importlib.import_module("grpc._cython.cygrpc"), "AioServer", object)


class _OwnedServer(_Server):  # type: ignore[misc]
    """Server that may be forgotten before it's stopped.

    The library waits for the end of a server's calls when it destroys the server. Once the event
    loop is closed, that end never comes, and the process would hang.
    """

    _is_started = False

    async def start(self) -> None:
        self._is_started = True
        await _Server.start(self)

    async def stop(self, grace: float | None) -> None:
        await _Server.stop(self, grace)
        self._is_started = False

    def __del__(self) -> None:
        if not self._is_started:
            return
        # Invariant: it's never destroyed, even when the interpreter ends and clears its modules.
        _incref(ctypes.py_object(self._server))
        if not self._loop.is_closed():
            _Server.__del__(self)
        # Last, as filters may make it an error.
        warnings.warn("a gRPC server was not stopped", ResourceWarning, source=self, stacklevel=2)


class _ObservedServer(_Base):  # type: ignore[misc]
    """Server of the library whose loop reports its failure, and ends without an error."""

    on_failure: Callable[[Exception], object] | None

    async def _request_call(self) -> Any:
        return await _Kept(self, _Base._request_call(self))

    async def _server_main_loop(self, started: asyncio.Future[bool]) -> None:
        try:
            await _Base._server_main_loop(self, started)
        except Exception as error:
            if not started.done():
                raise
            # A failure would keep the library from ending the server.
            if self.on_failure is not None:
                self.on_failure(error)


class _Kept:
    """Awaits the next request. If a running server is cancelled, nothing of it is destroyed.

    The library writes the request into memory of the coroutine, even if the event loop has
    cancelled all tasks.
    """

    def __init__(self, server: Any, coroutine: Any) -> None:
        self._server = server
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, None, Any]:
        while True:
            try:
                waited = self._coroutine.send(None)
            except StopIteration as end:
                return end.value
            try:
                yield waited
            except BaseException:
                if self._server.is_running():
                    _incref(ctypes.py_object(self._coroutine))
                    _Unstopped()
                raise


class _Unstopped:
    """Warns when it's destroyed, where a warning that's made an error can't interrupt a task."""

    def __del__(self) -> None:
        warnings.warn("a gRPC server was not stopped", ResourceWarning, stacklevel=2)
