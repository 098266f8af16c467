"""The gRPC front end: a thin shell over the services, on `grpc.aio`."""

from __future__ import annotations

import asyncio
import importlib
import logging
from typing import TYPE_CHECKING, Any, Self, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

import gazette_aio.protocol as pb
from gazette_aio.broker.host.rpc_error import RpcError
from gazette_aio.broker.host.workers import settle
from gazette_aio.broker.service.append_machine import content_of
from gazette_aio.broker.service.controlled import (
    serve_append,
    serve_apply,
    serve_fragments,
    serve_health,
    serve_list,
    serve_read,
    serve_replicate,
)
from gazette_aio.serving.drain import QUIET_SECONDS, Drain
from gazette_aio.serving.unix_socket import UnixSocket

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from gazette_aio.broker.core import BrokerCore
    from gazette_aio.broker.extras import Health
    from gazette_aio.broker.service.append import AppendMessage
    from gazette_aio.broker.service.read import ContentChunk

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
M = TypeVar("M", bound=Message)
T = TypeVar("T")

_EOF: object = vars(grpc.aio)["EOF"]  # The stubs don't know it.
_OK = pb.Status.OK
_SERVICE = "protocol.Journal"
_EXTRAS = "gazette_aio.broker.extras"
_MAX_PENDING_REQUESTS = 1 << 14
_MAX_METADATA_BYTES = 64 << 10


