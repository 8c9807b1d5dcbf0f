"""Starts and drains this machine's pods to reach the number that the autoscaler wants.

The autoscaler writes the number, and the pods to remove first, to the registry, so that it needs
no connection to the platform. Applying the same number twice changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pilotlight.platform.pod_processes import PodProcesses
    from registry.domain.action_log import WantedPods
    from registry.redis.watch import ClusterWatch

logger = logging.getLogger(__name__)


async def follow_wanted_pods(
    pod_processes: PodProcesses, watch: ClusterWatch, *, names: Sequence[str],
    settings_of: Callable[[str], Mapping[str, Any]], drain_s: float,
) -> None:  # fmt: skip
    """Keep the number of pods at the wanted one until cancelled.

    `names` are all pods that may run; pods are started in this order, with their settings of the
    runtime.
    """
    changed = asyncio.Event()
    watch.subscribe(changed.set)
    applied: WantedPods | None = None
    while True:
        await changed.wait()
        changed.clear()
        wanted = watch.state.wanted
        if wanted is None or wanted == applied:
            continue
        applied = wanted
        running = pod_processes.wanted & set(names)
        if retired := pods_to_retire(running, wanted, names):
            logger.info("draining pods", extra={"pods": retired})
            await pod_processes.retire(retired, grace_s=drain_s)
        busy = set(pod_processes.process_ids)
        if started := pods_to_start(running, wanted, names, busy=busy):
            logger.info("starting pods", extra={"pods": started})
            pod_processes.start({name: settings_of(name) for name in started})


def pods_to_retire(running: set[str], wanted: WantedPods, names: Sequence[str]) -> list[str]:
    """Surplus pods: first the ones that `wanted` names, then from the end of `names`."""
    surplus = len(running) - wanted.pods
    if surplus <= 0:
        return []
    named = [name for name in wanted.leaving if name in running]
    others = [name for name in reversed(names) if name in running and name not in named]
    return [*named, *others][:surplus]


def pods_to_start(
    running: set[str], wanted: WantedPods, names: Sequence[str], *, busy: set[str]
) -> list[str]:
    """Missing pods in order of `names`; pods whose former process still runs (`busy`) last."""
    missing = wanted.pods - len(running)
    if missing <= 0:
        return []
    free = [name for name in names if name not in running]
    free.sort(key=lambda name: name in busy)
    return free[:missing]
