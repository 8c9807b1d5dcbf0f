"""V2 over gRPC, with the decisions, limits and records of inference over HTTP.

Here are the server's port, limits, shutdown, health and reflection.
"""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import grpc
import grpc.aio
from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_reflection.v1alpha.reflection import aio
from grpc_reflection.v1alpha.reflection_pb2 import (
    DESCRIPTOR,
    ServerReflectionRequest,
    ServerReflectionResponse,
)

from common.inference_protocol.grpc_messages import INFERENCE, POOL
from gateway.app import GatewayApp
from gateway.grpc.authority_relay import relaying
from gateway.grpc.inference_service import InferenceService
from gateway.settings import GatewaySettings

logger = logging.getLogger(__name__)

_OVERHEAD_BYTES: Final = 1024**2
"""For a message's other fields than tensors; without it, a body of the maximum size is refused."""
HEALTH: Final = "grpc.health.v1.Health"
REFLECTION: Final = (
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
)
"""One service under two names: clients ask for the first, older ones for the second."""
SERVICES: Final = (INFERENCE, HEALTH, *REFLECTION)


class _Reflection(aio.ReflectionServicer):  # type: ignore[misc]  # it has no types
    def _file_containing_symbol(self, request: ServerReflectionRequest, name: str) -> object:
        """Also of a service's method, which the library does not look for."""
        service = name.rpartition(".")[0]
        return super()._file_containing_symbol(request, service if service in SERVICES else name)


def reflection_handlers() -> list[grpc.GenericRpcHandler]:
    """Clients such as grpcurl learn the services and their messages."""
    described = FileDescriptorProto.FromString(DESCRIPTOR.serialized_pb)
    text = text_format.MessageToString(described).replace("v1alpha", "v1")  # the library has one
    for each in (health_pb2.DESCRIPTOR.serialized_pb, DESCRIPTOR.serialized_pb):
        POOL.AddSerializedFile(each)
    POOL.Add(text_format.Parse(text, FileDescriptorProto()))
    method = grpc.stream_stream_rpc_method_handler(
        _Reflection(SERVICES, POOL).ServerReflectionInfo,
        ServerReflectionRequest.FromString,
        ServerReflectionResponse.SerializeToString,
    )
    return [
        grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": method})
        for name in REFLECTION
    ]


def health_handler(is_ready: Callable[[], bool]) -> grpc.GenericRpcHandler:
    """GRPC's own health protocol, which Kubernetes' probes and load balancers ask."""

    async def check(
        request: HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> HealthCheckResponse:
        if request.service and request.service not in SERVICES:
            unknown = f"there is no service {request.service[:200]!r}"
            await context.abort(grpc.StatusCode.NOT_FOUND, unknown)
        return HealthCheckResponse(status="SERVING" if is_ready() else "NOT_SERVING")

    method = grpc.unary_unary_rpc_method_handler(
        check, HealthCheckRequest.FromString, HealthCheckResponse.SerializeToString
    )
    return grpc.method_handlers_generic_handler(HEALTH, {"Check": method})


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
