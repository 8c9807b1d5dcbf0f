"""gRPC's reflection: clients such as grpcurl learn the services and their messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from gateway.grpc.messages import REFLECTION_PACKAGES, SERVICES, files, message_class

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def reflection_handlers() -> list[grpc.GenericRpcHandler]:
    return [_handler(package) for package in REFLECTION_PACKAGES]


def _handler(package: str) -> grpc.GenericRpcHandler:
    request_class = message_class(f"{package}.ServerReflectionRequest")
    response_class = message_class(f"{package}.ServerReflectionResponse")

    async def info(
        contents: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        async for content in contents:
            try:
                request = request_class.FromString(content)
            except DecodeError as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            response = response_class(valid_host=request.host, original_request=request)
            _fill(response, request)
            yield response.SerializeToString()

    return grpc.method_handlers_generic_handler(
        f"{package}.ServerReflection",
        {"ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(info)},
    )


def _fill(response: Any, request: Any) -> None:
    """The answer to one question; none of the files has extensions."""
    match request.WhichOneof("message_request"):
        case "list_services":
            for name in SERVICES:
                response.list_services_response.service.add(name=name)
        case "file_by_filename":
            _fill_file(response, files.FindFileByName, request.file_by_filename)
        case "file_containing_symbol":
            _fill_file(response, _file_of_symbol, request.file_containing_symbol)
        case _:
            _refuse(response, grpc.StatusCode.NOT_FOUND, "no file has extensions")


def _fill_file(response: Any, find: Any, name: str) -> None:
    try:
        found = find(name)
    except KeyError:
        _refuse(response, grpc.StatusCode.NOT_FOUND, f"{name[:200]!r} is not known")
        return
    response.file_descriptor_response.file_descriptor_proto.append(found.serialized_pb)


def _file_of_symbol(name: str) -> Any:
    """Of a message, a service, or a service's method. Raises KeyError."""
    try:
        return files.FindFileContainingSymbol(name)
    except KeyError:
        return files.FindServiceByName(name.rpartition(".")[0]).file


def _refuse(response: Any, code: grpc.StatusCode, message: str) -> None:
    response.error_response.error_code = code.value[0]
    response.error_response.error_message = message
