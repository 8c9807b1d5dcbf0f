"""Starts and drains this machine's placed pods as the autoscaler's placement record lists them."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pilotlight.platform.pod_processes import PodProcesses
    from registry.domain.placement import PlacedPod
    from registry.redis.watch import ClusterWatch

logger = logging.getLogger(__name__)

_PREFIX: Final = "placed-"


async def follow_placement(
    pod_processes: PodProcesses, watch: ClusterWatch, *,
    settings_of: Callable[[PlacedPod, Sequence[int]], Mapping[str, Any]], drain_s: float,
) -> None:  # fmt: skip
    """Keep exactly the recorded pods running until cancelled.

    `settings_of` gets the cores that recorded pods with a share already have.
    """
    cores: dict[str, list[int]] = {}
    changed = asyncio.Event()
    watch.subscribe(changed.set)
    while True:
        await changed.wait()
        changed.clear()
        record = watch.state.placement
        if record is None:
            continue
        wanted = {pod.name: pod for pod in record.pods}
        running = {name for name in pod_processes.wanted if name.startswith(_PREFIX)}
        if retired := sorted(running - wanted.keys()):
            logger.info("draining placed pods", extra={"pods": retired})
            await pod_processes.retire(retired, grace_s=drain_s)
        if started := sorted(wanted.keys() - running):
            logger.info("starting placed pods", extra={"pods": started})
            cores = {name: mine for name, mine in cores.items() if name in wanted}
            for name in started:
                taken = [core for mine in cores.values() for core in mine]
                settings = settings_of(wanted[name], taken)
                if settings.get("cores") and settings["share"]:
                    cores[name] = [int(core) for core in settings["cores"].split(",")]
                pod_processes.start({name: settings})
