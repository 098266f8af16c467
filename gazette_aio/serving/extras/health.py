"""Health service, `grpc.health.v1.Health`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from gazette_aio.serving.extras.messages import HEALTH, message_class

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gazette_aio.serving.drain import Drain

Context = grpc.aio.ServicerContext[Any, Any]


class Health:
    """Reports services as served until `end()`. Clients need no token.

    Args:
        services: Names of the services. The empty name, for the whole server, is included.
        drain: Planned stop of the server, which waits until watching clients are informed.
    """

    def __init__(self, services: Iterable[str], drain: Drain) -> None:
        self._drain = drain
        self._services = frozenset(("", *services))
        self._request = message_class(HEALTH, "HealthCheckRequest")
        self._response = message_class(HEALTH, "HealthCheckResponse")
        self._ended = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Health {'ended' if self._ended.is_set() else 'serving'}>"

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers to add to a server."""
        return grpc.method_handlers_generic_handler(
            f"{HEALTH}.Health",
            {
                "Check": grpc.unary_unary_rpc_method_handler(self._check),
                "Watch": grpc.unary_stream_rpc_method_handler(self._watch),
            },
        )

    def end(self) -> None:
        """Report services as not served any more. Idempotent."""
        self._ended.set()

    async def _check(self, data: bytes, context: Context) -> bytes:
        service = await self._service(data, context)
        if service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return self._status()

    async def _watch(self, data: bytes, context: Context) -> None:
        task = self._drain.enter()
        try:
            await self._tell(data, context)
        finally:
            self._drain.leave(task)

    async def _tell(self, data: bytes, context: Context) -> None:
        service = await self._service(data, context)
        if service not in self._services:
            await context.write(self._answer("SERVICE_UNKNOWN"))
            await self._ended.wait()
            return
        # Race: the end may come while the first status is being written.
        told = self._status()
        await context.write(told)
        await self._ended.wait()
        if self._status() != told:
            await context.write(self._status())

    async def _service(self, data: bytes, context: Context) -> str:
        try:
            service: str = self._request.FromString(data).service
        except DecodeError as error:
            await refuse(context, error)
        return service

    def _status(self) -> bytes:
        return self._answer("NOT_SERVING" if self._ended.is_set() else "SERVING")

    def _answer(self, status: str) -> bytes:
        answer: bytes = self._response(status=status).SerializeToString()
        return answer


async def refuse(context: Context, error: DecodeError) -> NoReturn:
    """End an RPC whose request can't be parsed.

    Cancellation: safe.
    """
    await context.abort(grpc.StatusCode.INTERNAL, f"failed to unmarshal the request: {error}")
    raise AssertionError("abort raises")
