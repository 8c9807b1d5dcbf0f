"""The messages of the gateway's gRPC services for health and reflection.

They are described here as their files are written (https://github.com/grpc/grpc-proto).
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from common.inference_protocol.grpc_messages import INFERENCE, messages

HEALTH: Final = "grpc.health.v1.Health"
REFLECTION_PACKAGES: Final = ("grpc.reflection.v1", "grpc.reflection.v1alpha")
"""One service under two names: clients ask for the first, older ones for the second."""
SERVING: Final = 1
NOT_SERVING: Final = 2
_TYPES: Final = {"string": "TYPE_STRING", "int32": "TYPE_INT32", "bytes": "TYPE_BYTES"}


def _field(name: str, number: int, kind: str, *, many: bool = False, choice: bool = False) -> str:
    label = "LABEL_REPEATED" if many else "LABEL_OPTIONAL"
    type_ = f"type: {_TYPES[kind]}" if kind in _TYPES else f'type_name: "{kind}"'
    oneof = "oneof_index: 0" if choice else ""
    return f'field {{ name: "{name}" number: {number} label: {label} {type_} {oneof} }}'


def _message(name: str, *fields: str, choice: str = "") -> str:
    oneof = f'oneof_decl {{ name: "{choice}" }}' if choice else ""
    return f'message_type {{ name: "{name}" {" ".join(fields)} {oneof} }}'


def _method(name: str, takes: str, gives: str, flags: str = "") -> str:
    return f'method {{ name: "{name}" input_type: "{takes}" output_type: "{gives}" {flags} }}'


def _file(package: str, *parts: str) -> FileDescriptorProto:
    name = f"{package.replace('.', '/')}/{package.split('.')[1]}.proto"
    text = f'name: "{name}" package: "{package}" syntax: "proto3" {" ".join(parts)}'
    return text_format.Parse(text, FileDescriptorProto())


def _health_file() -> FileDescriptorProto:
    package = "grpc.health.v1"
    request, response = f".{package}.HealthCheckRequest", f".{package}.HealthCheckResponse"
    return _file(
        package,
        _message("HealthCheckRequest", _field("service", 1, "string")),
        'message_type { name: "HealthCheckResponse" enum_type { name: "ServingStatus"'
        ' value { name: "UNKNOWN" number: 0 } value { name: "SERVING" number: 1 }'
        ' value { name: "NOT_SERVING" number: 2 } value { name: "SERVICE_UNKNOWN" number: 3 } }'
        ' field { name: "status" number: 1 label: LABEL_OPTIONAL type: TYPE_ENUM'
        f' type_name: "{response}.ServingStatus" }} }}',
        f'service {{ name: "Health" {_method("Check", request, response)} }}',
    )


def _reflection_file(package: str) -> FileDescriptorProto:
    own = f".{package}."
    request, response = f"{own}ServerReflectionRequest", f"{own}ServerReflectionResponse"
    extension = f"{own}ExtensionRequest"
    streams = "client_streaming: true server_streaming: true"
    method = _method("ServerReflectionInfo", request, response, streams)
    return _file(
        package,
        _message(
            "ServerReflectionRequest",
            _field("host", 1, "string"),
            _field("file_by_filename", 3, "string", choice=True),
            _field("file_containing_symbol", 4, "string", choice=True),
            _field("file_containing_extension", 5, extension, choice=True),
            _field("all_extension_numbers_of_type", 6, "string", choice=True),
            _field("list_services", 7, "string", choice=True),
            choice="message_request",
        ),
        _message(
            "ExtensionRequest",
            _field("containing_type", 1, "string"),
            _field("extension_number", 2, "int32"),
        ),
        _message(
            "ServerReflectionResponse",
            _field("valid_host", 1, "string"),
            _field("original_request", 2, request),
            _field("file_descriptor_response", 4, f"{own}FileDescriptorResponse", choice=True),
            _field(
                "all_extension_numbers_response", 5, f"{own}ExtensionNumberResponse", choice=True
            ),
            _field("list_services_response", 6, f"{own}ListServiceResponse", choice=True),
            _field("error_response", 7, f"{own}ErrorResponse", choice=True),
            choice="message_response",
        ),
        _message("FileDescriptorResponse", _field("file_descriptor_proto", 1, "bytes", many=True)),
        _message(
            "ExtensionNumberResponse",
            _field("base_type_name", 1, "string"),
            _field("extension_number", 2, "int32", many=True),
        ),
        _message("ListServiceResponse", _field("service", 1, f"{own}ServiceResponse", many=True)),
        _message("ServiceResponse", _field("name", 1, "string")),
        _message(
            "ErrorResponse", _field("error_code", 1, "int32"), _field("error_message", 2, "string")
        ),
        f'service {{ name: "ServerReflection" {method} }}',
    )


files: Final = DescriptorPool()
"""The files of all services, as reflection shows them."""
files.AddSerializedFile(messages.DESCRIPTOR.serialized_pb)
for _each in (_health_file(), *map(_reflection_file, REFLECTION_PACKAGES)):
    files.AddSerializedFile(_each.SerializeToString())
SERVICES: Final = (
    INFERENCE, HEALTH, *(f"{package}.ServerReflection" for package in REFLECTION_PACKAGES),
)  # fmt: skip


def message_class(name: str) -> Any:
    """A class of the health or reflection messages, by its full name."""
    return GetMessageClass(files.FindMessageTypeByName(name))