class GrpcServer:
    """Listens on an address, and answers the Journal service.

    Args:
        core: The broker.
    """

    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self._server: grpc.aio.Server | None = None
        self._socket: UnixSocket | None = None
        self._watched: Health | None = None
        self._claims: dict[pb.Capability, pb.Claims] = {}
        metrics = core.metrics
        self._drain = Drain(lambda: metrics.started.total() + metrics.completed.total())

    def __repr__(self) -> str:
        return f"<GrpcServer {'running' if self._server else 'stopped'}>"

    async def bind(
        self, host: str, port: int, credentials: grpc.ServerCredentials | None = None
    ) -> int:
        """Listen on an address, and return the port.

        Args:
            host: The address.
            port: The port; zero takes any free one.
            credentials: What makes it TLS.

        Raises:
            ConfigurationError: If the address can't be listened on.

        Cancellation: safe.
        """
        server = await self._new_server()
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if credentials is None:
                bound = server.add_insecure_port(address)
            else:
                bound = server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise pb.ConfigurationError(f"unable to listen on {address}") from error
        return bound

    async def bind_socket(self, path: Path, mode: int) -> None:
        """Listen on a Unix socket.

        Args:
            path: Absolute path of the socket.
            mode: Permissions of its file.

        Raises:
            ConfigurationError: If it can't be listened on.

        Cancellation: safe.
        """
        server = await self._new_server()
        # Set first: the library leaves the file behind of a server which was never started.
        socket = self._socket = UnixSocket(path, mode)
        try:
            await socket.bind(lambda: server.add_insecure_port(f"unix:{path}"))
        except RuntimeError as error:
            raise pb.ConfigurationError(f"unable to listen on unix://{path}") from error

    async def _new_server(self) -> grpc.aio.Server:
        server = self._server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", self._core.runtime.options.max_recv_size),
                ("grpc.max_send_message_length", -1),
                # Tokens travel as metadata, and claims with many selectors make long ones.
                ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
                ("grpc.absolute_max_metadata_size", _MAX_METADATA_BYTES),
                ("grpc.so_reuseport", 0),
                # The library else cancels requests at random, whosoever they are, while more than
                # a thousand of them wait to be looked at.
                ("grpc.server.max_pending_requests", _MAX_PENDING_REQUESTS),
                ("grpc.server.max_pending_requests_hard_limit", _MAX_PENDING_REQUESTS),
            )
        )
        server.add_generic_rpc_handlers((self._handlers(),))
        if self._core.runtime.options.grpc_extras:
            # Descriptors take a while to build, which the event loop doesn't have.
            extras = await self._core.runtime.io.run(self._extras)
            server.add_generic_rpc_handlers(extras)
        return server

    def _extras(self) -> tuple[grpc.GenericRpcHandler, ...]:
        extras = importlib.import_module(_EXTRAS)
        health: Health = extras.Health([_SERVICE])
        self._watched = health
        return (health.handlers(), *extras.reflection_handlers([pb.ReadRequest.DESCRIPTOR.file]))

    async def start(self) -> None:
        """Begin to answer.

        Cancellation: safe.
        """
        assert self._server is not None, "not bound"
        await self._server.start()

    async def stop(self, grace: float) -> None:
        """Stop to listen, and end what's being answered after `grace` seconds. Idempotent.

        Cancellation: safe.
        """
        server, self._server = self._server, None
        socket, self._socket = self._socket, None
        if self._watched is not None:
            self._watched.end()
        if server is not None:
            try:
                await self._drain.quiet(grace)
            finally:
                await settle(asyncio.ensure_future(self._end(server, grace)))
        if socket is not None:
            socket.remove()

    async def _end(self, server: grpc.aio.Server, grace: float) -> None:
        stopped = asyncio.ensure_future(server.stop(grace))
        # Clients learn of the end before held requests are answered.
        await asyncio.sleep(QUIET_SECONDS)
        self._drain.release()
        await stopped

    def _handlers(self) -> grpc.GenericRpcHandler:
        # Requests are parsed here, and messages with content also serialized: gRPC would answer
        # bytes which don't parse with another code, and copy content once more.
        unary = grpc.unary_unary_rpc_method_handler
        return grpc.method_handlers_generic_handler(
            _SERVICE,
            {
                "List": grpc.unary_stream_rpc_method_handler(
                    self._list, None, pb.ListResponse.SerializeToString
                ),
                "Apply": unary(self._apply, None, pb.ApplyResponse.SerializeToString),
                "Read": grpc.unary_stream_rpc_method_handler(self._read),
                "Append": grpc.stream_unary_rpc_method_handler(
                    self._append, None, pb.AppendResponse.SerializeToString
                ),
                "Replicate": grpc.stream_stream_rpc_method_handler(
                    self._replicate, None, pb.ReplicateResponse.SerializeToString
                ),
                "ListFragments": unary(
                    self._fragments, None, pb.FragmentsResponse.SerializeToString
                ),
                "FragmentStoreHealth": unary(
                    self._health, None, pb.FragmentStoreHealthResponse.SerializeToString
                ),
            },
        )

    async def _list(self, message: bytes, context: Context) -> None:
        async def call(claims: pb.Claims) -> None:
            request = _parse(pb.ListRequest, message)
            await serve_list(self._core, claims, request, context.write)

        await self._run("List", pb.Capability.LIST, context, call)

    async def _apply(self, message: bytes, context: Context) -> pb.ApplyResponse | None:
        async def call(claims: pb.Claims) -> pb.ApplyResponse:
            return await serve_apply(self._core, claims, _parse(pb.ApplyRequest, message))

        return await self._run("Apply", pb.Capability.APPLY, context, call)

    async def _read(self, message: bytes, context: Context) -> None:
        async def send(response: pb.ReadResponse | ContentChunk) -> None:
            await context.write(encode_read(response))

        async def call(claims: pb.Claims) -> None:
            await serve_read(self._core, claims, _parse(pb.ReadRequest, message), send)

        await self._run("Read", pb.Capability.READ, context, call)

    async def _append(
        self, _messages: AsyncIterator[bytes], context: Context
    ) -> pb.AppendResponse | None:
        def call(claims: pb.Claims) -> Awaitable[pb.AppendResponse]:
            return serve_append(self._core, claims, _AppendMessages(context))

        return await self._run("Append", pb.Capability.APPEND, context, call)

    async def _replicate(self, messages: AsyncIterator[bytes], context: Context) -> None:
        async def call(claims: pb.Claims) -> None:
            message = await anext(messages, None)
            first = None if message is None else _parse(pb.ReplicateRequest, message)
            await context.write(await serve_replicate(self._core, claims, first))

        await self._run("Replicate", pb.Capability.REPLICATE, context, call)

    async def _fragments(self, message: bytes, context: Context) -> pb.FragmentsResponse | None:
        async def call(claims: pb.Claims) -> pb.FragmentsResponse:
            return await serve_fragments(self._core, claims, _parse(pb.FragmentsRequest, message))

        return await self._run("ListFragments", pb.Capability.READ, context, call)

    async def _health(
        self, message: bytes, context: Context
    ) -> pb.FragmentStoreHealthResponse | None:
        async def call(_claims: pb.Claims) -> pb.FragmentStoreHealthResponse:
            return await serve_health(self._core, _parse(pb.FragmentStoreHealthRequest, message))

        return await self._run("FragmentStoreHealth", pb.Capability.READ, context, call)

    def _authorize(self, context: Context, capability: pb.Capability) -> pb.Claims:
        if self._core.runtime.options.auth_keys:
            return self._core.authorize(_authorization(context), capability)
        # Without keys all may do all: there's nothing to read, and the claims are always the same.
        if (claims := self._claims.get(capability)) is None:
            claims = self._claims[capability] = self._core.authorize(None, capability)
        return claims

    async def _run(
        self,
        operation: str,
        capability: pb.Capability,
        context: Context,
        call: Callable[[pb.Claims], Awaitable[T]],
    ) -> T | None:
        metrics = self._core.metrics
        metrics.started[operation] += 1
        outcome = "ok"
        try:
            if self._drain.begun:
                await self._drain.hold()
            response = await call(self._authorize(context, capability))
            status: pb.Status.ValueType = getattr(response, "status", _OK)
            if status != _OK and operation not in ("Apply", "List"):
                outcome = pb.Status.Name(status)
        except RpcError as error:
            outcome = "<error>"
            logger.info(
                "served RPC failed",
                extra={"operation": operation, "error": error.text, "client": context.peer()},
            )
            await context.abort(grpc.StatusCode[error.code], error.text)
        except asyncio.CancelledError:
            outcome = "<error>"
            raise
        except Exception as error:
            outcome = "<error>"
            if isinstance(error, grpc.aio.AbortError):
                raise
            logger.exception("served RPC failed", extra={"operation": operation})
            await context.abort(grpc.StatusCode.UNKNOWN, f"{type(error).__name__}: {error}")
        else:
            return response
        finally:
            metrics.completed[operation, outcome] += 1


