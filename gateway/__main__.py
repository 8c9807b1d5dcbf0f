"""Run one gateway: `python -m gateway --redis-url … --port …`."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import signal
import socket
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import uvloop
from uvicorn.config import STARTUP_FAILURE

from common.http_server import HttpServer
from common.pod_secret import PodSecret
from common.probe_server import serving_probes
from common.process import configure_logs, keep_freed_memory, on_stop_signals, set_process_title
from common.settings_table import read_settings
from common.tls import PartTls
from gateway.app import GatewayApp, Inference
from gateway.authentication.access import create_access
from gateway.authentication.issuers import LOOPBACK
from gateway.console.pages import Console
from gateway.dispatch.component_exchange import ComponentCalls
from gateway.handler_selection import ExchangeChoice
from gateway.http.body import BUFFER_BYTES, MIN_BODY_RATE, BodyLimits, HeldBodies
from gateway.http.listener import Listener, listen
from gateway.http.pod_connection import PodConnectionPool
from gateway.http.server import create_protocol
from gateway.http.targets import KnownNames
from gateway.management.api import create_api, render_metrics
from gateway.management.workflows import WorkflowProxy, workflow_routes
from gateway.pool import GatewayPools, create_pool
from gateway.request_task import Shutdown
from gateway.settings import GatewaySettings, contradictions
from gateway.telemetry.metrics import GatewayMetrics
from gateway.telemetry.request_telemetry import RequestTelemetry

if TYPE_CHECKING:
    from gateway.telemetry.tracing import Tracer

logger = logging.getLogger(__name__)

BACKLOG = 4096
_KEPT_MEMORY_BYTES = 32 << 20
KEEP_ALIVE_S = 75
"""Longer than clients and proxies keep idle connections: they close first, so none goes stale."""


class GatewayServer(HttpServer):
    """The HTTP server: at shutdown it first lets clients leave, then drains, then stops."""

    def __init__(self, app: GatewayApp, settings: GatewaySettings) -> None:
        super().__init__(
            app,
            host=settings.host,
            port=settings.port,
            keep_alive_s=KEEP_ALIVE_S,
            drain_s=math.ceil(settings.drain_timeout),
            http=create_protocol(app.resolve_target, app.infer, app.take_warm),
        )
        self._app = app
        self._settings = settings

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on the ports for HTTP and TLS. Raises OSError."""
        config, tls_port = self.config, self._settings.tls_port
        self.lifespan = config.lifespan_class(config)
        protocol: Any = config.http_protocol_class
        create = partial(
            protocol, config=config, server_state=self.server_state, app_state=self.lifespan.state
        )
        listening = listen(config.host, config.port, BACKLOG)
        with_tls = listen(config.host, tls_port, BACKLOG) if tls_port else []
        self.servers = [
            Listener(each, create, tls)  # type: ignore[misc]
            for sockets_of, tls in ((listening, None), (with_tls, self._app.tls.server))
            for each in sockets_of
        ]
        self._log_started_message(listening)
        self.started = True

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Shut down after `shutdown_delay`, during which responses close their connections.

        A second signal skips the delay.
        """
        delay_s = self._settings.shutdown_delay
        if self._app.shutdown.is_leaving or not delay_s:
            super().stop(number)
            return
        logger.info("shutting down", extra={"delay_s": delay_s})
        self._app.shutdown.is_leaving = True
        asyncio.get_running_loop().call_later(delay_s, super().stop, number)

    async def shutdown(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        """Reject new requests on open connections, then wait for those in flight."""
        self._app.shutdown.is_draining = True
        await super().shutdown(sockets)  # type: ignore[arg-type]


def _tracer(settings: GatewaySettings, name: str) -> Tracer | None:
    if not settings.otlp_endpoint:
        return None
    from gateway.telemetry.tracing import Tracer  # slow to import, and seldom used

    return Tracer(settings.trace_ratio, settings.otlp_endpoint, name)


@asynccontextmanager
async def running_app(
    settings: GatewaySettings, metrics: GatewayMetrics | None = None
) -> AsyncIterator[GatewayApp]:
    """All parts of a gateway, with their background tasks, but the HTTP server."""
    metrics = metrics or GatewayMetrics()
    gateway_id = uuid.uuid4().hex[:8]
    name = f"{socket.gethostname()}/{gateway_id}"
    tracer = _tracer(settings, name)
    telemetry = RequestTelemetry(metrics, name, logs_requests=settings.access_log, tracer=tracer)
    connections = PodConnectionPool(PodSecret(settings.pod_secret_file), PartTls(settings.tls_dir))
    components = ComponentCalls(telemetry)
    files = settings.api_keys, settings.token_issuers, settings.cluster_issuer
    access = None if settings.auth == "open" else create_access(*files, settings.operators)
    names = KnownNames(domain=settings.ingress_domain)
    pools = GatewayPools(
        [
            create_pool(
                settings,
                pool,
                gateway_id,
                metrics=metrics,
                telemetry=telemetry,
                connections=connections,
                is_guarded=access is not None,
                names=names,
            )
            for pool in settings.pools
        ],
        names,
        is_guarded=access is not None,
    )
    metrics.labels.is_declared = pools.declares
    shutdown = Shutdown()
    api = create_api(pools.served, metrics, telemetry.recent, shutdown)
    limits = BodyLimits(settings.max_body_bytes, BUFFER_BYTES, settings.body_timeout, MIN_BODY_RATE)
    held = HeldBodies(settings.held_body_bytes)
    workflows = WorkflowProxy(
        settings.workflows_url, connections.secret, connections.tls, limits, held, shutdown
    )
    api.include_router(workflow_routes(workflows))
    shown = pools.served[0]
    console = Console(
        shown.watch,
        metrics,
        telemetry.recent,
        [each.explanations for each in pools.served],
        queued_total=lambda: shown.placer.queued_total,
        shutdown=shutdown,
        is_open=access is None and settings.host not in LOOPBACK,
    )
    console.add_to(api)
    secret = connections.secret
    exchanges = ExchangeChoice(pools, settings, components, secret, access is not None, shutdown)
    inference = Inference(exchanges, telemetry, access, limits, held)
    app = GatewayApp(api, inference, connections.tls)
    try:
        async with asyncio.TaskGroup() as group:
            runs = [
                connections.close_idle_periodically,
                components.connections.close_idle_periodically,
                connections.secret.reload_periodically,
                connections.tls.reload_periodically,
                console.run,
                *pools.runs(),
            ]
            if access is not None:
                runs.append(access.reload_periodically)
            tasks = [group.create_task(run()) for run in runs]
            try:
                yield app
            finally:
                for task in tasks:
                    task.cancel()
        if tracer is not None:
            await asyncio.to_thread(tracer.close)
    finally:
        connections.close()
        components.connections.close()
        workflows.close()
        await pools.close()


async def serve(settings: GatewaySettings) -> None:
    """Serve until SIGINT or SIGTERM."""
    metrics = GatewayMetrics()
    async with running_app(settings, metrics) as app:
        server = GatewayServer(app, settings)
        gc.freeze()  # startup's objects live on: garbage collection skips them
        gc.set_threshold(5_000, 200, 20)  # pauses of 1 ms; at 50,000 objects up to 60 ms
        try:
            async with AsyncExitStack() as stack:
                if settings.health_port:
                    probes = serving_probes(
                        settings.host,
                        settings.health_port,
                        is_ready=lambda: app.is_ready,
                        metrics=partial(render_metrics, metrics, app.pools.served),
                    )
                    stack.enter_context(probes)
                if settings.grpc_port:
                    from gateway.grpc.inference_service import serving_grpc  # it takes memory

                    await stack.enter_async_context(serving_grpc(app, settings))
                if settings.picker_port:
                    from gateway.picker.process import serving_picker  # as above

                    await stack.enter_async_context(serving_picker(app, settings))
                stack.enter_context(on_stop_signals(server.stop))
                await server.serve()
        except OSError as error:
            logger.error("cannot listen", extra={"error": error})
            sys.exit(STARTUP_FAILURE)


def main() -> None:
    settings = read_settings(GatewaySettings, sys.argv[1:], os.environ, prog="python -m gateway")
    if problems := contradictions(settings):
        sys.stderr.write("\n".join(problems) + "\n")
        sys.exit(2)
    set_process_title("gateway")
    configure_logs(
        logging.StreamHandler(sys.stderr), settings.log_level, log_format=settings.log_format
    )
    keep_freed_memory(_KEPT_MEMORY_BYTES)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings))


if __name__ == "__main__":
    main()
