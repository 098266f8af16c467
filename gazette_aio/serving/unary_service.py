"""Handlers of a service whose methods have one request and one response each."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import grpc

from gazette_aio.protocol.auth.claims import REQUIRED_CAPABILITIES
from gazette_aio.serving.calls import (
    CountedCall,
    answer_call,
    authorization_of,
    parse_request,
    verified_claims,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    import gazette_aio.protocol as pb
    from gazette_aio.protocol.service import RPCMethod
    from gazette_aio.serving.calls import CallCounts, Context
    from gazette_aio.serving.drain import Drain


class UnaryService:
    """A service whose methods have one request and one response each.

    Each call is counted, registered with the planned stop, and authorized before its request is
    parsed. An RpcError ends the call with its code.

    Args:
        name: Full name of the service.
        methods: Methods of the service, by path.
        serve: Function of each method, by path, from claims and request to the response. It
            validates the request.
        verifier: Verifies the authorization of calls.
        drain: Planned stop of the server.
        counts: Counts of calls.
        clock: Source of Unix seconds.
    """

    def __init__(
        self,
        name: str,
        methods: Mapping[str, RPCMethod],
        serve: Mapping[str, Callable[[pb.Claims, Any], Awaitable[Any]]],
        *,
        verifier: pb.Verifier,
        drain: Drain,
        counts: CallCounts,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._name = name
        self._methods = methods
        self._serve = serve
        self._verifier = verifier
        self._drain = drain
        self._counts = counts
        self._clock = clock

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers to add to a server."""
        handlers = {
            method.name: self._handler(method, self._serve[path])
            for path, method in self._methods.items()
        }
        return grpc.method_handlers_generic_handler(self._name, handlers)

    def _handler(
        self, method: RPCMethod, serve: Callable[[pb.Claims, Any], Awaitable[Any]]
    ) -> grpc.RpcMethodHandler[bytes, Any]:
        capability = REQUIRED_CAPABILITIES[method.path]

        async def answer(message: bytes, context: Context) -> Any:
            counted = CountedCall(self._counts, method.name, context.peer)

            async def call() -> Any:
                authorization = authorization_of(context)
                claims = verified_claims(self._verifier, authorization, capability, self._clock())
                response = await serve(claims, parse_request(method.request, message))
                if response.status:
                    counted.outcome = _status_name(response)
                return response

            return await answer_call(counted, self._drain, context, call)

        # Requests are parsed here: gRPC would answer bytes which don't parse with another code.
        return grpc.unary_unary_rpc_method_handler(answer, None, method.response.SerializeToString)


def _status_name(response: Any) -> str:
    names = response.DESCRIPTOR.fields_by_name["status"].enum_type.values_by_number
    return str(names[response.status].name)
