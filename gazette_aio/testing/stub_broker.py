"""Scripted broker: a gRPC server in this process, whose responses come from a test.

The test receives each request of Read and Append, and provides each response. Other RPCs call
functions that the test sets.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self, TypeAlias, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

import gazette_aio.protocol as pb
from gazette_aio.aio.finish import finish
from gazette_aio.aio.owner import Owner
from gazette_aio.protocol.service import (
    APPEND,
    APPLY,
    FRAGMENT_STORE_HEALTH,
    LIST,
    LIST_FRAGMENTS,
    METHODS,
    READ,
    SERVICE_NAME,
)
from gazette_aio.serving.library import library_server

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

T = TypeVar("T")

Age: TypeAlias = Literal["newest", "v0.100", "v0.89"]

_GRACE_SECONDS: Final = 10.0
_LIST_CHUNK: Final[dict[Age, int]] = {"newest": 25, "v0.100": 1000, "v0.89": 1 << 30}

_V0_100_LACKS: Final = frozenset(
    {
        ("AppendRequest", "min_etcd_revision"),
        ("AppendRequest", "suspend"),
        ("AppendResponse", "store_health_error"),
        ("JournalSpec", "suspend"),
        ("ReadRequest", "min_etcd_revision"),
    }
)
_LACKS: Final[dict[Age, frozenset[tuple[str, str]]]] = {
    "newest": frozenset(),
    "v0.100": _V0_100_LACKS,
    "v0.89": _V0_100_LACKS
    | {
        ("Journal", "create_revision"),
        ("Label", "prefix"),
        ("ListRequest", "watch"),
        ("ListRequest", "watch_resume"),
        ("ReadRequest", "begin_mod_time"),
    },
}
"""Fields that a release doesn't know, in requests and responses."""

_NEWER_STATUSES: Final = frozenset({pb.Status.SUSPENDED, pb.Status.FRAGMENT_STORE_UNHEALTHY})
"""Statuses unknown to releases before v0.101."""

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class StubError(Exception):
    """Raised by a handler to end its RPC with a gRPC status.

    Args:
        code: gRPC code.
        details: Text of the status.
    """

    def __init__(self, code: grpc.StatusCode, details: str = "") -> None:
        self.code = code
        self.details = details
        super().__init__(f"{code.name}: {details}")


class End(NamedTuple):
    """End of an RPC, instead of a further response."""

    error: StubError | None = None
    """Status of the end, or None for OK."""


