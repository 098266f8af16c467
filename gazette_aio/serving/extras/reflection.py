"""Reflection service, `grpc.reflection.v1.ServerReflection`, and its older form of `v1alpha`.

Its descriptors are those of the served services, which are public, and no others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from gazette_aio.serving.extras.health import refuse
from gazette_aio.serving.extras.messages import HEALTH, REFLECTIONS, file_of, message_class

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from google.protobuf.descriptor import FileDescriptor

    from gazette_aio.serving.extras.health import Context

_NOT_FOUND = 5
_INVALID_ARGUMENT = 3


class Reflection:
    """Answers requests for files, symbols and services.

    Args:
        package: Package of the messages to speak: one of `REFLECTIONS`.
        files: Files whose services are served.
    """

    def __init__(self, package: str, files: Iterable[FileDescriptor]) -> None:
        self._request = message_class(package, "ServerReflectionRequest")
        self._response = message_class(package, "ServerReflectionResponse")
        self._services: list[str] = []
        # A pool of its own, so that nothing else of the process is found.
        self._pool = DescriptorPool()
        for file in files:
            self._services += [service.full_name for service in file.services_by_name.values()]
            for each in _with_dependencies(file):
                self._pool.AddSerializedFile(each.serialized_pb)
        self._services.sort()

    def answer(self, data: bytes) -> bytes:
        """Return the response to a request.

        Raises:
            DecodeError: The request can't be parsed.
        """
        request = self._request.FromString(data)
        response = self._response(valid_host=request.host, original_request=request)
        kind = request.WhichOneof("message_request")
        asked = "" if kind is None else getattr(request, kind)
        try:
            match kind:
                case "list_services":
                    for name in self._services:
                        response.list_services_response.service.add(name=name)
                case "file_by_filename":
                    _describe(response, self._pool.FindFileByName(asked))
                case "file_containing_symbol":
                    _describe(response, self._containing(asked))
                case "all_extension_numbers_of_type":
                    self._pool.FindMessageTypeByName(asked)
                    response.all_extension_numbers_response.base_type_name = asked
                case None:
                    _fail(response, _INVALID_ARGUMENT, "nothing was asked for")
                case _:  # Extensions, which no file has.
                    _fail(response, _NOT_FOUND, "not found")
        except KeyError:
            _fail(response, _NOT_FOUND, "not found")
        answer: bytes = response.SerializeToString()
        return answer

    def _containing(self, symbol: str) -> FileDescriptor:
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            return self._pool.FindMethodByName(symbol).containing_service.file


def _describe(response: Any, file: FileDescriptor) -> None:
    response.file_descriptor_response.file_descriptor_proto.extend(
        each.serialized_pb for each in reversed(_with_dependencies(file))
    )


def _fail(response: Any, code: int, text: str) -> None:
    response.error_response.error_code = code
    response.error_response.error_message = text


def reflection_handlers(files: Iterable[FileDescriptor]) -> list[grpc.GenericRpcHandler]:
    """Return the handlers to add to a server.

    Args:
        files: Files whose services are served besides health checks and reflection.
    """
    served = [*files, *(file_of(package) for package in (HEALTH, *REFLECTIONS))]
    return [_handlers(package, Reflection(package, served)) for package in REFLECTIONS]


def _handlers(package: str, reflection: Reflection) -> grpc.GenericRpcHandler:
    async def info(messages: AsyncIterator[bytes], context: Context) -> None:
        async for message in messages:
            try:
                answer = reflection.answer(message)
            except DecodeError as error:
                await refuse(context, error)
            await context.write(answer)

    return grpc.method_handlers_generic_handler(
        f"{package}.ServerReflection",
        {"ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(info)},
    )


def _with_dependencies(file: FileDescriptor) -> list[FileDescriptor]:
    """Return all files which a file depends on, each after its dependencies, and the file last."""
    found: dict[str, FileDescriptor] = {}
    for dependency in file.dependencies:
        found.update((each.name, each) for each in _with_dependencies(dependency))
    return [*found.values(), file]
