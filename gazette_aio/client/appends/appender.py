"""Appender of content by one RPC."""

from __future__ import annotations

import asyncio
import enum
import warnings
from typing import TYPE_CHECKING, Final

import grpc.aio

import gazette_aio.protocol as pb
from gazette_aio.aio.owner import Scope
from gazette_aio.aio.task import call_from_anywhere
from gazette_aio.client.appends.content_buffer import require_bytes
from gazette_aio.client.options import CHUNK_BYTES
from gazette_aio.client.rpc.errors import (
    FirstStatus,
    closed_channel_is_an_error,
    transport_error,
)
from gazette_aio.client.rpc.member_choice import Mode
from gazette_aio.client.rpc.stub import without_header
from gazette_aio.client.rpc.unary import decoded
from gazette_aio.protocol.status_errors import status_error
from gazette_aio.protocol.varint import encode_varint

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from gazette_aio.client.client import JournalClient

AppendCall = grpc.aio.StreamUnaryCall[bytes, bytes]

_COMMIT: Final = b""
ROLLBACK_SECONDS: Final = 1.0
_CONTENT_TAG: Final = bytes([pb.AppendRequest.DESCRIPTOR.fields_by_name["content"].number << 3 | 2])
_FULL_CHUNK: Final = _CONTENT_TAG + encode_varint(CHUNK_BYTES)


class _State(enum.Enum):
    READY = "ready"
    OPEN = "open"
    CLOSED = "closed"


_WRITE_FAILURES: Final = (
    grpc.aio.AioRpcError,
    # Race: raised bare if the peer disconnects just as the stream is ended.
    grpc.aio.InternalError,
    asyncio.InvalidStateError,
)
"""Errors of grpcio for a failed write, whatever the outcome of the RPC is."""