class StubBroker(Owner):
    """A scripted broker, as an async context manager.

    Closing the broker fails if a request or a response is left in the queues, if an RPC is still
    open, or if a scripted response has a status that the release doesn't know. Nothing of this is
    checked if the test failed. If the client ended the last Read RPC early, the rest of its
    responses may be left.

    Args:
        age: Release to imitate: `newest`; `v0.100` sends up to 1,000 journals per message of a
            listing, and knows neither FragmentStoreHealth nor suspension nor unhealthy stores;
            `v0.89` lists in one message, and knows neither watches nor selectors of prefixes.
            Fields that a release doesn't know are removed from requests and responses.
        list_chunk: Journals per message of a listing; None for the default of `age`.
        zone: Zone of the broker.
        suffix: Name of the broker in its zone.
    """

    def __init__(
        self,
        *,
        age: Age = "newest",
        list_chunk: int | None = None,
        zone: str = "local",
        suffix: str = "stub",
    ) -> None:
        self.age: Age = age
        self.process_id: pb.ProcessSpec.ID = pb.ProcessSpec.ID(zone=zone, suffix=suffix)
        """ID of the broker in `header()`."""
        self.advertised: str | None = None
        """Endpoint of the broker in `header()`; None for the address on which it listens."""
        self.list_chunk: int = list_chunk or _LIST_CHUNK[age]
        self.endpoint: str = ""
        """Address of the started broker."""
        self.read_requests: asyncio.Queue[pb.ReadRequest] = asyncio.Queue()
        self.read_responses: asyncio.Queue[pb.ReadResponse | End] = asyncio.Queue()
        self.append_requests: asyncio.Queue[pb.AppendRequest] = asyncio.Queue()
        self.append_responses: asyncio.Queue[pb.AppendResponse | End] = asyncio.Queue()
        self.read_loop_errors: asyncio.Queue[BaseException] = asyncio.Queue()
        """End of the requests of each Append: EOFError or CancelledError."""
        self.read_handler: Callable[[pb.ReadRequest], AsyncIterator[pb.ReadResponse]] | None = None
        """Answers Read RPCs instead of the queues."""
        self.append_handler: (
            Callable[[AsyncIterator[pb.AppendRequest]], Awaitable[pb.AppendResponse]] | None
        ) = None
        """Answers Append RPCs instead of the queues, from all messages of the RPC."""
        self.list_handler: Callable[[pb.ListRequest], Any] | None = None
        """Returns a ListResponse, or an async iterator of snapshots for a watch."""
        self.apply_handler: Callable[[pb.ApplyRequest], Any] | None = None
        self.fragments_handler: Callable[[pb.FragmentsRequest], Any] | None = None
        self.health_handler: Callable[[pb.FragmentStoreHealthRequest], Any] | None = None
        self.metadata: list[tuple[str, dict[str, str]]] = []
        """Method and metadata of each RPC."""
        self._server: grpc.aio.Server | None = None
        self._misfits: list[str] = []
        # Responses of the last Read and Append whose end the client didn't wait for.
        self._given_up: set[asyncio.Queue[Any]] = set()
        self._open = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def open_rpcs(self) -> int:
        """Number of open RPCs."""
        return self._open

    def header(
        self, *members: StubBroker, primary: StubBroker | None = None, revision: int = 1
    ) -> pb.Header:
        """Return the header of a response of this broker, with the route of a journal.

        Args:
            members: Brokers of the journal; by default this broker, as the primary.
            primary: Primary of the journal, or None.
            revision: Revision of the key space.
        """
        if not members:
            members, primary = (self,), self
        members = tuple(sorted(members, key=lambda m: (m.process_id.zone, m.process_id.suffix)))
        return pb.Header(
            process_id=self.process_id,
            route=pb.Route(
                members=[member.process_id for member in members],
                endpoints=[member.advertised or member.endpoint for member in members],
                primary=-1 if primary is None else members.index(primary),
            ),
            etcd=pb.Header.Etcd(cluster_id=1, member_id=1, revision=revision, raft_term=1),
        )

    def finish(
        self, error: StubError | None = None, *, rpc: Literal["Read", "Append"] = "Read"
    ) -> None:
        """End the current or next RPC after its scripted responses.

        Args:
            error: Status of the end, or None for OK.
            rpc: Kind of the RPC.
        """
        queue: asyncio.Queue[Any] = self.read_responses if rpc == "Read" else self.append_responses
        queue.put_nowait(End(error))

    async def start(self, address: str = "127.0.0.1:0") -> None:
        """Listen.

        Args:
            address: `host:port`, or `unix:` and an absolute path.

        Cancellation: poisons — use a new broker.
        """
        server = library_server()
        server.add_generic_rpc_handlers((self._handlers(),))
        port = server.add_insecure_port(address)
        await server.start()
        self._server = server
        if address.startswith("unix:"):
            self.endpoint = f"unix://localhost{address.removeprefix('unix:')}"
        else:
            self.endpoint = f"http://{address.rpartition(':')[0]}:{port}"

    async def stop(self, grace: float | None = None) -> None:
        """Stop listening, and abort RPCs after `grace` seconds. Idempotent.

        Cancellation: safe — takes effect after the stop.
        """
        server, self._server = self._server, None
        if server is not None:
            # Invariant: grpcio doesn't continue a cancelled stop.
            await finish(server.stop(grace))

    async def aclose(self) -> None:
        """Stop, and check that the script is complete.

        Raises:
            AssertionError: Requests, responses or RPCs are left.

        Cancellation: safe.
        """
        # RPCs that the client ended take a moment to end here.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_SECONDS):
                await self._idle.wait()
        for responses in self._given_up:
            # Race: the transport decides how many of the responses were sent.
            while not responses.empty():
                if isinstance(responses.get_nowait(), End):
                    break
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
        left += self._misfits
        if self._open:
            left.append(f"{self._open} open RPCs")
        return left

    def _handlers(self) -> grpc.GenericRpcHandler:
        def encode(message: Any) -> bytes:
            data: bytes = self._aged(message).SerializeToString()
            return data

        behaviours: dict[str, Callable[..., Any]] = {
            LIST: self._list,
            READ: self._read,
            APPEND: self._append,
            APPLY: self._unary("Apply", lambda: self.apply_handler),
            LIST_FRAGMENTS: self._unary("ListFragments", lambda: self.fragments_handler),
        }
        if self.age == "newest":
            behaviours[FRAGMENT_STORE_HEALTH] = self._unary(
                "FragmentStoreHealth", lambda: self.health_handler
            )
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        for path, behaviour in behaviours.items():
            method = METHODS[path]
            if method.client_streaming:
                handler = grpc.stream_unary_rpc_method_handler
            elif method.server_streaming:
                handler = grpc.unary_stream_rpc_method_handler
            else:
                handler = grpc.unary_unary_rpc_method_handler
            methods[method.name] = handler(behaviour, method.request.FromString, encode)
        return grpc.method_handlers_generic_handler(SERVICE_NAME, methods)

    def _aged(self, message: Any) -> Any:
        """Return a response without the fields that this release doesn't know."""
        if self.age == "newest" or not isinstance(message, Message):
            return message
        if (status := getattr(message, "status", pb.Status.OK)) in _NEWER_STATUSES:
            self._misfits.append(f"{pb.Status.Name(status)}, which {self.age} doesn't know")
        copy = type(message)()
        copy.CopyFrom(message)
        _forget(copy, _LACKS[self.age])
        return copy

    def _seen(self, request: T) -> T:
        """Return a request without the fields that this release doesn't know."""
        if self.age != "newest":
            assert isinstance(request, Message)
            _forget(request, _LACKS[self.age])
        return request

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

    def _unary(
        self, name: str, handler: Callable[[], Callable[[Any], Any] | None]
    ) -> Callable[[Any, _Context], Awaitable[Any]]:
        async def answer(request: Any, context: _Context) -> Any:
            async with self._rpc(name, context):
                return await _call(handler(), self._seen(request))

        return answer

    async def _list(
        self, request: pb.ListRequest, context: _Context
    ) -> AsyncIterator[pb.ListResponse]:
        async with self._rpc("List", context):
            answer = await _call(self.list_handler, self._seen(request))
            if isinstance(answer, pb.ListResponse):
                for message in self._chunked(answer):
                    yield message
                if request.watch:
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
        self._seen(request)
        async with self._rpc("Read", context):
            if self.read_handler is not None:
                async for response in self.read_handler(request):
                    yield response
                return
            self.read_requests.put_nowait(request)
            self._given_up.add(self.read_responses)
            while not isinstance(scripted := await self.read_responses.get(), End):
                yield scripted
            self._given_up.discard(self.read_responses)
            if scripted.error is not None:
                raise scripted.error

    async def _append(
        self, requests: AsyncIterator[pb.AppendRequest], context: _Context
    ) -> pb.AppendResponse | None:
        async with self._rpc("Append", context):
            if self.append_handler is not None:
                return await self.append_handler(self._seen_each(requests))
            reading = asyncio.create_task(self._read_appends(requests))
            self._given_up.add(self.append_responses)
            try:
                scripted = await self.append_responses.get()
                self._given_up.discard(self.append_responses)
            finally:
                reading.cancel()
                await asyncio.wait((reading,))
            if not isinstance(scripted, End):
                return scripted
            raise scripted.error or StubError(grpc.StatusCode.UNKNOWN, "no response")

    async def _seen_each(
        self, requests: AsyncIterator[pb.AppendRequest]
    ) -> AsyncIterator[pb.AppendRequest]:
        async for request in requests:
            yield self._seen(request)

    async def _read_appends(self, requests: AsyncIterator[pb.AppendRequest]) -> None:
        try:
            async for request in self._seen_each(requests):
                self.append_requests.put_nowait(request)
        except asyncio.CancelledError as error:
            self.read_loop_errors.put_nowait(error)
            raise
        self.read_loop_errors.put_nowait(EOFError())

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def _leave(self, error: BaseException | None) -> None:
        await (self.aclose() if error is None else self.stop())

    def __repr__(self) -> str:
        state = "listening" if self._server is not None else "stopped"
        return f"<StubBroker {self.age} at {self.endpoint or '?'}, {state}, {self._open} RPCs>"


def _forget(message: Message, fields: frozenset[tuple[str, str]]) -> None:
    """Remove fields, given as (message, field) names, from a message and its nested messages."""
    for field, value in message.ListFields():
        if (message.DESCRIPTOR.name, field.name) in fields:
            message.ClearField(field.name)
        elif field.message_type is not None:
            for nested in (value,) if isinstance(value, Message) else value:
                _forget(nested, fields)


async def _call(handler: Callable[[Any], Any] | None, request: Any) -> Any:
    if handler is None:
        raise StubError(grpc.StatusCode.UNIMPLEMENTED, "the script has no handler")
    answer = handler(request)
    return await answer if inspect.isawaitable(answer) else answer
