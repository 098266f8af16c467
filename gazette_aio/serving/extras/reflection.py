"""Reflection service, `grpc.reflection.v1.ServerReflection`, and its older form of `v1alpha`.

It has the descriptors of the served services, which are public anyway, and nothing else that the
process has loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError

from gazette_aio.serving.extras.health import refuse
from gazette_aio.serving.extras.messages import HEALTH, REFLECTIONS, file_of, message_class

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from google.protobuf.descriptor import Descriptor, FileDescriptor

    from gazette_aio.serving.extras.health import Context

_NOT_FOUND = 5
_INVALID_ARGUMENT = 3


class Reflection:
    """Answers questions about files and what they define.

    Args:
        package: Package of the messages to speak: one of `REFLECTIONS`.
        files: Files whose services are served.
    """

    def __init__(self, package: str, files: Iterable[FileDescriptor]) -> None:
        self._request = message_class(package, "ServerReflectionRequest")
        self._response = message_class(package, "ServerReflectionResponse")
        self._services: list[str] = []
        self._files: dict[str, FileDescriptor] = {}
        for file in files:
            self._services += [service.full_name for service in file.services_by_name.values()]
            self._files.update({each.name: each for each in _with_dependencies(file)})
        self._services.sort()
        self._symbols = {name: file for file in self._files.values() for name in _symbols(file)}
        self._types = {name for file in self._files.values() for name in _types(file)}

    def answer(self, data: bytes) -> bytes:
        """Return the response to a request.

        Raises:
            DecodeError: If it isn't one.
        """
        request = self._request.FromString(data)
        response = self._response(valid_host=request.host, original_request=request)
        kind = request.WhichOneof("message_request")
        asked = "" if kind is None else getattr(request, kind)
        match kind:
            case "list_services":
                for name in self._services:
                    response.list_services_response.service.add(name=name)
            case "file_by_filename" if asked in self._files:
                self._describe(response, self._files[asked])
            case "file_containing_symbol" if asked in self._symbols:
                self._describe(response, self._symbols[asked])
            case "all_extension_numbers_of_type" if asked in self._types:
                response.all_extension_numbers_response.base_type_name = asked
            case None:
                response.error_response.error_code = _INVALID_ARGUMENT
                response.error_response.error_message = "nothing was asked for"
            case _:
                response.error_response.error_code = _NOT_FOUND
                response.error_response.error_message = "not found"
        answer: bytes = response.SerializeToString()
        return answer

    @staticmethod
    def _describe(response: Any, file: FileDescriptor) -> None:
        response.file_descriptor_response.file_descriptor_proto.extend(
            each.serialized_pb for each in _with_dependencies(file)
        )


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
    """Return a file and all it depends on, the file first."""
    found = {file.name: file}
    for dependency in file.dependencies:
        for each in _with_dependencies(dependency):
            found.setdefault(each.name, each)
    return list(found.values())


def _symbols(file: FileDescriptor) -> Iterator[str]:
    yield from _types(file)
    for enum in file.enum_types_by_name.values():
        yield enum.full_name
    for service in file.services_by_name.values():
        yield service.full_name
        for method in service.methods:
            yield method.full_name
    for message in file.message_types_by_name.values():
        yield from _members(message)


def _members(message: Descriptor) -> Iterator[str]:
    for field in message.fields:
        yield field.full_name
    for enum in message.enum_types:
        yield enum.full_name
    for nested in message.nested_types:
        yield from _members(nested)


def _types(file: FileDescriptor) -> Iterator[str]:
    pending = list(file.message_types_by_name.values())
    while pending:
        message = pending.pop()
        yield message.full_name
        pending += message.nested_types
