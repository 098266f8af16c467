"""Stream of the responses of an RPC, read ahead within a bound of bytes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar, cast

import grpc.aio
from google.protobuf.message import DecodeError

import gazette_aio.protocol as pb
from gazette_aio.aio.task import start_task
from gazette_aio.client.rpc.errors import is_being_cancelled, transport_error
from gazette_aio.client.rpc.read_ahead import ReadAhead
from gazette_aio.client.status import StreamStatus

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from gazette_aio.client.rpc.channel_pool import MemberConnection

T = TypeVar("T")


class ResponseStream(ReadAhead[T]):
    """Responses of one RPC, read by a task of its own.

    Reading pauses while `max_bytes` of responses wait. One task at a time may receive.

    Args:
        call: The RPC, which the stream owns. Its responses are bytes.
        parse: Decodes a response.
        connection: Connection to the broker called.
        max_bytes: Bytes of waiting responses at which reading pauses.
        journal: Journal of the request, for errors.
        on_close: Called once when the stream has ended.
    """

    def __init__(
        self,
        call: grpc.aio.UnaryStreamCall[Any, bytes],
        parse: Callable[[bytes], T],
        connection: MemberConnection[Any],
        *,
        max_bytes: int,
        journal: str,
        on_close: Callable[[ResponseStream[T]], None],
    ) -> None:
        super().__init__()
        self.connection = connection
        self.journal = journal
        self.endpoint: str = connection.endpoint
        self.is_reported = False
        """Whether a Reader reports the status of this stream, and more than the stream knows."""
        self._call = call
        self._parse = parse
        self._max_bytes = max_bytes
        self._on_close = on_close
        self._task = start_task(self._pump(), f"gazette read {journal}")

    def status(self) -> StreamStatus:
        """Return the status of the stream, without an offset."""
        return StreamStatus(
            journal=self.journal, endpoint=self.endpoint, waiting_bytes=self.waiting_bytes
        )

    def abandon(self) -> None:
        """Cancel the RPC without waiting for its end."""
        self._closing = True
        self._drop_waiting()
        self._ended = True
        self._call.cancel()
        self._wake(self._room)

    async def aclose(self) -> None:
        """Cancel the RPC, and wait for its end. Idempotent.

        Cancellation: safe — the RPC ends anyway.
        """
        self.abandon()
        if self._task is not asyncio.current_task():
            await asyncio.wait((self._task,))

    async def _pump(self) -> None:
        # Invariant: only this task ever waits in the call. Cancelling a task that waits there kills
        # the call, whereas receivers may be cancelled.
        # Wire: iterating, unlike `read()`, also returns responses that arrived before an error.
        responses = cast("AsyncGenerator[bytes, None]", self._call.__aiter__())
        try:
            async for data in responses:
                self._put(self._parse(data), len(data))
                if self.waiting_bytes >= self._max_bytes:
                    await self._until_room()
        except grpc.aio.AioRpcError as error:
            self._error = transport_error(error, endpoint=self.endpoint, journal=self.journal)
        except DecodeError as error:
            self._error = pb.TransportError(
                "INTERNAL", f"undecodable response: {error}", journal=self.journal, retryable=True
            )
            self._call.cancel()
        except asyncio.CancelledError:
            # Race: cancelling the call looks like a cancellation of this task.
            if not self._closing:
                self._error = pb.TransportError(
                    "CANCELLED", "the channel was closed", journal=self.journal
                )
                self._call.cancel()
                if is_being_cancelled():
                    raise
        finally:
            await responses.aclose()
            self._ended = True
            self._wake(self._receiver)
            self._on_close(self)

    def _is_full(self) -> bool:
        return self.waiting_bytes >= self._max_bytes and not self._closing

    def __repr__(self) -> str:
        state = "ended" if self._ended else "open"
        return f"<ResponseStream of {self.journal!r}, {state}, {self.waiting_bytes} bytes waiting>"
