"""V2 over gRPC, with the decisions, limits and records of inference over HTTP.

Here are the server's port, limits, shutdown and health.
"""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import grpc
import grpc.aio
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from common.inference_protocol.grpc_messages import INFERENCE
from gateway.app import GatewayApp
from gateway.grpc.authority_relay import relaying
from gateway.grpc.inference_service import InferenceService
from gateway.settings import GatewaySettings

logger = logging.getLogger(__name__)

_OVERHEAD_BYTES: Final = 1024**2
"""For a message's other fields than tensors; without it, a body of the maximum size is refused."""
HEALTH: Final = "grpc.health.v1.Health"
SERVICES: Final = (INFERENCE, HEALTH)


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
        handlers=[InferenceService(app).handler(), health_handler(lambda: app.is_ready)],
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
