"""Calls of a service: counted, authorized, served, and ended by gRPC's codes."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Container
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

import gazette_aio.protocol as pb
from gazette_aio.protocol.auth.claims import REQUIRED_CAPABILITIES
from gazette_aio.serving.rpc_error import RpcError, failure_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gazette_aio.protocol.service import RPCMethod
    from gazette_aio.serving.drain import Drain

_logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # The library's class isn't generic.
M = TypeVar("M", bound=Message)

Send = Callable[[Any], Awaitable[None]]
"""Sends a response."""

Serve = Callable[[pb.Claims, Any, Any, Send], Awaitable[None]]
"""Serves a call, by claims, its request, an iterator of further messages of the client, and what
sends a response. Without a stream of the client, the iterator is None. If the client sent nothing,
the request is None."""

Authorize = Callable[[Callable[[], str | None], pb.Capability], pb.Claims]
"""Returns the claims of a call, from a function that returns its `authorization` header and the
capability that it needs. Raises RpcError if the call isn't authorized."""

_END_OF_STREAM: object = vars(grpc.aio)["EOF"]  # The stubs don't know it.

_FAILED = "<error>"

_serialize = methodcaller("SerializeToString")

_HANDLERS: dict[tuple[bool, bool], Callable[..., _Handler]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


class Caller(NamedTuple):
    """Client of a call. Each is a function, since few calls need it."""

    header: Callable[[], str | None]
    """Returns the `authorization` header."""
    address: Callable[[], str | None]
    """Returns the address, for the log."""


class EndOfCallError(Exception):
    """A call ends as if it were complete. Raised by what sends its responses."""


class CallCounts:
    """Counts of calls of all front ends."""

    def __init__(self) -> None:
        self.started: Counter[str] = Counter()
        """Calls begun, by operation."""
        self.completed: Counter[tuple[str, str]] = Counter()
        """Calls ended, by operation and outcome."""


class Service:
    """A gRPC service, which several front ends may serve.

    Args:
        name: Full name of the service.
        methods: Methods of the service, by path.
        serve: Function that serves a method, by path. It validates the request.
        authorize: Authorizes calls.
        counts: Counts of calls.
        plain: Methods whose calls count as `ok`, whatever the status of their response.
    """

    def __init__(
        self,
        name: str,
        methods: Mapping[str, RPCMethod],
        serve: Mapping[str, Serve],
        *,
        authorize: Authorize,
        counts: CallCounts,
        plain: Container[str] = (),
    ) -> None:
        self._name = name
        self._methods = methods
        self._serve = serve
        self._authorize = authorize
        self._counts = counts
        self._plain = plain

    async def call(
        self,
        path: str,
        caller: Caller,
        receive: Callable[[], Awaitable[Message | None]],
        messages: AsyncIterator[Any] | None,
        send: Send,
    ) -> None:
        """Count, authorize and serve a call.

        Its outcome is the status of the first response; later ones only end a stream.

        Args:
            path: Path of the method.
            caller: Who calls.
            receive: Returns the request, once the call is authorized.
            messages: Further messages of the client, if it streams messages.
            send: Sends a response. It may raise EndOfCallError.

        Raises:
            RpcError: The call failed. Errors of the arguments are raised as they are.

        Cancellation: safe if the service is.
        """
        name = self._methods[path].name
        outcome = "ok" if path in self._plain else ""

        async def counted(response: Any) -> None:
            nonlocal outcome
            outcome = outcome or _outcome(response)
            await send(response)

        self._counts.started[name] += 1
        try:
            claims = self._authorize(caller.header, REQUIRED_CAPABILITIES[path])
            await self._serve[path](claims, await receive(), messages, counted)
        except EndOfCallError:
            pass
        except BaseException as error:
            outcome = _FAILED
            if isinstance(error, RpcError):
                extra = {"operation": name, "error": error.text, "client": caller.address()}
                _logger.info("served RPC failed", extra=extra)
            raise
        finally:
            self._counts.completed[name, outcome or "ok"] += 1

    def handlers(
        self, drain: Drain, parse: Callable[[bytes], Any] = bytes
    ) -> grpc.GenericRpcHandler:
        """Return the handlers to add to a gRPC server.

        Args:
            drain: Planned stop of the server. Calls that arrive during the stop are refused as
                UNAVAILABLE.
            parse: Parses a message after the first message of a client.
        """
        # Requests are parsed here: gRPC would answer bytes which don't parse with another code.
        handlers = {
            method.name: _HANDLERS[method.client_streaming, method.server_streaming](
                partial(self._answer, path, drain, parse), None, _serialize
            )
            for path, method in self._methods.items()
        }
        return grpc.method_handlers_generic_handler(self._name, handlers)

    async def _answer(
        self,
        path: str,
        drain: Drain,
        parse: Callable[[bytes], Any],
        received: Any,
        context: Context,
    ) -> Any:
        """Answer a call of gRPC, or end it by the code of its failure.

        Raises:
            AbortError: The call failed. The gRPC library expects this error.

        Cancellation: safe if the service is.
        """
        method = self._methods[path]
        response: Any = None

        async def receive() -> Message | None:
            message = await context.read() if method.client_streaming else received
            return None if message is _END_OF_STREAM else parse_request(method.request, message)

        async def keep(only: Any) -> None:
            nonlocal response
            response = only

        try:
            if drain.begun:
                await drain.refuse(received if method.client_streaming else None)
            task = drain.enter()
            try:
                await self.call(
                    path,
                    Caller(partial(authorization_of, context), context.peer),
                    receive,
                    _Messages(context, parse) if method.client_streaming else None,
                    context.write if method.server_streaming else keep,
                )
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
        return response


class _Messages:
    """Messages of a client, read directly from the call: the library's iterator is slower."""

    __slots__ = ("_parse", "_read")

    def __init__(self, context: Context, parse: Callable[[bytes], Any]) -> None:
        self._read: Callable[[], Awaitable[Any]] = context.read
        self._parse = parse

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        message = await self._read()
        if message is _END_OF_STREAM:
            raise StopAsyncIteration
        return self._parse(message)


def _outcome(response: Any) -> str:
    if not (status := getattr(response, "status", 0)):
        return "ok"
    names = response.DESCRIPTOR.fields_by_name["status"].enum_type.values_by_number
    return names[status].name if status in names else str(status)


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
