"""Services for tools, which Gazette's servers don't have: health checks and reflection.

Clients of either need no token. Needs the extra `server`: `pip install "gazette-aio[server]"`.
"""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

import gazette_aio.protocol as pb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from google.protobuf.descriptor import FileDescriptor

    from gazette_aio.serving.drain import Drain

try:
    # They have no types.
    _health: Any = importlib.import_module("grpc_health.v1.health_pb2")
    _reflection: Any = importlib.import_module("grpc_reflection.v1alpha.reflection_pb2")
    _reflection_aio: Any = importlib.import_module("grpc_reflection.v1alpha.reflection").aio
except ImportError as _error:
    text = "grpc_extras need grpcio-health-checking and grpcio-reflection"
    raise pb.ConfigurationError(f"{text}: pip install 'gazette-aio[server]'") from _error

Context = grpc.aio.ServicerContext[Any, Any]

# Wire: both have the same messages, whose names aren't sent. New tools speak v1, old ones v1alpha.
_REFLECTIONS = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")


class Health:
    """Health service, which reports services as served until `end()`.

    Args:
        services: Names of the services. The empty name, for the whole server, is included.
        drain: Planned stop of the server, which waits until watching clients are informed: the
            library's own service informs them at some later time.
    """

    def __init__(self, services: Iterable[str], drain: Drain) -> None:
        self._drain = drain
        self._services = frozenset(("", *services))
        self._ended = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Health {'ended' if self._ended.is_set() else 'serving'}>"

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers to add to a server."""
        serialize = _health.HealthCheckResponse.SerializeToString
        return grpc.method_handlers_generic_handler(
            "grpc.health.v1.Health",
            {
                "Check": grpc.unary_unary_rpc_method_handler(self._check, None, serialize),
                "Watch": grpc.unary_stream_rpc_method_handler(self._watch, None, serialize),
            },
        )

    def end(self) -> None:
        """Report services as not served any more. Idempotent."""
        self._ended.set()

    async def _check(self, data: bytes, context: Context) -> Any:
        request = await _parsed(_health.HealthCheckRequest, data, context)
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return self._status(request.service)

    async def _watch(self, data: bytes, context: Context) -> None:
        task = self._drain.enter()
        try:
            request = await _parsed(_health.HealthCheckRequest, data, context)
            # Race: the end may come while the first status is being written.
            told = self._status(request.service)
            await context.write(told)
            await self._ended.wait()
            if (last := self._status(request.service)) != told:
                await context.write(last)
        finally:
            self._drain.leave(task)

    def _status(self, service: str) -> Any:
        if service not in self._services:
            status = "SERVICE_UNKNOWN"
        else:
            status = "NOT_SERVING" if self._ended.is_set() else "SERVING"
        return _health.HealthCheckResponse(status=status)


def reflection_handlers(files: Iterable[FileDescriptor]) -> list[grpc.GenericRpcHandler]:
    """Return the handlers of reflection to add to a server.

    Clients get the descriptors of the served services, which are public, and no others.

    Args:
        files: Files whose services are served besides health checks and reflection.
    """
    # A pool of its own, so that nothing else of the process is found.
    pool = DescriptorPool()
    names: list[str] = []
    for file in (*files, _health.DESCRIPTOR, _reflection.DESCRIPTOR):
        names += [service.full_name for service in file.services_by_name.values()]
        _add(file, pool)
    service = _reflection_aio.ReflectionServicer(names, pool)

    async def requests(messages: AsyncIterator[bytes], context: Context) -> AsyncIterator[Any]:
        async for message in messages:
            yield await _parsed(_reflection.ServerReflectionRequest, message, context)

    async def info(messages: AsyncIterator[bytes], context: Context) -> None:
        async for answer in service.ServerReflectionInfo(requests(messages, context), context):
            await context.write(answer)

    handler: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(
        info, None, _reflection.ServerReflectionResponse.SerializeToString
    )
    methods = {"ServerReflectionInfo": handler}
    return [grpc.method_handlers_generic_handler(name, methods) for name in _REFLECTIONS]


def _add(file: FileDescriptor, pool: DescriptorPool) -> None:
    for dependency in file.dependencies:
        _add(dependency, pool)
    pool.AddSerializedFile(file.serialized_pb)


async def _parsed(cls: Any, data: bytes, context: Context) -> Any:
    """Return a request, or end the RPC: the library would log the bytes that it can't parse."""
    try:
        return cls.FromString(data)
    except DecodeError as error:
        text = f"failed to unmarshal the request: {error}"
        await context.abort(grpc.StatusCode.INTERNAL, text)
