"""Messages of the health and reflection services.

Their descriptors are in separate pools: programs may also load the packages of these services,
whose files have the same names.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from google.protobuf.descriptor_pb2 import FieldDescriptorProto as _Field
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

if TYPE_CHECKING:
    from google.protobuf.descriptor import FileDescriptor

HEALTH: Final = "grpc.health.v1"
REFLECTIONS: Final = ("grpc.reflection.v1", "grpc.reflection.v1alpha")

_STATUS: Final = "HealthCheckResponse.ServingStatus"
_SCALARS: Final = {
    "bytes": _Field.TYPE_BYTES,
    "int32": _Field.TYPE_INT32,
    "string": _Field.TYPE_STRING,
}

_Fields: TypeAlias = dict[str, tuple[int, str]]
"""Number and type by name. A type is a scalar, or a message of the file."""


class _Message(NamedTuple):
    fields: _Fields
    one_of: str = ""
    alternatives: _Fields = {}  # noqa: RUF012 - not changed.
    """Fields of the oneof."""


_HEALTH_MESSAGES: Final = {
    "HealthCheckRequest": _Message({"service": (1, "string")}),
    "HealthCheckResponse": _Message({"status": (1, _STATUS)}),
}
_SERVING_STATUSES: Final = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")
_REFLECTION_MESSAGES: Final = {
    "ServerReflectionRequest": _Message(
        {"host": (1, "string")},
        "message_request",
        {
            "file_by_filename": (3, "string"),
            "file_containing_symbol": (4, "string"),
            "file_containing_extension": (5, "ExtensionRequest"),
            "all_extension_numbers_of_type": (6, "string"),
            "list_services": (7, "string"),
        },
    ),
    "ExtensionRequest": _Message(
        {"containing_type": (1, "string"), "extension_number": (2, "int32")}
    ),
    "ServerReflectionResponse": _Message(
        {"valid_host": (1, "string"), "original_request": (2, "ServerReflectionRequest")},
        "message_response",
        {
            "file_descriptor_response": (4, "FileDescriptorResponse"),
            "all_extension_numbers_response": (5, "ExtensionNumberResponse"),
            "list_services_response": (6, "ListServiceResponse"),
            "error_response": (7, "ErrorResponse"),
        },
    ),
    "FileDescriptorResponse": _Message({"file_descriptor_proto": (1, "repeated bytes")}),
    "ExtensionNumberResponse": _Message(
        {"base_type_name": (1, "string"), "extension_number": (2, "repeated int32")}
    ),
    "ListServiceResponse": _Message({"service": (1, "repeated ServiceResponse")}),
    "ServiceResponse": _Message({"name": (1, "string")}),
    "ErrorResponse": _Message({"error_code": (1, "int32"), "error_message": (2, "string")}),
}


@functools.cache
def file_of(package: str) -> FileDescriptor:
    """Return the descriptor of the file of one of the packages."""
    file = FileDescriptorProto(package=package, syntax="proto3")
    types = f".{package}."
    if package == HEALTH:
        file.name = "grpc/health/v1/health.proto"
        _declare_messages(file, _HEALTH_MESSAGES)
        statuses = file.message_type[-1].enum_type.add(name="ServingStatus")
        for number, status in enumerate(_SERVING_STATUSES):
            statuses.value.add(name=status, number=number)
        request, response = types + "HealthCheckRequest", types + "HealthCheckResponse"
        methods = file.service.add(name="Health").method
        methods.add(name="Check", input_type=request, output_type=response)
        methods.add(name="Watch", input_type=request, output_type=response, server_streaming=True)
    else:
        file.name = f"{package.replace('.', '/')}/reflection.proto"
        _declare_messages(file, _REFLECTION_MESSAGES)
        file.service.add(name="ServerReflection").method.add(
            name="ServerReflectionInfo",
            input_type=types + "ServerReflectionRequest",
            output_type=types + "ServerReflectionResponse",
            client_streaming=True,
            server_streaming=True,
        )
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool.FindFileByName(file.name)


# Cached: the runtime has crashed on a class which was collected and made again.
@functools.cache
def message_class(package: str, name: str) -> Any:
    """Return the class of a message of one of the packages."""
    return GetMessageClass(file_of(package).message_types_by_name[name])


def _declare_messages(file: FileDescriptorProto, messages: dict[str, _Message]) -> None:
    for name, declared in messages.items():
        message = file.message_type.add(name=name)
        if declared.one_of:
            message.oneof_decl.add(name=declared.one_of)
        for field_name, (number, declared_kind) in (
            declared.fields | declared.alternatives
        ).items():
            kind = declared_kind.removeprefix("repeated ")
            is_optional = kind == declared_kind
            field = message.field.add(
                name=field_name,
                number=number,
                label=_Field.LABEL_OPTIONAL if is_optional else _Field.LABEL_REPEATED,
                type=_SCALARS.get(kind, _Field.TYPE_MESSAGE),
            )
            if kind not in _SCALARS:
                field.type_name = f".{file.package}.{kind}"
            if kind == _STATUS:
                field.type = _Field.TYPE_ENUM
            if field_name in declared.alternatives:
                field.oneof_index = 0
