"""Calls of a service: counted, refused during a planned stop, and ended by gRPC's codes."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

import gazette_aio.protocol as pb
from gazette_aio.serving.rpc_error import RpcError, failure_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from types import TracebackType

    from gazette_aio.serving.drain import Drain

_logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # The library's class isn't generic.
M = TypeVar("M", bound=Message)
T = TypeVar("T")

END_OF_STREAM: object = vars(grpc.aio)["EOF"]  # The stubs don't know it.
"""Returned by `Context.read` after the last message of a client."""

_FAILED = "<error>"


class CallCounts:
    """Counts of calls of all front ends."""

    def __init__(self) -> None:
        self.started: Counter[str] = Counter()
        """Calls begun, by operation."""
        self.completed: Counter[tuple[str, str]] = Counter()
        """Calls ended, by operation and outcome."""


class CountedCall:
    """Context manager that counts one call, and logs its failure.

    Args:
        client: Returns the address of the client, for the log.
    """

    __slots__ = ("_client", "_counts", "_is_answered", "_operation", "outcome")

    def __init__(
        self, counts: CallCounts, operation: str, client: Callable[[], str | None]
    ) -> None:
        self.outcome: str = "ok"
        """Outcome to count, unless the call fails."""
        self._counts = counts
        self._operation = operation
        self._client = client
        self._is_answered = False

    def count(self, response: object) -> None:
        """Take the status of the first response as the outcome; later ones only end a stream."""
        status: pb.Status.ValueType = getattr(response, "status", pb.Status.OK)
        if not self._is_answered and status != pb.Status.OK:
            self.outcome = pb.Status.Name(status)
        self._is_answered = True

    def __enter__(self) -> Self:
        self._counts.started[self._operation] += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        outcome = self.outcome if error is None else _FAILED
        self._counts.completed[self._operation, outcome] += 1
        if isinstance(error, RpcError):
            _logger.info(
                "served RPC failed",
                extra={
                    "operation": self._operation,
                    "error": error.text,
                    "client": self._client(),
                },
            )


async def answer_call(
    counted: CountedCall,
    drain: Drain,
    context: Context,
    call: Callable[[], Awaitable[T]],
    messages: AsyncIterator[object] | None = None,
) -> T | None:
    """Answer a gRPC call by the result of `call`, or end it by the code of its failure.

    A call that arrives during a planned stop is refused as UNAVAILABLE.

    Args:
        counted: Count of the call.
        drain: Planned stop of the server.
        context: The call.
        call: Serves the call; raises RpcError for a code and a text.
        messages: Messages of the client, if the client streams them.

    Raises:
        AbortError: `call` failed. The gRPC library expects this error.

    Cancellation: safe if `call` is.
    """
    try:
        with counted:
            if drain.begun:
                await drain.refuse(messages)
            task = drain.enter()
            try:
                return await call()
            except asyncio.CancelledError:
                if (refusal := drain.refusal()) is None:
                    raise
                raise refusal from None
            finally:
                drain.leave(task)
    except RpcError as error:
        await context.abort(grpc.StatusCode[error.code], error.text)
    except grpc.aio.AbortError:
        raise
    except grpc.aio.InternalError as error:
        # Race: the client left in the middle of an answer, and the library hasn't cancelled the
        # task yet. It ends as if it had.
        raise asyncio.CancelledError from error
    except Exception as error:
        _logger.exception("served RPC failed")
        await context.abort(grpc.StatusCode.UNKNOWN, failure_text(error))


class CallsOfOthers(grpc.aio.ServerInterceptor):
    """Registers the calls of other services, such as health checks, with a planned stop.

    Args:
        drain: Planned stop of the server.
    """

    def __init__(self, drain: Drain) -> None:
        self._drain = drain
        self._refusal: _Handler = grpc.stream_stream_rpc_method_handler(self._refuse)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        """Register a call, or return a handler that refuses the call.

        Cancellation: safe.
        """
        if self._drain.begun:
            return self._refusal
        self._drain.enter()
        return await continuation(handler_call_details)

    async def _refuse(self, messages: AsyncIterator[bytes], context: Context) -> None:
        try:
            await self._drain.refuse(messages)
        except RpcError as error:
            await context.abort(grpc.StatusCode[error.code], error.text)


def parse_request(cls: type[M], message: bytes) -> M:
    """Return the request of serialized bytes.

    Raises:
        RpcError: The bytes don't parse.
    """
    try:
        return cls.FromString(message)
    except DecodeError as error:
        raise RpcError(f"failed to unmarshal the request: {error}", "INTERNAL") from None


def verified_claims(
    verifier: pb.Verifier, header: str | None, capability: pb.Capability, now: float
) -> pb.Claims:
    """Return the claims of a call.

    Args:
        verifier: Verifies the authorization.
        header: The `authorization` metadata, if there is any.
        capability: Capability which the call needs.
        now: Unix seconds.

    Raises:
        RpcError: The call isn't authorized.
    """
    try:
        return verifier.verify(header, capability, now)
    except pb.AuthorizationError as error:
        raise RpcError(str(error), "UNAUTHENTICATED") from None


def authorization_of(context: Context) -> str | None:
    """Return the `authorization` metadata of a call."""
    for name, value in context.invocation_metadata() or ():
        if name == "authorization":
            return value if isinstance(value, str) else value.decode("latin-1")
    return None
