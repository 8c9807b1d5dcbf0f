"""The gateway's gRPC server: its port, its limits, its shutdown."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import grpc.aio

from gateway.grpc.health_service import health_handler
from gateway.grpc.inference_service import InferenceService
from gateway.grpc.reflection_service import reflection_handlers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.app import GatewayApp
    from gateway.settings import GatewaySettings

logger = logging.getLogger(__name__)

_OVERHEAD_BYTES: Final = 1024**2
"""For a message's other fields than tensors; without it, a body of the maximum size is refused."""


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
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    try:
        server.add_insecure_port(f"{host}:{settings.grpc_port}")
    except RuntimeError as error:
        raise OSError(f"gRPC port {settings.grpc_port} of {settings.host}: {error}") from error
    await server.start()
    logger.info("gRPC listens", extra={"host": settings.host, "port": settings.grpc_port})
    try:
        yield
    finally:
        await server.stop(settings.drain_timeout)