def encode_read(response: pb.ReadResponse | ContentChunk) -> bytes:
    """Return the bytes of a ReadResponse."""
    if isinstance(response, pb.ReadResponse):
        return response.SerializeToString()
    # Wire: field 3 (offset) is a varint, field 7 (content) is length-delimited.
    offset, content = response
    head = b"\x18" + _varint(offset) if offset else b""
    return b"".join((head, b"\x3a", _varint(len(content)), content))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _parse(cls: type[M], message: bytes) -> M:
    try:
        return cls.FromString(message)
    except DecodeError as error:
        raise RpcError(f"failed to unmarshal the request: {error}", "INTERNAL") from None


class _AppendMessages:
    """Messages of an append.

    They're read from the call itself: the library's iterator is two generators more per message.
    """

    __slots__ = ("_read",)

    def __init__(self, context: Context) -> None:
        self._read: Callable[[], Awaitable[Any]] = context.read

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AppendMessage:
        message = await self._read()
        if message is _EOF:
            raise StopAsyncIteration
        if not message:
            return b""  # It's content alone, of which there's none.
        content = content_of(message)
        return _parse(pb.AppendRequest, message) if content is None else content


def _authorization(context: Context) -> str | None:
    for name, value in context.invocation_metadata() or ():
        if name == "authorization":
            return value if isinstance(value, str) else value.decode("latin-1")
    return None
