"""One Read RPC."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Literal, Self

import gazette_aio.protocol as pb
from gazette_aio.client.read_state import ReadState

if TYPE_CHECKING:
    from types import TracebackType

    from gazette_aio.client.client import JournalClient
    from gazette_aio.client.stream import ResponseStream


class Reader:
    """Reads a journal by one RPC, which begins with the first read.

    It ends when the broker ends the RPC, for whatever reason. After any error but OffsetJumpError
    it stays in error: begin a new one at `request.offset`, which is what a RetryReader does.

    All content comes through the broker: a request with `do_not_proxy` would have it refer to
    fragment files instead, and is allowed for metadata only.

    Args:
        client: Client to use.
        request: What to read. Its `offset` is kept at that of the next byte to be returned.
        on_offset_jump: Whether to raise OffsetJumpError when a hole is skipped, or go on.
        claims: Claims to present in place of the least ones.

    Raises:
        ValidationError: The request is invalid.
        ConfigurationError: It asks for content with `do_not_proxy`.
    """

    def __init__(
        self,
        client: JournalClient,
        request: pb.ReadRequest,
        *,
        on_offset_jump: Literal["raise", "skip"] = "raise",
        claims: pb.Claims | None = None,
    ) -> None:
        client.rpc.check_request(request)
        if request.do_not_proxy and not request.metadata_only:
            raise pb.ConfigurationError("content can't be read with do_not_proxy")
        self._client = client
        self._state = ReadState(request, strict=client.rpc.strict)
        self._skips_jumps = on_offset_jump == "skip"
        self._claims = claims
        self._stream: ResponseStream[pb.ReadResponse] | None = None
        self._error: BaseException | None = None
        self._ended = False

    @property
    def request(self) -> pb.ReadRequest:
        """The request; its `offset` is that of the next byte to be returned."""
        return self._state.request

    @property
    def response(self) -> pb.ReadResponse:
        """The latest response. One of content also has the fragment and head known before it."""
        return self._state.response

    @property
    def journal(self) -> str:
        """The journal read."""
        return self._state.request.journal

    @property
    def offset(self) -> int:
        """Offset of the next byte to be returned; -1 until the head is known."""
        return self._state.request.offset

    def read_nowait(self, limit: int = -1) -> bytes:
        """Return content which was received already, or nothing.

        Raises:
            GazetteError: As `read()`.
        """
        state, stream = self._state, self._stream
        if not limit:
            return b""  # Not even a response is taken, as its content may remain.
        while not (data := state.take(limit)):
            if (
                stream is None
                or self._error is not None
                or state.failure is not None
                or state.is_complete
                or (response := stream.receive_nowait()) is None
            ):
                return b""
            self._receive(response)
        return data

    async def read(self, limit: int = -1) -> bytes:
        """Return the next bytes, at least one but at most `limit`, or nothing at the end.

        Args:
            limit: Most bytes to return; -1 for as many as come at once. With 0 it does nothing.

        Cancellation: safe.

        Raises:
            OffsetJumpError: A hole was skipped. Reading may go on.
            BrokerStatusError: The broker refused the read, or has nothing more.
            TransportError: The RPC failed.
            ValidationError: A response is invalid.
        """
        if not limit:
            return b""
        while not (data := self.read_nowait(limit)):
            if await self.next_response() is None:
                return b""
        return data

    async def next_response(self) -> pb.ReadResponse | None:
        """Wait for the next response, or return None at the end.

        Content which it has is returned by the next `read()`. What wasn't read of the one before
        is skipped.

        Cancellation: safe.

        Raises:
            GazetteError: As `read()`.
        """
        state = self._state
        if self._error is not None:
            raise self._error.with_traceback(None)
        if self._ended:
            return None
        if self._stream is None and not state.is_complete:
            self._stream = await self._client.rpc.read(state.request, claims=self._claims)
        state.take()
        if state.is_complete or self._stream is None:
            await self.aclose()
            return None
        try:
            response = await self._stream.receive()
        except pb.TransportError as error:
            # What the broker had to say counts, however the RPC ended afterwards.
            self._error = state.failure or error
            raise self._error from None
        if response is None:
            self._ended = True
            if state.failure is not None:
                self._error = state.failure
                raise self._error
            return None
        self._receive(response)
        return response

    def _receive(self, response: pb.ReadResponse) -> None:
        try:
            self._state.receive(response)
        except pb.OffsetJumpError:
            if not self._skips_jumps:
                raise
        except pb.ValidationError as error:
            self._error = error
            self.abandon()
            raise
        finally:
            if count := self._state.unread_bytes:
                self._client.rpc.metrics.read_bytes(self.journal, count)

    def abandon(self) -> None:
        """End the RPC without waiting for its end."""
        self._ended = True
        if self._stream is not None:
            self._stream.abandon()

    async def aclose(self) -> None:
        """End the RPC. Idempotent.

        Cancellation: safe — it ends anyway.
        """
        self._ended = True
        if self._stream is not None:
            await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if data := await self.read():
            return data
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        stream = getattr(self, "_stream", None)
        if stream is not None and not stream.has_ended and not self._is_over():
            warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=2)

    def _is_over(self) -> bool:
        return self._ended or self._error is not None

    def __repr__(self) -> str:
        state = "ended" if self._is_over() else "begun" if self._stream is not None else "ready"
        return f"<Reader of {self.journal!r} at {self.offset}, {state}>"
