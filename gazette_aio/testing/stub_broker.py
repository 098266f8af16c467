"""A scripted broker: a real gRPC server in this process, whose answers come from a test.

Each request of Read and Append is handed to the test, and each response comes from it. The unary
RPCs call functions which the test sets.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self, TypeAlias

import grpc
import grpc.aio

import gazette_aio.protocol as pb

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
    from types import TracebackType

Age: TypeAlias = Literal["newest", "v0.100", "v0.89"]

_GRACE_SECONDS: Final = 1.0
_LIST_CHUNK: Final[dict[Age, int]] = {"newest": 25, "v0.100": 1000, "v0.89": 1 << 30}

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class StubError(Exception):
    """Raised by a handler to end its RPC with a gRPC status.

    Args:
        code: The gRPC code.
        details: Its text.
    """

    def __init__(self, code: grpc.StatusCode, details: str = "") -> None:
        self.code = code
        self.details = details
        super().__init__(f"{code.name}: {details}")


class End(NamedTuple):
    """Ends an RPC, in place of a further response."""

    error: StubError | None = None
    """The status to end with, or None for OK."""


class StubBroker:
    """A scripted broker, as an async context manager.

    Closing it fails if a request wasn't looked at, a response wasn't sent, or an RPC is still open,
    unless the test failed anyway.

    Args:
        age: Release to resemble: `newest`; `v0.100` sends listings of 1,000 journals in a message
            and knows no FragmentStoreHealth; `v0.89` lists in one message, and can't watch either.
        list_chunk: Journals in a message of a listing, or None for what `age` says.
    """

    def __init__(self, *, age: Age = "newest", list_chunk: int | None = None) -> None:
        self.age: Age = age
        self.list_chunk = list_chunk or _LIST_CHUNK[age]
        self.endpoint = ""
        """Where it listens, once it's started."""
        self.read_requests: asyncio.Queue[pb.ReadRequest] = asyncio.Queue()
        self.read_responses: asyncio.Queue[pb.ReadResponse | End] = asyncio.Queue()
        self.append_requests: asyncio.Queue[pb.AppendRequest] = asyncio.Queue()
        self.append_responses: asyncio.Queue[pb.AppendResponse | End] = asyncio.Queue()
        self.read_loop_errors: asyncio.Queue[BaseException] = asyncio.Queue()
        """How the requests of each Append ended: EOFError, or CancelledError."""
        self.read_handler: Callable[[pb.ReadRequest], AsyncIterator[pb.ReadResponse]] | None = None
        """Answers Read RPCs in place of the queues."""
        self.append_handler: (
            Callable[[AsyncIterator[pb.AppendRequest]], Awaitable[pb.AppendResponse]] | None
        ) = None
        """Answers Append RPCs in place of the queues. It gets all messages of the RPC."""
        self.list_handler: Callable[[pb.ListRequest], Any] | None = None
        """Returns a ListResponse, or for a watch an async iterator of snapshots."""
        self.apply_handler: Callable[[pb.ApplyRequest], Any] | None = None
        self.fragments_handler: Callable[[pb.FragmentsRequest], Any] | None = None
        self.health_handler: Callable[[pb.FragmentStoreHealthRequest], Any] | None = None
        self.metadata: list[tuple[str, dict[str, str]]] = []
        """Method and metadata of each RPC."""
        self._server: grpc.aio.Server | None = None
        self._open = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def open_rpcs(self) -> int:
        """Number of RPCs which are under way."""
        return self._open

    def finish(
        self, error: StubError | None = None, *, rpc: Literal["Read", "Append"] = "Read"
    ) -> None:
        """End the present RPC, or the next one, once its scripted responses are sent.

        Args:
            error: The status to end with, or None for OK.
            rpc: Which RPC to end.
        """
        queue: asyncio.Queue[Any] = self.read_responses if rpc == "Read" else self.append_responses
        queue.put_nowait(End(error))

    async def start(self, address: str = "127.0.0.1:0") -> None:
        """Listen.

        Args:
            address: `host:port`, or `unix:` and an absolute path.

        Cancellation: poisons.
        """
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((self._handlers(),))
        port = server.add_insecure_port(address)
        await server.start()
        self._server = server
        if address.startswith("unix:"):
            self.endpoint = f"unix://localhost{address.removeprefix('unix:')}"
        else:
            self.endpoint = f"http://{address.rpartition(':')[0]}:{port}"

    async def stop(self, grace: float | None = None) -> None:
        """Stop listening, and cut RPCs off after `grace` seconds. Idempotent.

        Cancellation: safe.
        """
        server, self._server = self._server, None
        if server is not None:
            await server.stop(grace)

    async def aclose(self) -> None:
        """Stop, and check that nothing of the script is left.

        Cancellation: safe.

        Raises:
            AssertionError: Something is left.
        """
        # RPCs which the client gave up take a moment to end.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_SECONDS):
                await self._idle.wait()
        left = self._left_over()
        await self.stop()
        if left:
            raise AssertionError(f"left of the script: {', '.join(left)}")

    def _left_over(self) -> list[str]:
        queues: dict[str, asyncio.Queue[Any]] = {
            "read requests": self.read_requests,
            "read responses": self.read_responses,
            "append requests": self.append_requests,
            "append responses": self.append_responses,
            "read-loop errors": self.read_loop_errors,
        }
        left = [f"{queue.qsize()} {name}" for name, queue in queues.items() if not queue.empty()]
        if self._open:
            left.append(f"{self._open} open RPCs")
        return left

    def _handlers(self) -> grpc.GenericRpcHandler:
        def encode(message: Any) -> bytes:
            data: bytes = message.SerializeToString()
            return data

        unary, stream = (
            grpc.unary_unary_rpc_method_handler,
            grpc.unary_stream_rpc_method_handler,
        )
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Apply": unary(
                self._apply,
                request_deserializer=pb.ApplyRequest.FromString,
                response_serializer=encode,
            ),
            "ListFragments": unary(
                self._list_fragments,
                request_deserializer=pb.FragmentsRequest.FromString,
                response_serializer=encode,
            ),
            "List": stream(
                self._list,
                request_deserializer=pb.ListRequest.FromString,
                response_serializer=encode,
            ),
            "Read": stream(
                self._read,
                request_deserializer=pb.ReadRequest.FromString,
                response_serializer=encode,
            ),
            "Append": grpc.stream_unary_rpc_method_handler(
                self._append,
                request_deserializer=pb.AppendRequest.FromString,
                response_serializer=encode,
            ),
        }
        if self.age == "newest":
            methods["FragmentStoreHealth"] = unary(
                self._health,
                request_deserializer=pb.FragmentStoreHealthRequest.FromString,
                response_serializer=encode,
            )
        return grpc.method_handlers_generic_handler(pb.SERVICE_NAME, methods)

    @contextlib.asynccontextmanager
    async def _rpc(self, name: str, context: _Context) -> AsyncGenerator[None]:
        metadata = {key: str(value) for key, value in context.invocation_metadata() or ()}
        self.metadata.append((name, metadata))
        self._open += 1
        self._idle.clear()
        try:
            yield
        except StubError as error:
            await context.abort(error.code, error.details)
        finally:
            self._open -= 1
            if not self._open:
                self._idle.set()

    async def _apply(self, request: pb.ApplyRequest, context: _Context) -> Any:
        async with self._rpc("Apply", context):
            return await _call(self.apply_handler, request)

    async def _list_fragments(self, request: pb.FragmentsRequest, context: _Context) -> Any:
        async with self._rpc("ListFragments", context):
            return await _call(self.fragments_handler, request)

    async def _health(self, request: pb.FragmentStoreHealthRequest, context: _Context) -> Any:
        async with self._rpc("FragmentStoreHealth", context):
            return await _call(self.health_handler, request)

    async def _list(
        self, request: pb.ListRequest, context: _Context
    ) -> AsyncIterator[pb.ListResponse]:
        async with self._rpc("List", context):
            answer = await _call(self.list_handler, request)
            if isinstance(answer, pb.ListResponse):
                for message in self._chunked(answer):
                    yield message
                # Wire: before watches, a request for one was answered as any other.
                if request.watch and self.age != "v0.89":
                    yield pb.ListResponse()
                return
            async for snapshot in answer:
                for message in self._chunked(snapshot):
                    yield message
                yield pb.ListResponse()

    def _chunked(self, listing: pb.ListResponse) -> list[pb.ListResponse]:
        first = pb.ListResponse()
        first.CopyFrom(listing)
        size = self.list_chunk
        del first.journals[size:]
        return [
            first,
            *(
                pb.ListResponse(journals=listing.journals[begin : begin + size])
                for begin in range(size, len(listing.journals), size)
            ),
        ]

    async def _read(
        self, request: pb.ReadRequest, context: _Context
    ) -> AsyncIterator[pb.ReadResponse]:
        async with self._rpc("Read", context):
            if self.read_handler is not None:
                async for response in self.read_handler(request):
                    yield response
                return
            self.read_requests.put_nowait(request)
            while not isinstance(scripted := await self.read_responses.get(), End):
                yield scripted
            if scripted.error is not None:
                raise scripted.error

    async def _append(
        self, requests: AsyncIterator[pb.AppendRequest], context: _Context
    ) -> pb.AppendResponse | None:
        async with self._rpc("Append", context):
            if self.append_handler is not None:
                return await self.append_handler(requests)
            reading = asyncio.create_task(self._read_appends(requests))
            try:
                scripted = await self.append_responses.get()
            finally:
                reading.cancel()
                await asyncio.wait((reading,))
            if not isinstance(scripted, End):
                return scripted
            raise scripted.error or StubError(grpc.StatusCode.UNKNOWN, "no response")

    async def _read_appends(self, requests: AsyncIterator[pb.AppendRequest]) -> None:
        try:
            async for request in requests:
                self.append_requests.put_nowait(request)
        except asyncio.CancelledError as error:
            self.read_loop_errors.put_nowait(error)
            raise
        self.read_loop_errors.put_nowait(EOFError())

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc_type is None:
            await self.aclose()
        else:
            await self.stop()

    def __repr__(self) -> str:
        state = "listening" if self._server is not None else "stopped"
        return f"<StubBroker {self.age} at {self.endpoint or '?'}, {state}, {self._open} RPCs>"


async def _call(handler: Callable[[Any], Any] | None, request: Any) -> Any:
    if handler is None:
        raise StubError(grpc.StatusCode.UNIMPLEMENTED, "the script has no handler")
    answer = handler(request)
    return await answer if inspect.isawaitable(answer) else answer
