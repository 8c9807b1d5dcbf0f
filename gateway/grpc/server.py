"""The gateway's gRPC server: its port, its limits, its shutdown, its health and reflection."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from gateway.grpc.authority_relay import relaying
from gateway.grpc.inference_service import InferenceService
from gateway.grpc.messages import (
    HEALTH,
    NOT_SERVING,
    REFLECTION_PACKAGES,
    SERVICES,
    SERVING,
    files,
    message_class,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from gateway.app import GatewayApp
    from gateway.settings import GatewaySettings

logger = logging.getLogger(__name__)

_OVERHEAD_BYTES: Final = 1024**2
"""For a message's other fields than tensors; without it, a body of the maximum size is refused."""
_Request = message_class(f"{HEALTH}CheckRequest")
_Response = message_class(f"{HEALTH}CheckResponse")


def reflection_handlers() -> list[grpc.GenericRpcHandler]:
    """Clients such as grpcurl learn the services and their messages."""
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


def health_handler(is_ready: Callable[[], bool]) -> grpc.GenericRpcHandler:
    """GRPC's own health protocol, which Kubernetes' probes and load balancers ask."""

    async def check(content: bytes, context: grpc.aio.ServicerContext) -> bytes:
        service = _Request.FromString(content).service
        if service and service not in SERVICES:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service {service[:200]!r}")
        status = SERVING if is_ready() else NOT_SERVING
        answer: bytes = _Response(status=status).SerializeToString()
        return answer

    return grpc.method_handlers_generic_handler(
        HEALTH, {"Check": grpc.unary_unary_rpc_method_handler(check)}
    )


@asynccontextmanager
async def serving_grpc(app: GatewayApp, settings: GatewaySettings) -> AsyncIterator[None]:
    """Serve calls on this event loop; at the end, those in flight get the drain's time.

    Raises OSError if the port is taken.
    """
    server = grpc.aio.server(
        handlers=[
            InferenceService(app).handler(),
            health_handler(lambda: app.is_ready),
            *reflection_handlers(),
        ],
        options=[
            ("grpc.max_receive_message_length", settings.max_body_bytes + _OVERHEAD_BYTES),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),  # two gateways on one port would share its clients
        ],
    )
    async with relaying(settings.host, settings.grpc_port) as path:
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        logger.info("gRPC listens", extra={"host": settings.host, "port": settings.grpc_port})
        try:
            yield
        finally:
            await server.stop(settings.drain_timeout)
