"""The picker's port: external processing, with TLS unless it is off."""

import asyncio
import datetime
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from common.certificates import make_certificates, make_context
from common.grpc.server import serving
from common.tls import PART_NAME, PartTls
from gateway.app import GatewayApp
from gateway.grpc.inference_service import server_options
from gateway.picker.process import PROCESS, Process
from gateway.settings import GatewaySettings

_READY: Final = ("", "readiness", PROCESS.decode().split("/")[1])


def _tls(settings: GatewaySettings) -> PartTls:
    """With one's own certificate, if there is none: gateways do not verify a picker's."""
    if settings.picker_tls == "off":
        return PartTls()
    tls = PartTls(settings.tls_dir)
    if tls.server is None:
        made = make_certificates([PART_NAME], datetime.datetime.now(datetime.UTC))
        tls.server = make_context(made)
    tls.server.set_alpn_protocols(["h2"])
    return tls


@asynccontextmanager
async def serving_picker(app: GatewayApp, settings: GatewaySettings) -> AsyncIterator[None]:
    """The picker at `--picker-port`. Raises OSError if the port is taken."""
    tls = _tls(settings)
    is_ready = {**dict.fromkeys(_READY, lambda: app.is_ready), "liveness": lambda: True}
    services = {PROCESS: partial(Process, app, set())}
    options = server_options(app, settings)
    async with (
        asyncio.TaskGroup() as group,
        serving(services, is_ready, port=settings.picker_port, tls=tls.server, **options),
    ):
        reloading = group.create_task(tls.reload_periodically())
        try:
            yield
        finally:
            reloading.cancel()
