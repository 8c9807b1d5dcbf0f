"""The gRPC server: its port, its limits, its end."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import grpc
import grpc.aio

from runtime.settings import KSERVE_GRPC_PORT

logger = logging.getLogger(__name__)

MOST_CALLS_BESIDE_SLOTS = 64
"""Calls that no slot bounds: health, metadata, loads, and refusals."""
HEAD_ROOM_BYTES = 1024**2
"""A message holds more than tensors; without this a body at its limit would be refused."""


@dataclass(frozen=True, slots=True)
class GrpcLimits:
    """What one pod takes at once."""

    message_bytes: int
    calls: int


class GrpcServer:
    """Serves on the event loop that starts it."""

    def __init__(self, handler: grpc.GenericRpcHandler, limits: GrpcLimits) -> None:
        self._server = grpc.aio.server(
            handlers=[handler],
            options=[
                ("grpc.max_receive_message_length", limits.message_bytes + HEAD_ROOM_BYTES),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),  # two pods on one port would share its clients
            ],
            maximum_concurrent_rpcs=limits.calls + MOST_CALLS_BESIDE_SLOTS,
        )

    async def start(self, host: str, port: int) -> int:
        """Serve; returns the port. KServe's own gives way to a free one where it is taken."""
        bound = self._bind(host, port)
        await self._server.start()
        logger.info("gRPC listens", extra={"host": host, "port": bound})
        return bound

    def _bind(self, host: str, port: int) -> int:
        address = f"[{host}]" if ":" in host else host
        try:
            return int(self._server.add_insecure_port(f"{address}:{port}"))
        except RuntimeError:
            if port != KSERVE_GRPC_PORT:
                raise
        logger.info("gRPC port taken, another is used", extra={"port": port})
        return int(self._server.add_insecure_port(f"{address}:0"))

    async def stop(self, grace_s: float) -> None:
        """Take no more calls, and cancel those that are left after `grace_s`."""
        await self._server.stop(grace_s)
