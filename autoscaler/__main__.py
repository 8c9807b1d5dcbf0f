"""Run one autoscaler: `python -m autoscaler --redis-url …`. Only the leader of several plans."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import uuid
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING

from autoscaler.act import ActionExecutor, RegistryActuator
from autoscaler.desired_pods import pool_problems
from autoscaler.loading_policies import policy_of, value_problem
from autoscaler.loop import LEASE_S, Autoscaler
from autoscaler.metrics import AutoscalerMetrics
from autoscaler.policy import Limits
from autoscaler.settings import AutoscalerSettings
from common.pod_client import PodClient
from common.pod_secret import PodSecret
from common.probe_server import exposition, serving_probes
from common.process import configure_logs, on_stop_signals, set_process_title
from common.settings_table import read_settings
from common.tls import PartTls
from registry.errors import RegistryUnavailable
from registry.redis.client import Registry
from registry.redis.reports import AutoscalerLog
from registry.redis.watch import ClusterWatch

if TYPE_CHECKING:
    from autoscaler.pool_actuator import PoolActuator

_MAX_MESSAGE_BYTES = 1 << 16
"""Of a call of KEDA's: a ScaledObject's metadata."""


async def serve(settings: AutoscalerSettings, metrics: AutoscalerMetrics) -> None:
    """Plan and act until cancelled; then release the lead, so that another autoscaler can lead."""
    registry = Registry(settings.redis_url, settings.pool)
    watch = ClusterWatch(registry)
    log = AutoscalerLog(registry)
    holder = f"{socket.gethostname()}-{uuid.uuid4().hex[:6]}"
    policy = policy_of(settings.loading, settings.loading_value)
    secret, tls = PodSecret(settings.pod_secret_file), PartTls(settings.tls_dir)
    pods = PodClient(secret, tls)
    async with AsyncExitStack() as exit_stack:
        exit_stack.push_async_callback(registry.close)
        exit_stack.callback(pods.close)
        exit_stack.push_async_callback(_release_lead, log, holder, LEASE_S)
        actuator = (
            await _pool_actuator(settings, watch, metrics, exit_stack)
            if settings.kubernetes
            else RegistryActuator(settings)
        )
        autoscaler = Autoscaler(settings, watch, log, policy, metrics, holder, actuator=actuator)
        async with asyncio.TaskGroup() as group:
            group.create_task(watch.run())
            group.create_task(secret.reload_periodically())
            group.create_task(tls.reload_periodically())
            if not isinstance(actuator, RegistryActuator):
                group.create_task(actuator.run())
            executor = ActionExecutor(
                group,
                log,
                pods,
                metrics,
                actuator,
                state=lambda: watch.state,
                now_s=watch.registry_now_s,
                pace=settings.pace,
            )
            group.create_task(autoscaler.run(executor))
            if settings.scaler_port:
                await exit_stack.enter_async_context(_external_scaler(settings, watch, tls, group))


async def _release_lead(log: AutoscalerLog, holder: str, lease_s: float) -> None:
    with suppress(RegistryUnavailable):
        token = await log.acquire_lead(holder, ttl_s=lease_s)
        if token is not None:
            await log.release_lead(token)


async def _pool_actuator(
    settings: AutoscalerSettings,
    watch: ClusterWatch,
    metrics: AutoscalerMetrics,
    exit_stack: AsyncExitStack,
) -> PoolActuator:
    from autoscaler.pool_actuator import PoolActuator
    from controller.api import ClusterApi, connect  # optional extra
    from controller.pool_scaler import PoolScaler

    client = await connect()
    exit_stack.push_async_callback(client.close)
    return PoolActuator(
        settings.pool,
        PoolScaler(client, namespace=settings.namespace),
        ClusterApi(client, component="pilotlight-autoscaler", instance=socket.gethostname()),
        watch,
        metrics,
        lease_s=LEASE_S,
    )


def _external_scaler(
    settings: AutoscalerSettings, watch: ClusterWatch, tls: PartTls, group: asyncio.TaskGroup
) -> AbstractAsyncContextManager[None]:
    from autoscaler.external_scaler import SERVICE, ExternalScaler  # it takes memory
    from common.grpc.server import serving

    scaler = ExternalScaler(settings.pool, watch, group)
    group.create_task(scaler.run())
    if tls.server is not None:
        tls.server.set_alpn_protocols(["h2"])
    return serving(
        scaler.calls(),
        dict.fromkeys(("", SERVICE), lambda: True),
        host=_host(settings),
        port=settings.scaler_port,
        max_message_bytes=_MAX_MESSAGE_BYTES,
        drain_s=1.0,
        tls=tls.server,
    )


def _host(settings: AutoscalerSettings) -> str:
    return "0.0.0.0" if settings.kubernetes else "127.0.0.1"


async def _serve_until_signal(settings: AutoscalerSettings, metrics: AutoscalerMetrics) -> None:
    async with AsyncExitStack() as stack:
        if settings.metrics_port:
            show = partial(exposition, metrics.registry)
            probes = serving_probes(
                _host(settings), settings.metrics_port, is_ready=lambda: True, metrics=show
            )
            stack.enter_context(probes)
        task = asyncio.create_task(serve(settings, metrics))
        stack.enter_context(on_stop_signals(lambda _: task.cancel()))
        with suppress(asyncio.CancelledError):
            await task


def _problems(settings: AutoscalerSettings) -> list[str]:
    has_bounds = settings.min_pods is not None or settings.max_pods is not None
    if settings.kubernetes and has_bounds:
        return [
            "--min-pods and --max-pods must be left out with --kubernetes: the pool's bounds are "
            "minReplicas and maxReplicas of its InferenceService"
        ]
    if settings.loading_value is not None:
        problem = value_problem(settings.loading, settings.loading_value)
        if problem:
            return [f"--loading-value {problem}"]
    return pool_problems(Limits(settings.min_pods or 0, settings.max_pods))


def main() -> None:
    settings = read_settings(
        AutoscalerSettings, sys.argv[1:], os.environ, prog="python -m autoscaler"
    )
    if problems := _problems(settings):
        sys.stderr.write("\n".join(problems) + "\n")
        sys.exit(2)
    set_process_title("autoscaler")
    configure_logs(logging.StreamHandler(sys.stderr), settings.log_level)
    asyncio.run(_serve_until_signal(settings, AutoscalerMetrics()))


if __name__ == "__main__":
    main()
