"""The picker's port: external processing and gRPC's health protocol, with TLS unless it is off."""

import asyncio
import datetime
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from common.certificates import make_certificates, make_context
from common.tls import PART_NAME, PartTls
from gateway.app import GatewayApp
from gateway.grpc import HEALTH
from gateway.picker.grpc_server import NOT_FOUND, Call, CreateCall, GrpcConnection
from gateway.picker.process import PROCESS, Process
from gateway.settings import GatewaySettings

logger = logging.getLogger(__name__)

_BACKLOG: Final = 1024
_OVERHEAD_BYTES: Final = 1 << 20
"""Of a message beside a body."""
_LIVENESS: Final = "liveness"
_SERVICES: Final = ("", "readiness", PROCESS.decode().split("/")[1])


class _HealthCheck(Call):
    def __init__(self, app: GatewayApp, connection: GrpcConnection, number: int) -> None:
        super().__init__(connection, number)
        self._app = app

    def on_message(self, content: bytes) -> None:
        service = HealthCheckRequest.FromString(content).service
        if service not in (_LIVENESS, *_SERVICES):
            self.finish(NOT_FOUND, f"there is no service {service[:60]!r}")
            return
        is_serving = service == _LIVENESS or self._app.is_ready
        status = "SERVING" if is_serving else "NOT_SERVING"
        self.send(HealthCheckResponse(status=status).SerializeToString())
        self.finish()

    def on_end(self) -> None:
        self.finish()


def _tls(settings: GatewaySettings) -> PartTls:
    """With one's own certificate, if there is none: gateways do not verify a picker's."""
    tls = PartTls(settings.tls_dir)
    if settings.picker_tls != "off":
        if tls.server is None:
            tls.server = make_context(
                make_certificates([PART_NAME], datetime.datetime.now(datetime.UTC))
            )
        tls.server.set_alpn_protocols(["h2"])
    else:
        tls.server = None
    return tls


@asynccontextmanager
async def serving_picker(app: GatewayApp, settings: GatewaySettings) -> AsyncIterator[None]:
    """Serve on this event loop; at the end, requests in progress get the drain's time.

    Raises OSError if the port is taken.
    """
    loop, tls = asyncio.get_running_loop(), _tls(settings)
    connections: set[GrpcConnection] = set()
    services: dict[bytes, CreateCall] = {
        PROCESS: partial(Process, app, set()),
        f"/{HEALTH}/Check".encode(): partial(_HealthCheck, app),
    }
    most_bytes = settings.max_body_bytes + _OVERHEAD_BYTES
    create = partial(GrpcConnection, services, connections, max_message_bytes=most_bytes)
    server = await loop.create_server(
        create, settings.host, settings.picker_port, ssl=tls.server, backlog=_BACKLOG
    )
    logger.info("picker listens", extra={"host": settings.host, "port": settings.picker_port})
    async with asyncio.TaskGroup() as group:
        reloading = group.create_task(tls.reload_periodically())
        try:
            yield
        finally:
            reloading.cancel()
            server.close()
            for connection in list(connections):
                connection.leave()
            closed = [each.closed for each in connections]
            if closed:
                await asyncio.wait(closed, timeout=settings.drain_timeout)
            for connection in list(connections):
                connection.transport.abort()
