"""RPCs of the broker: authorization, channels and errors, without retries."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

import gazette_aio.protocol as pb
from gazette_aio.client.options import STREAM_BUFFER_BYTES
from gazette_aio.client.rpc_errors import closed_channel_is_an_error, transport_error
from gazette_aio.client.stream import ResponseStream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from google.protobuf.message import Message

    from gazette_aio.client.dispatch import Dispatcher
    from gazette_aio.client.metrics import Metrics

_HOUR: Final = timedelta(hours=1)
_MINUTE: Final = timedelta(minutes=1)

T = TypeVar("T")

AppendCall = grpc.aio.StreamUnaryCall[Any, bytes]


@dataclasses.dataclass(slots=True)
class _Methods:
    """Methods of the service on one channel."""

    list: Callable[..., Any]
    apply: Callable[..., Any]
    read: Callable[..., Any]
    append: Callable[..., Any]
    list_fragments: Callable[..., Any]
    fragment_store_health: Callable[..., Any]


def _encode(message: Message) -> bytes:
    return message.SerializeToString()


def _encode_append(message: pb.AppendRequest | bytes) -> bytes:
    # Content chunks come encoded, which spares copies of their content.
    return message if isinstance(message, bytes) else message.SerializeToString()


def _undecoded(data: bytes) -> bytes:
    return data


def decoded(parse: Callable[[bytes], T], data: bytes) -> T:
    """Return the message of `data`.

    Raises:
        ValidationError: It isn't one.
    """
    # Wire: grpcio hands out None for what its own deserializers fail on, so that it has none.
    try:
        return parse(data)
    except DecodeError as error:
        raise pb.ValidationError(f"undecodable response: {error}") from None


def _bind(channel: grpc.aio.Channel) -> _Methods:
    return _Methods(
        list=channel.unary_stream(pb.LIST, _encode, _undecoded),
        apply=channel.unary_unary(pb.APPLY, _encode, _undecoded),
        read=channel.unary_stream(pb.READ, _encode, _undecoded),
        append=channel.stream_unary(pb.APPEND, _encode_append, _undecoded),
        list_fragments=channel.unary_unary(pb.LIST_FRAGMENTS, _encode, _undecoded),
        fragment_store_health=channel.unary_unary(pb.FRAGMENT_STORE_HEALTH, _encode, _undecoded),
    )


class JournalStub:
    """The RPCs as the wire has them.

    Requests are validated before they're sent. RPCs carry a token of `claims`, else of the claims
    set by `protocol.with_claims()`, else of the least claims which the RPC needs.

    Args:
        dispatcher: Where RPCs go.
        authorizer: Gives them the metadata which lets them pass.
        metrics: Counts bytes.
        strict: Whether responses are checked for all rules of the protocol. Otherwise brokers of
            other releases may well know names, zones or statuses which this one doesn't.
        allow_parent: Whether names of journals may begin with `../`.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        authorizer: pb.Authorizer,
        metrics: Metrics,
        *,
        strict: bool = False,
        allow_parent: bool = False,
    ) -> None:
        self.dispatcher = dispatcher
        self.metrics = metrics
        self.strict = strict
        self.allow_parent = allow_parent
        self.streams: set[ResponseStream[Any]] = set()
        """Read streams which are open."""
        self._authorizer = authorizer
        self._bound: tuple[grpc.aio.Channel, _Methods] | None = None

    async def list(
        self, request: pb.ListRequest, *, claims: pb.Claims | None = None
    ) -> ResponseStream[pb.ListResponse]:
        """Begin a List RPC, once the broker answers."""
        pb.validate(request)
        metadata = await self._authorize(request, claims)
        methods = self._methods(await self.dispatcher.ready())
        call = methods.list(request, metadata=metadata, wait_for_ready=True)
        return self._stream(call, pb.ListResponse.FromString, "")

    async def apply(
        self, request: pb.ApplyRequest, *, claims: pb.Claims | None = None
    ) -> pb.ApplyResponse:
        """Make an Apply RPC, once the broker answers."""
        pb.validate(request)
        metadata = await self._authorize(request, claims, _MINUTE)
        methods = self._methods(await self.dispatcher.ready())
        call = methods.apply(request, metadata=metadata, wait_for_ready=True)
        return await self._unary(call, pb.ApplyResponse.FromString)

    async def read(
        self, request: pb.ReadRequest, *, claims: pb.Claims | None = None
    ) -> ResponseStream[pb.ReadResponse]:
        """Begin a Read RPC."""
        metadata = await self._authorize(request, claims)
        methods = self._methods(self.dispatcher.channel())
        call = methods.read(request, metadata=metadata)
        return self._stream(call, pb.ReadResponse.FromString, request.journal)

    async def append(
        self, request: pb.AppendRequest, *, claims: pb.Claims | None = None
    ) -> AppendCall:
        """Begin an Append RPC, to which the caller writes `request` first."""
        metadata = await self._authorize(request, claims)
        methods = self._methods(self.dispatcher.channel())
        return cast("AppendCall", methods.append(metadata=metadata))

    async def list_fragments(
        self, request: pb.FragmentsRequest, *, claims: pb.Claims | None = None
    ) -> pb.FragmentsResponse:
        """Make a ListFragments RPC, once the broker answers."""
        pb.validate(request)
        metadata = await self._authorize(request, claims)
        methods = self._methods(await self.dispatcher.ready())
        call = methods.list_fragments(request, metadata=metadata)
        return await self._unary(call, pb.FragmentsResponse.FromString, request.journal)

    async def fragment_store_health(
        self, request: pb.FragmentStoreHealthRequest, *, claims: pb.Claims | None = None
    ) -> pb.FragmentStoreHealthResponse:
        """Make a FragmentStoreHealth RPC, once the broker answers."""
        pb.validate(request)
        metadata = await self._authorize(request, claims)
        methods = self._methods(await self.dispatcher.ready())
        call = methods.fragment_store_health(request, metadata=metadata)
        return await self._unary(call, pb.FragmentStoreHealthResponse.FromString)

    def check_journal(self, name: str) -> None:
        """Refuse the name of a journal which is outside of the root of a file store.

        Raises:
            ValidationError: The name begins with `../`, or isn't valid.
        """
        if not self.allow_parent:
            pb.validate_journal(name, allow_parent=False)

    def check_request(self, request: pb.ReadRequest | pb.AppendRequest) -> None:
        """Check a request, and the name of its journal.

        Raises:
            ValidationError: It's invalid.
        """
        pb.validate(request)
        try:
            self.check_journal(request.journal)
        except pb.ValidationError as error:
            raise error.extend("Journal") from None

    def map_error(self, error: grpc.aio.AioRpcError, journal: str = "") -> pb.TransportError:
        """Return what a failure of an RPC is to users."""
        return transport_error(error, endpoint=self.dispatcher.endpoint, journal=journal)

    async def aclose(self) -> None:
        """End all streams. Idempotent."""
        for stream in tuple(self.streams):
            await stream.aclose()

    def _methods(self, channel: grpc.aio.Channel) -> _Methods:
        if self._bound is None or self._bound[0] is not channel:
            self._bound = (channel, _bind(channel))
        return self._bound[1]

    def _stream(self, call: Any, parse: Callable[[bytes], T], journal: str) -> ResponseStream[T]:
        stream = ResponseStream(
            call,
            parse,
            max_bytes=STREAM_BUFFER_BYTES,
            endpoint=self.dispatcher.endpoint,
            journal=journal,
            on_close=self.streams.discard,
        )
        self.streams.add(stream)
        return stream

    async def _authorize(
        self, request: object, claims: pb.Claims | None, lifetime: timedelta = _HOUR
    ) -> pb.Metadata:
        claims = claims or pb.current_claims() or pb.default_claims(request)
        return await self._authorizer.authorize(claims, lifetime)

    async def _unary(
        self, call: Awaitable[bytes], parse: Callable[[bytes], T], journal: str = ""
    ) -> T:
        try:
            with closed_channel_is_an_error(journal):
                data = await call
        except grpc.aio.AioRpcError as error:
            raise self.map_error(error, journal) from error
        return decoded(parse, data)
