"""Parts of a scheduler without a registry, a runner and pods."""

import asyncio

from common.pod_secret import PodSecret
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch
from workflows.metrics import SchedulerMetrics
from workflows.plan.planner import Planner
from workflows.preloads import Preloads
from workflows.settings import SchedulerSettings
from workflows.steps import Steps


def new_planner(group: asyncio.TaskGroup) -> Planner:
    """A planner that knows no pod and no model."""
    watch, metrics = ClusterWatch(Registry("redis://127.0.0.1:1/0", "nowhere")), SchedulerMetrics()
    return Planner(watch, Preloads(group, PodSecret(), metrics, watch.registry_now_s), metrics)


def new_steps(
    group: asyncio.TaskGroup,
    gateway_url: str = "http://127.0.0.1:1",
    planner: Planner | None = None,
) -> Steps:
    settings = SchedulerSettings(gateway_url=gateway_url, max_output_bytes=1000)
    return Steps(settings, planner or new_planner(group), PodSecret())