class Appender(Scope):
    """Appender of content by one RPC, as a whole or not at all.

    As an async context manager it commits at its end, and rolls back upon an exception. A broker
    that has begun the append expects content without pauses: prepare content before you write it.

    Args:
        client: Client to use.
        request: The first message: journal and preconditions. It isn't modified. A `header` isn't
            sent: it's that of a refusal, whose route the append takes.
        claims: Claims of the RPC; None for the least ones it needs.
    """

    def __init__(
        self,
        client: JournalClient,
        request: pb.AppendRequest,
        *,
        claims: pb.Claims | None = None,
    ) -> None:
        self._context = client.context
        self._request = request
        self._claims = claims
        self._call: AppendCall | None = None
        self._status: FirstStatus | None = None  # Of the RPC.
        self._loop: asyncio.AbstractEventLoop | None = None  # Of the RPC.
        self._endpoint = ""
        self._state = _State.READY
        self._response: pb.AppendResponse | None = None
        self._sent_bytes = 0

    @property
    def request(self) -> pb.AppendRequest:
        """The first message."""
        return self._request

    @property
    def response(self) -> pb.AppendResponse:
        """The response, which may be a refusal.

        Raises:
            asyncio.InvalidStateError: There is no response.
        """
        if self._response is None:
            raise asyncio.InvalidStateError("the append has no response")
        return self._response

    async def open(self) -> None:
        """Begin the RPC, unless it has begun, and wait until its first message is sent.

        The first `write()`, or else `close()`, does the same. Call it to wait for the broker before
        content is prepared.

        Raises:
            GazetteError: As `write()`.

        Cancellation: poisons — the append is rolled back.
        """
        await self._open()

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send content, in messages of at most 128 KiB. Wait while the broker accepts no more.

        Raises:
            ValidationError: The request is invalid.
            BrokerStatusError: The broker refused the append.
            TransportError: The RPC failed.
            TypeError: `data` is something else than bytes.

        Cancellation: poisons — the append is rolled back.
        """
        require_bytes(data)
        if data:
            await self.write_pieces((memoryview(data).cast("B"),))

    async def write_pieces(self, pieces: Collection[bytes | memoryview]) -> None:
        """Send pieces of content, as `write()` sends them joined.

        Raises:
            GazetteError: As `write()`.

        Cancellation: poisons — the append is rolled back.
        """
        call = await self._open()
        self._sent_bytes += sum(map(len, pieces))
        await self._send(call, content_messages(pieces))

    async def close(self) -> pb.AppendResponse:
        """Commit, and return the response. Without earlier writes it's an append of no bytes.

        Raises:
            ValidationError: The request or the response is invalid.
            BrokerStatusError: The broker refused the append.
            TransportError: The RPC failed. It may have committed nevertheless.

        Cancellation: poisons — it may have committed.
        """
        call = await self._open()
        try:
            try:
                with closed_channel_is_an_error(self._request.journal):
                    await call.write(_COMMIT)
                    await call.done_writing()
            except _WRITE_FAILURES:
                # Race: the broker may answer before the commit; the response has the reason.
                pass
            response = await self._finish(call)
        except BaseException:
            self._drop()
            raise
        # Invariant: an append counts as committed only if the broker committed all of it.
        if (length := pb.content_length(response.commit)) != (expected := self._sent_bytes):
            raise pb.ValidationError(
                f"invalid length of Commit ({length}; expected {expected})",
                ("validating broker response",),
            )
        if expected:
            self._context.metrics.append_bytes(self._request.journal, expected)
        return response

    async def abort(self) -> None:
        """Roll back. Does nothing after `close()`, and never fails. Idempotent.

        If the broker doesn't answer within a second, the RPC is cancelled.

        Cancellation: safe — it's rolled back anyway.
        """
        call, state = self._call, self._state
        self._state = _State.CLOSED
        if call is None or state is not _State.OPEN:
            return
        try:
            # Wire: an end without commit is the regular form of rolling back.
            async with asyncio.timeout(ROLLBACK_SECONDS):
                with closed_channel_is_an_error():
                    await call.done_writing()
                    await call
        except (*_WRITE_FAILURES, pb.TransportError, TimeoutError):
            pass  # Nothing was committed in any case.
        finally:
            self._drop()

    def reset(self) -> None:
        """Prepare for another attempt.

        Raises:
            UsageError: The append hasn't ended.
        """
        if self._state is _State.OPEN:
            raise pb.UsageError("reset() of an Appender that is neither closed nor aborted")
        self._state = _State.READY
        self._call = None
        self._response = None
        self._sent_bytes = 0

    async def _open(self) -> AppendCall:
        if self._state is _State.CLOSED:
            raise pb.UsageError("the Appender is closed; reset() it first")
        if self._call is None:
            rpc, request = self._context.rpc, self._request
            rpc.check_request(request)
            call: AppendCall
            call, connection = await rpc.begin("append", request, Mode.PRIMARY, self._claims)
            self._call = call
            self._status = FirstStatus(call)
            self._endpoint = connection.endpoint
            self._loop = asyncio.get_running_loop()
            if self._state is not _State.READY:
                # Race: another task aborted it while it waited for a token or the broker.
                self._drop()
                raise pb.UsageError("the Appender was closed while it opened")
            self._state = _State.OPEN
            await self._send(call, (without_header(request).SerializeToString(),))
            return call
        return self._call

    async def _send(self, call: AppendCall, messages: Iterable[bytes]) -> None:
        """Send messages, or raise the reason why the broker refuses the append."""
        try:
            with closed_channel_is_an_error(self._request.journal):
                for message in messages:
                    await call.write(message)
        except _WRITE_FAILURES:
            pass  # As the context of the error below, it would keep the RPC and its connection.
        except BaseException:
            self._drop()
            raise
        else:
            return
        try:
            # Wire: the outcome of the RPC has the reason, and not the failed write.
            await self._finish(call)
        finally:
            self._drop()
        raise pb.ValidationError("the broker committed an incomplete append")

    async def _finish(self, call: AppendCall) -> pb.AppendResponse:
        journal = self._request.journal
        try:
            with closed_channel_is_an_error(journal):
                data = await call
        except grpc.aio.AioRpcError as error:
            assert self._status is not None
            error = self._status.unmasked(error)
            raise transport_error(error, endpoint=self._endpoint, journal=journal) from error

        self._state = _State.CLOSED
        try:
            response = decoded(pb.AppendResponse.FromString, data)
            pb.validate(response, strict=self._context.strict)
        except pb.ValidationError as error:
            raise error.extend("validating broker response") from None
        self._response = response
        self._context.router.update_route(journal, response.header.route)
        if response.status != pb.Status.OK:
            raise status_error(
                response.status,
                _refusal_detail(self._request, response),
                journal=journal,
                header=response.header,
                response=response,
                endpoint=self._endpoint,
            )
        return response

    def _drop(self) -> None:
        self._state = _State.CLOSED
        if self._call is not None:
            self._call.cancel()

    async def _leave(self, error: BaseException | None) -> None:
        if self._state is _State.CLOSED:
            return
        if error is None:
            await self.close()
        elif isinstance(error, Exception):
            await self.abort()
        else:
            self._drop()

    def __del__(self) -> None:
        if getattr(self, "_state", None) is _State.OPEN:
            # The RPC would go on, and keep its journal from other appends.
            if self._call is not None and self._loop is not None:
                call_from_anywhere(self._loop, self._call.cancel)
            warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=2)

    def __repr__(self) -> str:
        return f"<Appender of {self._request.journal!r}, {self._state.value}>"


def content_messages(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """Yield the encoded messages of content, of which each but the last one is full."""
    parts: list[bytes | memoryview] = []
    missing = CHUNK_BYTES
    for piece in pieces:
        rest = piece
        while len(rest) >= missing:
            rest = memoryview(rest)
            yield b"".join((_FULL_CHUNK, *parts, rest[:missing]))
            rest = rest[missing:]
            parts = []
            missing = CHUNK_BYTES
        if rest:
            parts.append(rest)
            missing -= len(rest)
    if parts:  # Wire: a chunk without content would mean to commit.
        yield b"".join((_CONTENT_TAG, encode_varint(CHUNK_BYTES - missing), *parts))


def _refusal_detail(request: pb.AppendRequest, response: pb.AppendResponse) -> str:
    if response.status == pb.Status.FRAGMENT_STORE_UNHEALTHY:
        return response.store_health_error
    if response.status == pb.Status.REGISTER_MISMATCH:
        return (
            f"selector {pb.format_label_selector(request.check_registers)} doesn't match registers "
            f"{' '.join(str(response.registers).split())}"
        )
    return ""
