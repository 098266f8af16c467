"""Reader of one Read RPC, and of the fragment file that the RPC may refer to."""

from __future__ import annotations

import asyncio
import os
import warnings
from abc import abstractmethod
from typing import TYPE_CHECKING, Literal

import gazette_aio.protocol as pb
from gazette_aio.client.fragments.reader import ByteReader
from gazette_aio.client.reads.state import ReadState
from gazette_aio.client.rpc.read_message import ReadContent
from gazette_aio.client.status import StreamStatus

if TYPE_CHECKING:
    from gazette_aio.client.client import JournalClient
    from gazette_aio.client.fragments.reader import FragmentReader
    from gazette_aio.client.rpc.read_message import ReadMessage
    from gazette_aio.client.rpc.stream import ResponseStream
    from gazette_aio.client.tracing import Span


class JournalReader(ByteReader):
    """A reader of a journal that knows the offset of each byte."""

    @property
    @abstractmethod
    def request(self) -> pb.ReadRequest:
        """The request, from the next byte on."""

    @property
    @abstractmethod
    def offset(self) -> int:
        """Offset of the next byte to be returned; -1 until the write head is known."""

    @property
    def journal(self) -> str:
        """Name of the journal."""
        return self.request.journal

    def adjusted_offset(self, buffered: int) -> int:
        """Return the offset of the first of `buffered` bytes that were read but not yet used."""
        return self.offset - buffered


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
        # Invariant: the reader has ended if it's in error, and if the RPC referred to a file.
        self._ended = False

    @property
    def request(self) -> pb.ReadRequest:
        """The request, from the next byte on."""
        self._request.offset = self.offset
        return self._request

    @property
    def offset(self) -> int:
        """Offset of the next byte to be returned; -1 until the write head is known."""
        return self._state.offset

    @property
    def is_at_end(self) -> bool:
        """Whether the end offset of the request was reached."""
        return self._state.is_at_end

    @property
    def has_ended(self) -> bool:
        """Whether nothing follows, except for the error that the reader is in."""
        return self._ended and self._referral is None

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
            data = self._fragment.read_nowait(state.bounded(limit))
            return None if data is None else self._taken(data)
        while not (data := state.take(limit)):
            if self._error is not None or self._referral is not None:
                return None  # `read()` raises the error, or opens the file.
            if state.is_at_end or self._ended:
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
        if self._stream is None and not state.is_at_end:
            self._stream = await self._begin()
        state.take()
        # Race: another task may have closed the reader while the RPC began.
        if self._ended or state.is_at_end or self._stream is None:
            await self.aclose()
            return None
        try:
            response = await self._stream.receive()
        except pb.TransportError as error:
            failure: pb.GazetteError | None = state.failed(error)
        else:
            if response is not None:
                self._receive(response)
                return response
            if self.has_ended:
                return await self._next()  # It was closed, or has failed, meanwhile.
            failure = state.failure
        if failure is not None:
            self.fail(failure)
            raise failure
        self._ended = True
        self._referral = state.referral
        if self._referral is None:
            self._end_span(None)
        return None

    async def _begin(self) -> ResponseStream[ReadMessage]:
        context = self._context
        await context.read_starts.acquire()
        asyncio.get_running_loop().call_soon(context.read_starts.release)
        if context.tracing is not None:
            self._span = context.tracing.start("read", self._journal)
            self._span.set("gazette.begin", self.offset)
        try:
            stream = await context.rpc.read(self.request, claims=self._claims)
        except BaseException as error:
            self._end_span(error)
            raise
        stream.is_reported = True  # By this reader.
        context.readers.add(self)
        return stream

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
        state, referral, fragment = self._state, self._referral, self._fragment
        target = seek_target(offset, whence, state.offset)
        if referral is None or not state.offset <= target < referral.fragment.end:
            raise pb.SeekRequiresNewReaderError(
                "seek offset requires new Reader", journal=self.journal, offset=state.offset
            )
        if fragment is None:
            state.offset = target  # The next read opens the file there.
            return target
        try:
            await fragment.seek(target)
        except pb.GazetteError as error:
            self.fail(error)
            await self.aclose()
            raise
        finally:
            state.offset = fragment.offset
        return target

    async def _read_fragment(self, referral: pb.ReadResponse, limit: int) -> bytes:
        state = self._state
        data = b""
        try:
            if self._fragment is None and not state.is_at_end:
                self._fragment = await self._context.fragments.open(
                    referral.fragment, self.offset, referral.fragment_url, verify=self._verify
                )
            # Race: another task may have closed the reader meanwhile.
            if self._fragment is not None and self._referral is not None and not state.is_at_end:
                data = await self._fragment.read(state.bounded(limit))
        except pb.GazetteError as error:
            self.fail(error)
            await self.aclose()
            raise
        if not data:
            await self.aclose()
        return self._taken(data)

    def _taken(self, data: bytes) -> bytes:
        """Count `data` of the fragment's file, and return it."""
        if data:
            self._state.offset += len(data)
            self._context.metrics.read_bytes(self._journal, len(data))
        return data

    def _receive(self, response: ReadMessage) -> None:
        state = self._state
        try:
            state.receive(response)
        except pb.OffsetJumpError:
            if not self._skips_jumps:
                raise
        except pb.ValidationError as error:
            self.fail(error)
            raise
        finally:
            if state.failure is not None and self._stream is not None:
                state.failure.endpoint = self._stream.endpoint
            if (
                self._error is None
                and not isinstance(response, ReadContent)
                and response.HasField("header")
            ):
                self._context.router.update_route(self._journal, response.header.route)

    def _end_span(self, error: BaseException | None) -> None:
        span, self._span = self._span, None
        if span is not None:
            span.set("gazette.end", self.offset)
            # A broker answers a read that doesn't block in this way at the write head.
            span.end(None if isinstance(error, pb.OffsetNotYetAvailableError) else error)

    def fail(self, error: pb.GazetteError) -> None:
        """End the RPC, and have reads raise `error`."""
        self._error = self._error or error
        self.abandon()

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
        self.abandon()
        if self._fragment is not None:
            await self._fragment.aclose()
            self._fragment = None
        if self._stream is not None:
            await self._stream.aclose()

    def __del__(self) -> None:
        stream = getattr(self, "_stream", None)
        if stream is not None and not stream.has_ended and not self._ended:
            # Race: garbage may be collected in any thread.
            stream.abandon_from_anywhere()
            warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=2)

    @property
    def is_live(self) -> bool:
        """Whether the RPC is in progress, or the file that it referred to is being read."""
        stream = self._stream
        return self._referral is not None or (stream is not None and not stream.has_ended)

    @property
    def has_answered(self) -> bool:
        """Whether any response has arrived, or the RPC has ended."""
        stream = self._stream
        if self._ended or self._state.write_head is not None:
            return True
        return stream is not None and (stream.has_ended or stream.waiting_bytes > 0)

    async def is_served(self, seconds: float | None = None) -> bool:
        """Return whether the broker of the RPC is connected, or the file of its referral is read.

        Args:
            seconds: Time within which the broker must answer a probe, too; None for no probe.

        Cancellation: safe.
        """
        stream = self._stream
        if self._referral is not None:
            return True
        if stream is None or stream.has_ended or not stream.connection.is_ready():
            return False
        return seconds is None or await stream.connection.answers(seconds)

    def status(self) -> StreamStatus:
        """Return the progress of the read."""
        offset, stream = self.offset, self._stream
        source = self._fragment or stream
        return StreamStatus(
            journal=self.journal,
            endpoint="" if stream is None else stream.endpoint,
            waiting_bytes=0 if source is None else source.waiting_bytes,
            offset=None if offset < 0 else offset,
            write_head=self._state.write_head,
            is_direct=self._referral is not None,
        )

    def __repr__(self) -> str:
        if self._referral is not None:
            state = "direct"
        else:
            state = "ended" if self._ended else "begun" if self._stream is not None else "ready"
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
