"""Messages of the health and reflection services.

Their descriptors are in a pool of their own: programs may also load the packages of these services,
whose files have the same names.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.text_format import Parse

if TYPE_CHECKING:
    from google.protobuf.descriptor import FileDescriptor

HEALTH: Final = "grpc.health.v1"
REFLECTIONS: Final = ("grpc.reflection.v1", "grpc.reflection.v1alpha")

_HEALTH_FILE: Final = """
message_type {
  name: "HealthCheckRequest"
  field { name: "service" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
}
message_type {
  name: "HealthCheckResponse"
  field {
    name: "status" number: 1 label: LABEL_OPTIONAL
    type: TYPE_ENUM type_name: ".PACKAGE.HealthCheckResponse.ServingStatus"
  }
  enum_type {
    name: "ServingStatus"
    value { name: "UNKNOWN" number: 0 }
    value { name: "SERVING" number: 1 }
    value { name: "NOT_SERVING" number: 2 }
    value { name: "SERVICE_UNKNOWN" number: 3 }
  }
}
service {
  name: "Health"
  method {
    name: "Check"
    input_type: ".PACKAGE.HealthCheckRequest" output_type: ".PACKAGE.HealthCheckResponse"
  }
  method {
    name: "Watch"
    input_type: ".PACKAGE.HealthCheckRequest" output_type: ".PACKAGE.HealthCheckResponse"
    server_streaming: true
  }
}
"""

_REFLECTION_FILE: Final = """
message_type {
  name: "ServerReflectionRequest"
  field { name: "host" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
  field {
    name: "file_by_filename" number: 3 label: LABEL_OPTIONAL type: TYPE_STRING oneof_index: 0
  }
  field {
    name: "file_containing_symbol" number: 4 label: LABEL_OPTIONAL type: TYPE_STRING oneof_index: 0
  }
  field {
    name: "file_containing_extension" number: 5 label: LABEL_OPTIONAL oneof_index: 0
    type: TYPE_MESSAGE type_name: ".PACKAGE.ExtensionRequest"
  }
  field {
    name: "all_extension_numbers_of_type" number: 6 label: LABEL_OPTIONAL
    type: TYPE_STRING oneof_index: 0
  }
  field { name: "list_services" number: 7 label: LABEL_OPTIONAL type: TYPE_STRING oneof_index: 0 }
  oneof_decl { name: "message_request" }
}
message_type {
  name: "ExtensionRequest"
  field { name: "containing_type" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
  field { name: "extension_number" number: 2 label: LABEL_OPTIONAL type: TYPE_INT32 }
}
message_type {
  name: "ServerReflectionResponse"
  field { name: "valid_host" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
  field {
    name: "original_request" number: 2 label: LABEL_OPTIONAL
    type: TYPE_MESSAGE type_name: ".PACKAGE.ServerReflectionRequest"
  }
  field {
    name: "file_descriptor_response" number: 4 label: LABEL_OPTIONAL oneof_index: 0
    type: TYPE_MESSAGE type_name: ".PACKAGE.FileDescriptorResponse"
  }
  field {
    name: "all_extension_numbers_response" number: 5 label: LABEL_OPTIONAL oneof_index: 0
    type: TYPE_MESSAGE type_name: ".PACKAGE.ExtensionNumberResponse"
  }
  field {
    name: "list_services_response" number: 6 label: LABEL_OPTIONAL oneof_index: 0
    type: TYPE_MESSAGE type_name: ".PACKAGE.ListServiceResponse"
  }
  field {
    name: "error_response" number: 7 label: LABEL_OPTIONAL oneof_index: 0
    type: TYPE_MESSAGE type_name: ".PACKAGE.ErrorResponse"
  }
  oneof_decl { name: "message_response" }
}
message_type {
  name: "FileDescriptorResponse"
  field { name: "file_descriptor_proto" number: 1 label: LABEL_REPEATED type: TYPE_BYTES }
}
message_type {
  name: "ExtensionNumberResponse"
  field { name: "base_type_name" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
  field { name: "extension_number" number: 2 label: LABEL_REPEATED type: TYPE_INT32 }
}
message_type {
  name: "ListServiceResponse"
  field {
    name: "service" number: 1 label: LABEL_REPEATED
    type: TYPE_MESSAGE type_name: ".PACKAGE.ServiceResponse"
  }
}
message_type {
  name: "ServiceResponse"
  field { name: "name" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
}
message_type {
  name: "ErrorResponse"
  field { name: "error_code" number: 1 label: LABEL_OPTIONAL type: TYPE_INT32 }
  field { name: "error_message" number: 2 label: LABEL_OPTIONAL type: TYPE_STRING }
}
service {
  name: "ServerReflection"
  method {
    name: "ServerReflectionInfo"
    input_type: ".PACKAGE.ServerReflectionRequest"
    output_type: ".PACKAGE.ServerReflectionResponse"
    client_streaming: true
    server_streaming: true
  }
}
"""

_FILES: Final = {
    HEALTH: ("grpc/health/v1/health.proto", _HEALTH_FILE),
    REFLECTIONS[0]: ("grpc/reflection/v1/reflection.proto", _REFLECTION_FILE),
    REFLECTIONS[1]: ("grpc/reflection/v1alpha/reflection.proto", _REFLECTION_FILE),
}


@functools.cache
def file_of(package: str) -> FileDescriptor:
    """Return the descriptor of the file of one of the packages."""
    name, text = _FILES[package]
    file = FileDescriptorProto(name=name, package=package, syntax="proto3")
    Parse(text.replace("PACKAGE", package), file)
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool.FindFileByName(name)


def message_class(package: str, name: str) -> Any:
    """Return the class of a message of one of the packages."""
    return GetMessageClass(file_of(package).message_types_by_name[name])
