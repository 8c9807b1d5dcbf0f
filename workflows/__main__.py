"""Run one scheduler of workflows: `python -m workflows --redis-url … --gateway-url …`."""

import asyncio
import logging
import os
import sys
from typing import Final

import uvloop

from common.http_server import HttpServer
from common.pod_secret import PodSecret
from common.process import configure_logs, on_stop_signals, set_process_title
from common.settings_table import read_settings
from common.tls import PartTls
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch
from workflows.api import create_api
from workflows.metrics import SchedulerMetrics
from workflows.scheduler import Scheduler
from workflows.settings import SchedulerSettings, tls_problems

KEEP_ALIVE_S: Final = 65
"""Longer than gateways keep idle connections: else a request may meet a closing one."""


async def serve(settings: SchedulerSettings) -> None:
    """Serve until SIGINT or SIGTERM."""
    registry = Registry(settings.redis_url, settings.pool)
    try:
        await _serve(settings, registry)
    except* _Stopped:
        pass
    await registry.close()


async def _serve(settings: SchedulerSettings, registry: Registry) -> None:
    watch = ClusterWatch(registry)
    secret, metrics = PodSecret(settings.pod_secret_file), SchedulerMetrics()
    tls = PartTls(settings.tls_dir)
    async with asyncio.TaskGroup() as group:
        scheduler = Scheduler(settings, watch, group, secret, metrics, tls)
        for part in (
            watch.run(),
            secret.reload_periodically(),
            tls.reload_periodically(),
            scheduler.keep_leases(),
            scheduler.store_knowledge(),
            scheduler.tell_hints(),
        ):
            group.create_task(part)
        server = HttpServer(
            create_api(scheduler, secret, metrics),
            host=settings.host,
            port=settings.port,
            tls=tls.server,
            keep_alive_s=KEEP_ALIVE_S,
            drain_s=3,
            date_header=True,
        )
        with on_stop_signals(server.stop):
            await server.serve()
        scheduler.is_draining = True
        scheduler.close()
        raise _Stopped


class _Stopped(Exception):
    """Raised after a stop signal to cancel the group's other tasks."""


def main() -> None:
    settings = read_settings(
        SchedulerSettings, sys.argv[1:], os.environ, prog="python -m workflows"
    )
    if problems := tls_problems(settings):
        sys.stderr.write("\n".join(problems) + "\n")
        sys.exit(2)
    set_process_title("scheduler")
    configure_logs(logging.StreamHandler(sys.stderr), settings.log_level)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings))


if __name__ == "__main__":
    main()
