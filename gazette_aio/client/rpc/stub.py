"""RPCs of brokers, without retries: validation, authorization, connections and errors."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import gazette_aio.protocol as pb
from gazette_aio.client.options import STREAM_BUFFER_BYTES
from gazette_aio.client.rpc.channel_pool import JournalMethods
from gazette_aio.client.rpc.member_choice import Mode
from gazette_aio.client.rpc.read_message import decode_read_message
from gazette_aio.client.rpc.stream import ResponseStream
from gazette_aio.client.rpc.unary import MINUTE, UnaryStub
from gazette_aio.protocol.errors import within

if TYPE_CHECKING:
    from collections.abc import Callable

    from gazette_aio.client.rpc.channel_pool import MemberConnection
    from gazette_aio.client.rpc.dispatch import Dispatcher
    from gazette_aio.client.rpc.read_message import ReadMessage

T = TypeVar("T")
JournalRequest: TypeAlias = pb.ReadRequest | pb.AppendRequest | pb.FragmentsRequest
"""A request of one journal. Brokers that don't serve the journal may refuse it."""

_Request = TypeVar("_Request", bound=JournalRequest)


class JournalStub(UnaryStub[JournalMethods]):
    """RPCs of brokers, without retries.

    Requests are validated before they're sent. Requests of a journal go to a broker that serves it,
    if its route is known. The `header` of a request is that of a refusal: its route takes
    precedence over the cached one, and it's never sent. RPCs carry a token of `claims`, else of the
    claims set by `protocol.with_claims()`, else of the least claims that the RPC needs.

    Args:
        dispatcher: Connections to brokers.
        authorizer: Provides the metadata that authorizes RPCs.
        allow_parent: Whether names of journals may begin with `../`.
    """

    def __init__(
        self,
        dispatcher: Dispatcher[JournalMethods],
        authorizer: pb.Authorizer,
        *,
        allow_parent: bool = False,
    ) -> None:
        super().__init__(dispatcher, authorizer)
        self.allow_parent = allow_parent
        self.streams: set[ResponseStream[Any]] = set()
        """Open streams."""

    async def list(
        self, request: pb.ListRequest, *, claims: pb.Claims | None = None
    ) -> ResponseStream[pb.ListResponse]:
        """Begin a List RPC, once the broker answers.

        Cancellation: aborts — the RPC ends.
        """
        pb.validate(request)
        metadata = await self._authorize(request, claims)
        connection = await self._dispatcher.ready()
        call = connection.methods.list(request, metadata=metadata)
        return self._stream(call, pb.ListResponse.FromString, connection, "")

    async def apply(
        self, request: pb.ApplyRequest, *, claims: pb.Claims | None = None
    ) -> pb.ApplyResponse:
        """Make an Apply RPC, once the broker answers.

        Cancellation: aborts — the changes may have been applied.
        """
        pb.validate(request)
        metadata = await self._authorize(request, claims, MINUTE)
        connection = await self._dispatcher.ready()
        call = connection.methods.apply(request, metadata=metadata)
        return await self._unary(call, pb.ApplyResponse.FromString, connection)

    async def read(
        self,
        request: pb.ReadRequest,
        *,
        claims: pb.Claims | None = None,
        mode: Mode = Mode.REPLICA,
    ) -> ResponseStream[ReadMessage]:
        """Begin a Read RPC, if possible at a member of the mode.

        Cancellation: aborts — the RPC ends.
        """
        call, connection = await self.begin("read", request, mode, claims, without_header(request))
        return self._stream(call, decode_read_message, connection, request.journal)

    async def list_fragments(
        self,
        request: pb.FragmentsRequest,
        *,
        claims: pb.Claims | None = None,
        mode: Mode = Mode.REPLICA,
    ) -> pb.FragmentsResponse:
        """Make a ListFragments RPC, if possible at a member of the mode, once a broker answers.

        Cancellation: safe.
        """
        pb.validate(without_header(request))
        call, connection = await self.begin(
            "list_fragments", request, mode, claims, without_header(request)
        )
        parse = pb.FragmentsResponse.FromString
        return await self._unary(call, parse, connection, request.journal)

    async def fragment_store_health(
        self, request: pb.FragmentStoreHealthRequest, *, claims: pb.Claims | None = None
    ) -> pb.FragmentStoreHealthResponse:
        """Make a FragmentStoreHealth RPC, once the broker answers.

        Cancellation: safe.
        """
        pb.validate(request)
        metadata = await self._authorize(request, claims)
        connection = await self._dispatcher.ready()
        call = connection.methods.fragment_store_health(request, metadata=metadata)
        return await self._unary(call, pb.FragmentStoreHealthResponse.FromString, connection)

    def check_request(self, request: pb.ReadRequest | pb.AppendRequest) -> None:
        """Check a request, and that its journal isn't outside of the root of a file store.

        Raises:
            ValidationError: The request is invalid, or names no journal.
        """
        is_append = isinstance(request, pb.AppendRequest)
        if is_append and not request.journal:
            raise pb.ValidationError("expected Request.Journal")  # As a chunk, it may be valid.
        try:
            pb.validate(without_header(request))
            allow_parent = self.allow_parent
            within("Journal", pb.validate_journal, request.journal, allow_parent=allow_parent)
        except pb.ValidationError as error:
            text = error.text
            if request.journal and request.journal not in text:
                text = f"{text} (of journal {request.journal!r})"
            context = ("Request", *error.context) if is_append else error.context
            raise pb.ValidationError(text, context) from None

    async def aclose(self) -> None:
        """End all streams. Idempotent.

        Cancellation: safe — they end anyway; call again to wait for that.
        """
        streams = tuple(self.streams)
        for stream in streams:
            stream.abandon()
        for stream in streams:
            await stream.aclose()

    async def begin(
        self,
        method: str,
        request: JournalRequest,
        mode: Mode,
        claims: pb.Claims | None,
        *messages: JournalRequest,
    ) -> tuple[Any, MemberConnection[JournalMethods]]:
        """Begin an RPC of a journal, if possible at a member of the mode.

        Args:
            method: Name of the method.
            request: The request, which is valid.
            mode: Member that serves it.
            claims: Claims of the RPC; None for the least ones it needs.
            messages: The request as it's sent; none if the caller writes it.

        Returns:
            The call, and its connection.

        Cancellation: aborts — nothing was sent.
        """
        dispatcher, journal = self._dispatcher, request.journal
        refused_by = request.header if request.HasField("header") else None
        if request.do_not_proxy:
            await dispatcher.reach(journal, mode, refused_by)
        metadata = await self._authorize(request, claims)
        connection = dispatcher.connection(journal, mode, refused_by)
        if isinstance(request, pb.FragmentsRequest) and connection is dispatcher.default():
            await dispatcher.ready()
        call = getattr(connection.methods, method)(*messages, metadata=metadata)
        dispatcher.follow(call, connection, journal)
        return call, connection

    def _stream(
        self,
        call: Any,
        parse: Callable[[bytes], T],
        connection: MemberConnection[JournalMethods],
        journal: str,
    ) -> ResponseStream[T]:
        stream = ResponseStream(
            call,
            parse,
            connection,
            max_bytes=STREAM_BUFFER_BYTES,
            journal=journal,
            on_close=self.streams.discard,
        )
        self.streams.add(stream)
        return stream


def without_header(request: _Request) -> _Request:
    """Return a request without its header, which only brokers may send."""
    # Wire: a broker refuses requests whose header names another process.
    if not request.HasField("header"):
        return request
    sent = copy.copy(request)
    sent.ClearField("header")
    return sent
