"""The gRPC server of a pod: its port, its limits, its shutdown."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from runtime.settings import KSERVE_GRPC_PORT

if TYPE_CHECKING:
    from common.tls import PartTls

logger = logging.getLogger(__name__)

MAX_CALLS_WITHOUT_SLOT = 64
"""Calls that take no slot: health, metadata, loads, and refused requests."""
MESSAGE_OVERHEAD_BYTES = 1024**2
"""For a message's other fields than tensors; without it, a body of the maximum size is refused."""


class GrpcServer:
    """Serves on the event loop that starts it."""

    def __init__(
        self, handler: grpc.GenericRpcHandler, *, max_body_bytes: int, slots: int, tls: PartTls
    ) -> None:
        self._tls = tls
        self._server = grpc.aio.server(
            handlers=[handler],
            options=[
                ("grpc.max_receive_message_length", max_body_bytes + MESSAGE_OVERHEAD_BYTES),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),  # two pods on one port would share its clients
            ],
            maximum_concurrent_rpcs=slots + MAX_CALLS_WITHOUT_SLOT,
        )

    async def start(self, host: str, port: int) -> int:
        """Serve; returns the port. If KServe's default port is taken, a free one is used."""
        bound = self._bind(host, port)
        await self._server.start()
        logger.info("gRPC server listens", extra={"host": host, "port": bound})
        return bound

    def _bind(self, host: str, port: int) -> int:
        address = f"[{host}]" if ":" in host else host
        try:
            return self._add_port(f"{address}:{port}")
        except RuntimeError:
            if port != KSERVE_GRPC_PORT:
                raise
        logger.info("gRPC port is taken, using a free one", extra={"port": port})
        return self._add_port(f"{address}:0")

    def _add_port(self, address: str) -> int:
        if self._tls.server is None:
            return int(self._server.add_insecure_port(address))
        credentials = grpc.dynamic_ssl_server_credentials(self._certificate(), self._certificate)
        return int(self._server.add_secure_port(address, credentials))

    def _certificate(self) -> grpc.ServerCertificateConfiguration:
        """Asked for at each handshake."""
        return grpc.ssl_server_certificate_configuration([self._tls.key_and_chain])

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, and cancel the calls that remain after `grace_s`."""
        await self._server.stop(grace_s)
