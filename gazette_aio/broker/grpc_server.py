"""gRPC front end: handlers of the Journal service, a thin shell over the broker's services."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, TypeVar

import grpc
from google.protobuf.message import Message

import gazette_aio.protocol as pb
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
from gazette_aio.protocol.service import (
    APPLY,
    FRAGMENT_STORE_HEALTH,
    LIST_FRAGMENTS,
    METHODS,
    SERVICE_NAME,
)
from gazette_aio.protocol.varint import encode_varint
from gazette_aio.serving.calls import (
    END_OF_STREAM,
    CountedCall,
    answer_call,
    authorization_of,
    parse_request,
)
from gazette_aio.serving.drain import Drain
from gazette_aio.serving.server import GrpcServer, ServerLimits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from gazette_aio.broker.core import BrokerCore
    from gazette_aio.broker.service.append import AppendMessage
    from gazette_aio.broker.service.read import ContentChunk
    from gazette_aio.serving.calls import Context
    from gazette_aio.serving.extras import Health

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)
T = TypeVar("T")


async def new_grpc_server(core: BrokerCore) -> GrpcServer:
    """Return a server of the Journal service, and of `grpc_extras` if options enable them.

    Cancellation: safe.
    """
    options = core.runtime.options
    drain = Drain()
    health: Health | None = None
    tools: list[grpc.GenericRpcHandler] = []
    if options.grpc_extras:
        # In a thread: building descriptors would block the event loop.
        health, tools = await core.runtime.io.run(_tools, drain)
    return GrpcServer(
        (JournalService(core, drain).handlers(), *tools),
        drain,
        limits=ServerLimits(max_receive_bytes=options.max_recv_size),
        health=health,
    )


def _tools(drain: Drain) -> tuple[Health, list[grpc.GenericRpcHandler]]:
    from gazette_aio.serving.extras import Health, reflection_handlers  # noqa: PLC0415

    health = Health([SERVICE_NAME], drain)
    return health, [health.handlers(), *reflection_handlers([pb.ReadRequest.DESCRIPTOR.file])]


class JournalService:
    """The Journal service of a broker.

    Args:
        drain: Planned stop of the server.
    """

    def __init__(self, core: BrokerCore, drain: Drain) -> None:
        self._core = core
        self._drain = drain
        self._claims: dict[pb.Capability, pb.Claims] = {}

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers to add to a server."""
        # Requests are parsed here, and messages with content also serialized: gRPC would answer
        # bytes which don't parse with another code, and copy content once more.
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {
                "List": grpc.unary_stream_rpc_method_handler(
                    self._list, None, pb.ListResponse.SerializeToString
                ),
                "Apply": self._unary(APPLY, pb.Capability.APPLY, serve_apply),
                "Read": grpc.unary_stream_rpc_method_handler(self._read),
                "Append": grpc.stream_unary_rpc_method_handler(
                    self._append, None, pb.AppendResponse.SerializeToString
                ),
                "Replicate": grpc.stream_stream_rpc_method_handler(
                    self._replicate, None, pb.ReplicateResponse.SerializeToString
                ),
                "ListFragments": self._unary(LIST_FRAGMENTS, pb.Capability.READ, serve_fragments),
                "FragmentStoreHealth": self._unary(
                    FRAGMENT_STORE_HEALTH, pb.Capability.READ, serve_health
                ),
            },
        )

    def _unary(
        self,
        path: str,
        capability: pb.Capability,
        serve: Callable[[BrokerCore, pb.Claims, Q], Awaitable[R]],
    ) -> grpc.RpcMethodHandler[bytes, R]:
        method = METHODS[path]

        async def answer(message: bytes, context: Context) -> R | None:
            async def call(claims: pb.Claims, counted: CountedCall) -> R:
                response = await serve(self._core, claims, parse_request(method.request, message))
                # Wire: Gazette's metrics show the statuses of requests for one journal.
                if path == LIST_FRAGMENTS:
                    counted.count(response)
                return response

            return await self._run(method.name, capability, context, call)

        return grpc.unary_unary_rpc_method_handler(answer, None, method.response.SerializeToString)

    async def _list(self, message: bytes, context: Context) -> None:
        def call(claims: pb.Claims, _: CountedCall) -> Awaitable[None]:
            request = parse_request(pb.ListRequest, message)
            return serve_list(self._core, claims, request, context.write)

        await self._run("List", pb.Capability.LIST, context, call)

    async def _read(self, message: bytes, context: Context) -> None:
        async def call(claims: pb.Claims, counted: CountedCall) -> None:
            async def send(response: pb.ReadResponse | ContentChunk) -> None:
                counted.count(response)
                await context.write(encode_read(response))

            await serve_read(self._core, claims, parse_request(pb.ReadRequest, message), send)

        await self._run("Read", pb.Capability.READ, context, call)

    async def _append(
        self, _messages: AsyncIterator[bytes], context: Context
    ) -> pb.AppendResponse | None:
        messages = _ReceivedMessages(context)

        async def call(claims: pb.Claims, counted: CountedCall) -> pb.AppendResponse:
            response = await serve_append(self._core, claims, messages)
            counted.count(response)
            return response

        return await self._run("Append", pb.Capability.APPEND, context, call, messages)

    async def _replicate(self, messages: AsyncIterator[bytes], context: Context) -> None:
        async def call(claims: pb.Claims, counted: CountedCall) -> None:
            message = await anext(messages, None)
            first = None if message is None else parse_request(pb.ReplicateRequest, message)
            response = await serve_replicate(self._core, claims, first)
            counted.count(response)
            await context.write(response)

        await self._run("Replicate", pb.Capability.REPLICATE, context, call, messages)

    async def _run(
        self,
        operation: str,
        capability: pb.Capability,
        context: Context,
        call: Callable[[pb.Claims, CountedCall], Awaitable[T]],
        messages: AsyncIterator[object] | None = None,
    ) -> T | None:
        counted = CountedCall(self._core.metrics, operation, context.peer)

        def serve() -> Awaitable[T]:
            return call(self._authorize(context, capability), counted)

        return await answer_call(counted, self._drain, context, serve, messages)

    def _authorize(self, context: Context, capability: pb.Capability) -> pb.Claims:
        if not self._core.is_open:
            return self._core.authorize(authorization_of(context), capability)
        # Without keys, every client has the same claims, and no header is read.
        if (claims := self._claims.get(capability)) is None:
            claims = self._claims[capability] = self._core.authorize(None, capability)
        return claims


def encode_read(response: pb.ReadResponse | ContentChunk) -> bytes:
    """Return the bytes of a ReadResponse."""
    if isinstance(response, pb.ReadResponse):
        return response.SerializeToString()
    # Wire: field 3 (offset) is a varint, field 7 (content) is length-delimited.
    offset, content = response
    head = b"\x18" + encode_varint(offset) if offset else b""
    return b"".join((head, b"\x3a", encode_varint(len(content)), content))


class _ReceivedMessages:
    """Messages of an append, read directly from the call: the library's iterator is slower."""

    __slots__ = ("_read",)

    def __init__(self, context: Context) -> None:
        self._read: Callable[[], Awaitable[Any]] = context.read

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AppendMessage:
        message = await self._read()
        if message is END_OF_STREAM:
            raise StopAsyncIteration
        if not message:
            return b""  # It's content alone, of which there's none.
        content = content_of(message)
        return parse_request(pb.AppendRequest, message) if content is None else content
