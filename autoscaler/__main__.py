"""Run one autoscaler: `python -m autoscaler --redis-url …`. Several may run; one of them plans."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from contextlib import suppress

from prometheus_client import start_http_server

from autoscaler.loading.catalogue import LOADING_POLICIES
from autoscaler.planning.pool import Limits
from autoscaler.scaling.limits import pool_problems
from autoscaler.service.acting import Actor
from autoscaler.service.logs import configure_logs
from autoscaler.service.loop import Autoscaler
from autoscaler.service.metrics import AutoscalerMetrics
from autoscaler.service.pods import PodClient
from autoscaler.service.settings import AutoscalerSettings
from registry.autoscaling import Autoscaling
from registry.client import Registry
from registry.configuration import read_settings
from registry.errors import RegistryUnavailable
from registry.watch import ClusterWatch


async def serve(settings: AutoscalerSettings, metrics: AutoscalerMetrics) -> None:
    """Plan and act until cancelled; then let somebody else lead at once."""
    registry = Registry(settings.redis_url, settings.pool)
    watch = ClusterWatch(registry)
    autoscaling = Autoscaling(registry)
    holder = uuid.uuid4().hex[:12]
    policy = LOADING_POLICIES[settings.loading]()
    autoscaler = Autoscaler(settings, watch, autoscaling, policy, metrics, holder)
    pods = PodClient(load_timeout_s=settings.load_timeout)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(watch.run())
            actor = Actor(
                group, autoscaling, pods, metrics,
                state=lambda: watch.state, now_s=watch.registry_now_s,
            )  # fmt: skip
            group.create_task(autoscaler.run(actor))
    finally:
        with suppress(RegistryUnavailable):
            token = await autoscaling.lead(holder, ttl_s=settings.lease)
            if token is not None:
                await autoscaling.resign(token)
        await pods.close()
        await registry.close()


async def _serve_until_told(settings: AutoscalerSettings, metrics: AutoscalerMetrics) -> None:
    task = asyncio.create_task(serve(settings, metrics))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    with suppress(asyncio.CancelledError):
        await task


def main() -> None:
    """Read the settings and serve."""
    settings = read_settings(
        AutoscalerSettings, sys.argv[1:], os.environ, prog="python -m autoscaler"
    )
    if problems := pool_problems(Limits(settings.min_pods or 0, settings.max_pods)):
        sys.stderr.write("\n".join(problems) + "\n")
        sys.exit(2)
    configure_logs(settings.log_level)
    metrics = AutoscalerMetrics()
    if settings.metrics_port:
        start_http_server(
            settings.metrics_port, addr=settings.metrics_host, registry=metrics.registry
        )
    asyncio.run(_serve_until_told(settings, metrics))


if __name__ == "__main__":
    main()
