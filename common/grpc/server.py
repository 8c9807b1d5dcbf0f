"""A port for gRPC: its services, gRPC's own health protocol, and the drain at the end."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from google.protobuf.message import DecodeError
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from common.grpc.call import INVALID_ARGUMENT, NOT_FOUND, Call
from common.grpc.http2 import Budget, CreateCall, GrpcConnection
from common.http_headers import Headers

logger = logging.getLogger(__name__)

HEALTH: Final = b"/grpc.health.v1.Health/Check"
"""Which Kubernetes' probes and load balancers ask."""
_BACKLOG: Final = 1024
IsReady = Mapping[str, Callable[[], bool]]


class HealthCheck(Call):
    def __init__(
        self, is_ready: IsReady, connection: GrpcConnection, number: int, headers: Headers
    ) -> None:
        """`is_ready`: by the name of a service."""
        super().__init__(connection, number, headers)
        self._is_ready = is_ready

    def on_message(self, content: bytes) -> None:
        try:
            service = HealthCheckRequest.FromString(content).service
        except DecodeError:
            self.finish(INVALID_ARGUMENT, "the message is not a HealthCheckRequest")
            return
        if service not in self._is_ready:
            self.finish(NOT_FOUND, f"there is no service {service[:200]!r}")
            return
        status = "SERVING" if self._is_ready[service]() else "NOT_SERVING"
        self.send(HealthCheckResponse(status=status).SerializeToString())
        self.finish()

    def on_end(self) -> None:
        self.finish(INVALID_ARGUMENT, "the call has no message")


@asynccontextmanager
async def serving(
    services: Mapping[bytes, CreateCall],
    is_ready: IsReady,
    *,
    host: str,
    port: int,
    max_message_bytes: int,
    drain_s: float,
    tls: ssl.SSLContext | None = None,
    budget: Budget | None = None,
) -> AsyncIterator[None]:
    """Serve on this event loop; at the end, calls in progress get `drain_s`.

    Raises OSError if the port is taken.
    """
    loop, connections = asyncio.get_running_loop(), set[GrpcConnection]()
    create = partial(
        GrpcConnection,
        {**services, HEALTH: partial(HealthCheck, is_ready)},
        connections,
        max_message_bytes=max_message_bytes,
        budget=budget,
    )
    try:
        server = await loop.create_server(create, host, port, ssl=tls, backlog=_BACKLOG)
    except OSError as error:
        raise OSError(f"gRPC port {port} of {host}: {error}") from error
    logger.info("gRPC listens", extra={"host": host, "port": port})
    try:
        yield
    finally:
        server.close()
        for connection in list(connections):
            connection.leave()
        if closed := [each.closed for each in connections]:
            await asyncio.wait(closed, timeout=drain_s)
        for connection in list(connections):
            connection.transport.abort()
