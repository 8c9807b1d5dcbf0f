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
import time
import uuid
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn
import uvloop
from uvicorn.config import STARTUP_FAILURE

from gateway.app import GatewayApp
from gateway.applications.selector import ApplicationSelector
from gateway.applications.window_planner import WindowPlanner
from gateway.dispatch.dispatcher import Dispatcher, LoopTimers
from gateway.dispatch.inference_call import CallContext
from gateway.dispatch.lost_pods import LostPods
from gateway.dispatch.passive_health import PassiveHealth
from gateway.dispatch.reservations import Reservations
from gateway.dispatch.retries import Retries
from gateway.http.listener import Listener, listen
from gateway.http.probe_server import ProbeServer
from gateway.http.server import create_protocol
from gateway.management.api import create_api
from gateway.management.workflows import WorkflowProxy, workflow_routes
from gateway.settings import GatewaySettings
from gateway.sneakpeek.client import SneakPeekClient
from gateway.telemetry.arrival_counter import ArrivalCounter
from gateway.telemetry.explanations import Explanations
from gateway.telemetry.metrics import GatewayMetrics
from gateway.telemetry.request_telemetry import RequestTelemetry
from gateway.upstream.model_loads import ModelLoads
from gateway.upstream.pod_connection import PodConnectionPool
from registry.inference_service.tenant_rules import parse_rules
from registry.logs import configure_logs
from registry.pod_secret import PodSecret
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch
from registry.settings_table import read_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

logger = logging.getLogger(__name__)

BACKLOG = 4096
KEEP_ALIVE_S = 75
"""Longer than clients and proxies keep idle connections: they close first, so none goes stale."""


class GatewayServer(uvicorn.Server):
    """uvicorn's server; the application is draining before the server stops accepting."""

    def __init__(
        self,
        config: uvicorn.Config,
        app: GatewayApp,
        metrics: GatewayMetrics,
        *,
        health_port: int,
        probes: ProbeServer,
    ) -> None:
        super().__init__(config)
        self._app = app
        self._metrics = metrics
        self._health_port = health_port
        self._probes = probes

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and accept all connections that wait at once."""
        config = self.config
        self.lifespan = config.lifespan_class(config)
        protocol: Any = config.http_protocol_class
        create = partial(
            protocol,
            config=config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        try:
            listening = listen(config.host, config.port, BACKLOG)
            if self._health_port:
                self._probes.start(config.host, self._health_port)
        except OSError as error:
            logger.error("cannot listen", extra={"error": error})
            sys.exit(STARTUP_FAILURE)
        self.servers = [
            Listener(each, create, self._metrics.saw_unread)  # type: ignore[misc]
            for each in listening
        ]
        self._log_started_message(listening)
        self.started = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on SIGINT and SIGTERM.

        uvicorn raises the signal once more at the end, which would kill the process before its
        reservations are released.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    async def shutdown(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        """Reject new requests on open connections, then wait for those in flight."""
        self._app.is_draining = True
        await super().shutdown(sockets)  # type: ignore[arg-type]


@asynccontextmanager
async def running_app(
    settings: GatewaySettings, metrics: GatewayMetrics | None = None
) -> AsyncIterator[GatewayApp]:
    """A gateway, composed and running, without its HTTP server."""
    registry = Registry(settings.redis_url, settings.pool)
    watch = ClusterWatch(registry)
    gateway_id = uuid.uuid4().hex[:8]
    reservations = Reservations(registry, watch.state, gateway_id, ttl_s=settings.reservation_ttl)
    name = f"{socket.gethostname()}/{gateway_id}"
    explanations = Explanations(gateway=name)
    dispatcher = Dispatcher(watch.state, reservations, explanations, watch.registry_now_s)
    watch.subscribe(dispatcher.notify_change)
    watch.subscribe(reservations.retry_releases)
    metrics = metrics or GatewayMetrics()
    connections = PodConnectionPool(PodSecret(settings.pod_secret_file))
    arrival_counter = ArrivalCounter(
        registry, gateway_id, dispatcher.queue_stats, lambda: dispatcher.queued_total
    )
    context = CallContext(
        dispatcher,
        reservations,
        Retries(PassiveHealth(LoopTimers(), dispatcher.notify_change)),
        connections,
        RequestTelemetry(metrics, name),
        arrival_counter,
        LostPods(time.monotonic, settings.lost_pods_pause),
    )
    app: GatewayApp

    def is_draining() -> bool:
        return app.is_draining

    api = create_api(watch, metrics, explanations, dispatcher, reservations, is_draining)
    api.include_router(workflow_routes(WorkflowProxy(settings.workflows_url, connections)))
    rules = parse_rules(prefixes=settings.sneakpeek_prefixes)
    sneak_peek = SneakPeekClient(
        watch.state,
        lambda outcome: metrics.looks.labels(outcome).inc(),
        lambda namespace, uri: rules.granting_prefix(namespace, uri) is not None,
    )
    loads = ModelLoads(connections.secret, watch.state)
    planner = WindowPlanner()
    selector = ApplicationSelector(
        watch.state, explanations, watch.registry_now_s, loads.request, planner, LoopTimers()
    )
    watch.subscribe(sneak_peek.sync)
    watch.subscribe(selector.notify_change)
    app = GatewayApp(api, context, watch, settings, selector, sneak_peek)  # type: ignore[arg-type]  # ASGI's types vary
    async with asyncio.TaskGroup() as group:
        runs = [
            watch.run,
            reservations.renew_periodically,
            reservations.register_periodically,
            connections.close_idle_periodically,
            connections.secret.reload_periodically,
            arrival_counter.run,
            sneak_peek.run,
            planner.run,
            loads.run,
        ]
        if app.access is not None:
            runs.append(app.access.reload_periodically)
        tasks = [group.create_task(run()) for run in runs]
        try:
            yield app
        finally:
            for task in tasks:
                task.cancel()
    connections.close()
    await registry.close()


async def serve(settings: GatewaySettings) -> None:
    """Serve until SIGINT or SIGTERM."""
    metrics = GatewayMetrics()
    async with running_app(settings, metrics) as app:
        config = uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            http=create_protocol(app.resolve_target, app.infer),  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=math.ceil(settings.drain_timeout),
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        gc.freeze()  # excludes the objects of the start, which stay, from garbage collection
        gc.set_threshold(50_000, 20, 20)
        probes = ProbeServer({"/healthz": lambda: True, "/readyz": lambda: app.is_ready})
        beating = asyncio.create_task(probes.beat_periodically())
        try:
            await GatewayServer(
                config, app, metrics, health_port=settings.health_port, probes=probes
            ).serve()
        finally:
            beating.cancel()
            probes.close()


def main() -> None:
    settings = read_settings(GatewaySettings, sys.argv[1:], os.environ, prog="python -m gateway")
    configure_logs(logging.StreamHandler(sys.stderr), settings.log_level)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings))


if __name__ == "__main__":
    main()
