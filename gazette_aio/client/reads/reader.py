"""Reader of one Read RPC, and of the fragment file that the RPC may refer to."""

from __future__ import annotations

import asyncio
import os
import warnings
from typing import TYPE_CHECKING, Literal

import gazette_aio.protocol as pb
from gazette_aio.client.reads.journal_reader import JournalReader
from gazette_aio.client.reads.state import ReadState
from gazette_aio.client.rpc.read_message import ReadContent
from gazette_aio.client.status import StreamStatus

if TYPE_CHECKING:
    from gazette_aio.client.client import JournalClient
    from gazette_aio.client.fragments.reader import FragmentReader
    from gazette_aio.client.reads.position import ReadPosition
    from gazette_aio.client.rpc.read_message import ReadMessage
    from gazette_aio.client.rpc.stream import ResponseStream
    from gazette_aio.client.tracing import Span, Tracing


class Reader(JournalReader):
    """Reader of a journal by one RPC, which begins with the first read.

    The reader ends when the broker ends the RPC, for whatever reason. After any error except
    OffsetJumpError it stays in error: begin a new one with `request`, as a RetryReader does.

    With `do_not_proxy`, a broker ends the RPC before content that it has no local file of, and
    refers to the fragment's file in its store. The next read opens that file, and reading ends
    with the fragment.

    Args:
        client: Client to use.
        request: Journal, offsets and options of the read.
        on_offset_jump: `raise` to raise OffsetJumpError when a hole is skipped, `skip` to continue.
        claims: Claims of the RPC; None for the least ones it needs.
        verify: Whether to check the sum of a fragment file that is read as a whole.

    Raises:
        ValidationError: The request is invalid.
    """

    def __init__(
        self,
        client: JournalClient,
        request: pb.ReadRequest,
        *,
        on_offset_jump: Literal["raise", "skip"] = "raise",
        claims: pb.Claims | None = None,
        verify: bool = False,
    ) -> None:
        self._context = context = client.context
        context.rpc.check_request(request)
        self._request = pb.ReadRequest()
        self._request.CopyFrom(request)
        self._journal = request.journal
        self._state = ReadState(request, strict=context.strict)
        self._skips_jumps = on_offset_jump == "skip"
        self._claims = claims
        self._verify = verify
        self._stream: ResponseStream[ReadMessage] | None = None
        self._referral: pb.ReadResponse | None = None
        self._fragment: FragmentReader | None = None
        self._error: BaseException | None = None
        self._span: Span | None = None
        self._ended = False

    @property
    def request(self) -> pb.ReadRequest:
        """The request, from the next byte on."""
        self._request.offset = self.offset
        return self._request

    @property
    def position(self) -> ReadPosition:
        """Position of the next byte to be returned."""
        return self._state.position

    @property
    def offset(self) -> int:
        """Offset of the next byte to be returned; -1 until the write head is known."""
        return self._state.position.offset

    @property
    def response(self) -> pb.ReadResponse:
        """The latest response. A response with content also has the last fragment and head."""
        return self._state.response

    @property
    def write_head(self) -> int:
        """Write head of the journal as of the latest response, or 0 before the first."""
        return self._state.write_head or 0

    def read_nowait(self, limit: int = -1) -> bytes | None:
        """Return content that was received already, None if none was, or nothing at the end.

        Args:
            limit: Most bytes to return; -1 for as many as arrived together; 0 does nothing.

        Raises:
            OffsetJumpError: A hole was skipped. Reading may continue.
            ValidationError: A response is invalid.
        """
        state, stream = self._state, self._stream
        if not limit:
            return b""  # Without taking a response, whose content would remain.
        # Invariant: an abandoned fragment may only be closed.
        if self._fragment is not None and self._referral is not None:
            data = self._fragment.read_nowait(state.position.bounded(limit))
            return None if data is None else self._taken(data)
        while not (data := state.take(limit)):
            if self._error is not None or self._referral is not None:
                return None  # `read()` raises the error, or opens the file.
            if state.position.is_at_end or self._ended:
                return b""
            if (
                stream is None
                or state.failure is not None
                or (response := stream.receive_nowait()) is None
            ):
                return None
            self._receive(response)
        self._context.metrics.read_bytes(self._journal, len(data))
        return data

    async def read(self, limit: int = -1) -> bytes:
        """Return the next bytes, at least one but at most `limit`, or nothing at the end.

        Args:
            limit: Most bytes to return; -1 for as many as arrived together; 0 does nothing.

        Raises:
            RuntimeError: Another task closed the reader within a fragment's file.
            OffsetJumpError: A hole was skipped. Reading may continue.
            BrokerStatusError: The broker refused the read, or has no more content.
            TransportError: The RPC or fetching the fragment's file failed.
            ValidationError: A response is invalid.
            FragmentError, UnexpectedEOFError, DidNotReadExpectedEOFError: The fragment's file is
                damaged, as this client or the broker found.
            DataLossError: The broker can't read content that it has no file of.
            ConfigurationError: This client can't open the fragment's file.

        Cancellation: safe.
        """
        if not limit:
            return b""
        while self._referral is None:
            if data := self.read_nowait(limit):
                return data
            if await self._next() is None and self._referral is None:
                return b""
        return await self._read_fragment(self._referral, limit)

    async def next_response(self) -> pb.ReadResponse | None:
        """Wait for the next response, or return None at the end of the RPC.

        The next `read()` returns the content of the response or, at the end, of a fragment's file.
        Unread content of the response before is skipped.

        Raises:
            GazetteError: As `read()`.

        Cancellation: safe.
        """
        message = await self._next()
        return message.message() if isinstance(message, ReadContent) else message

    async def _next(self) -> ReadMessage | None:
        state = self._state
        if self._error is not None:
            raise self._error.with_traceback(None)
        if self._ended:
            return None
        if self._stream is None and not state.position.is_at_end:
            await self._context.read_starts.acquire()
            asyncio.get_running_loop().call_soon(self._context.read_starts.release)
            if self._context.tracing is not None:
                self._begin_span(self._context.tracing)
            try:
                self._stream = await self._context.rpc.read(self.request, claims=self._claims)
            except BaseException as error:
                self._end_span(error)
                raise
            self._stream.is_reported = True  # By this reader.
            self._context.readers.add(self)
        state.take()
        # Race: another task may have closed the reader while the RPC began.
        if self._is_over() or state.position.is_at_end or self._stream is None:
            await self.aclose()
            return None
        try:
            response = await self._stream.receive()
        except pb.TransportError as error:
            # The broker's status counts, however the RPC ended afterwards.
            self._error = state.failure or state.failed(error)
            self._end_span(self._error)
            raise self._error from None
        if response is None:
            if self._is_over():
                return None  # The reader was closed, which is neither an error nor a referral.
            self._ended = True
            if state.failure is not None:
                self._error = state.failure
                self._end_span(self._error)
                raise self._error
            self._referral = state.referral
            if self._referral is None:
                self._end_span(None)
            return None
        self._receive(response)
        return response

    async def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Skip content of the fragment's file that is being read, and return the new offset.

        Args:
            offset: The offset, or the distance from the present one.
            whence: `os.SEEK_SET` or `os.SEEK_CUR`.

        Raises:
            SeekRequiresNewReaderError: The RPC is in progress, or the offset is before the present
                one or outside of the fragment. Nothing was skipped.
            ValueError: The offset is relative to the end.
            GazetteError: As `read()`.

        Cancellation: safe — the offset is within the range to be skipped.
        """
        position = self.position
        target = seek_target(offset, whence, position.offset)
        referral, fragment = self._referral, self._fragment
        if referral is None or not position.offset <= target < referral.fragment.end:
            raise pb.SeekRequiresNewReaderError(
                "seek offset requires new Reader", journal=self.journal, offset=position.offset
            )
        if fragment is None:
            position.offset = target  # The next read opens the file there.
            return target
        try:
            await fragment.seek(target)
        except pb.GazetteError as error:
            await self._end(error)
            raise
        finally:
            position.offset = fragment.offset
        return target

    async def _read_fragment(self, referral: pb.ReadResponse, limit: int) -> bytes:
        state = self._state
        if state.position.is_at_end:
            await self._end()
            return b""
        try:
            if (fragment := self._fragment) is None:
                fragment = await self._context.fragments.open(
                    referral.fragment, self.offset, referral.fragment_url, verify=self._verify
                )
                self._fragment = fragment
                if self._referral is None:
                    await self._end()  # Race: another task closed the reader meanwhile.
                    return b""
            data = await fragment.read(state.position.bounded(limit))
        except pb.GazetteError as error:
            await self._end(error)
            raise
        if not data:
            await self._end()
        return self._taken(data)

    def _taken(self, data: bytes) -> bytes:
        """Count `data` of the fragment's file, and return it."""
        if data:
            self.position.offset += len(data)
            self._context.metrics.read_bytes(self._journal, len(data))
        return data

    def _receive(self, response: ReadMessage) -> None:
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
            if self._state.failure is not None and self._stream is not None:
                self._state.failure.endpoint = self._stream.endpoint
            if (
                self._error is None
                and not isinstance(response, ReadContent)
                and response.HasField("header")
            ):
                self._context.router.update_route(self._journal, response.header.route)

    def _begin_span(self, tracing: Tracing) -> None:
        self._span = tracing.start("read", self._journal)
        self._span.set("gazette.begin", self.offset)

    def _end_span(self, error: BaseException | None) -> None:
        span, self._span = self._span, None
        if span is not None:
            span.set("gazette.end", self.offset)
            # A broker answers a read that doesn't block in this way at the write head.
            span.end(None if isinstance(error, pb.OffsetNotYetAvailableError) else error)

    def abandon(self) -> None:
        """End the RPC without waiting for its end."""
        self._ended = True
        self._referral = None
        self._end_span(self._error)
        if self._fragment is not None:
            self._fragment.abandon()
        if self._stream is not None:
            self._stream.abandon()

    async def aclose(self) -> None:
        """End the RPC, or the read of its fragment's file. Idempotent.

        Cancellation: safe — it ends anyway; call again to wait for that.
        """
        await self._end()

    async def _end(self, error: pb.GazetteError | None = None) -> None:
        self._error = self._error or error
        self._ended = True
        self._referral = None
        self._end_span(self._error)
        if self._fragment is not None:
            await self._fragment.aclose()
            self._fragment = None
        if self._stream is not None:
            await self._stream.aclose()

    def __del__(self) -> None:
        stream = getattr(self, "_stream", None)
        if stream is not None and not stream.has_ended and not self._is_over():
            # Race: garbage may be collected in any thread.
            stream.abandon_from_anywhere()
            warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=2)

    @property
    def is_live(self) -> bool:
        """Whether the RPC is in progress, or the file that it referred to is being read."""
        stream = self._stream
        return self._referral is not None or (stream is not None and not stream.has_ended)

    @property
    def is_connected(self) -> bool:
        """Whether the broker of the RPC is connected, or the file that it referred to is read."""
        stream = self._stream
        if self._referral is not None:
            return True
        return stream is not None and not stream.has_ended and stream.is_connected()

    async def is_served(self, seconds: float) -> bool:
        """Return whether the broker of the RPC is connected, and answers a probe within `seconds`.

        Cancellation: safe.
        """
        stream = self._stream
        if self._referral is not None or stream is None or stream.answers is None:
            return self.is_connected
        return self.is_connected and await stream.answers(seconds)

    def status(self) -> StreamStatus:
        """Return the progress of the read."""
        offset, stream, fragment = self.offset, self._stream, self._fragment
        if fragment is not None:
            waiting = fragment.waiting_bytes
        else:
            waiting = 0 if stream is None else stream.waiting_bytes
        return StreamStatus(
            journal=self.journal,
            endpoint="" if stream is None else stream.endpoint,
            waiting_bytes=waiting,
            offset=None if offset < 0 else offset,
            write_head=self._state.write_head,
            is_direct=self._referral is not None,
        )

    def _is_over(self) -> bool:
        return self._ended or self._error is not None

    def __repr__(self) -> str:
        if self._referral is not None:
            state = "direct"
        else:
            state = "ended" if self._is_over() else "begun" if self._stream is not None else "ready"
        return f"<Reader of {self.journal!r} at {self.offset}, {state}>"


def seek_target(offset: int, whence: int, position: int) -> int:
    """Return the target of a seek.

    Args:
        offset: The offset, or the distance from `position`.
        whence: `os.SEEK_SET` or `os.SEEK_CUR`.
        position: Present offset, or -1 if it isn't known.

    Raises:
        ValueError: The offset is negative, or relative to the end.
    """
    if whence == os.SEEK_CUR:
        offset += max(position, 0)
    elif whence != os.SEEK_SET:
        raise ValueError("only os.SEEK_SET and os.SEEK_CUR are supported")
    if offset < 0:
        raise ValueError(f"seek to a negative offset ({offset})")
    return offset
