"""Starts and drains this machine's pods to reach the number that the autoscaler wants.

The autoscaler writes the number, and the pods to remove first, to the registry, so that it needs
no connection to the platform. Applying the same number twice changes nothing. Of several pods the
one starts whose node has most of what requests wait for on its disk.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pilotlight.platform.pod_processes import PodProcesses
from registry.domain.records import PlacedPod, WantedPods
from registry.errors import RegistryUnavailable
from registry.redis.arrivals import ArrivalLog
from registry.redis.watch import ClusterWatch
from runtime.tiers.generation_folder import GenerationFolder, cache_name

logger = logging.getLogger(__name__)


async def follow_wanted_pods(
    pod_processes: PodProcesses,
    watch: ClusterWatch,
    *,
    names: Sequence[str],
    settings_of: Callable[[str], Mapping[str, Any]],
    drain_s: float,
) -> None:
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
        if wanted.pods <= len(running):
            continue
        folders = {name: Path(settings_of(name)["cache_dir"]) for name in names}
        cached = await asyncio.to_thread(_cached_bytes, folders, await _waiting_keys(watch))
        busy = set(pod_processes.process_ids)
        if started := pods_to_start(running, wanted, names, busy=busy, cached_bytes=cached):
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


async def _waiting_keys(watch: ClusterWatch) -> list[str]:
    """Of the models that requests wait for; none while the registry is away."""
    try:
        waiting = await ArrivalLog(watch.registry).queue_stats()
    except RegistryUnavailable:
        return []
    models = watch.state.models
    return [models[name].serving.key for name in waiting if name in models]


def _cached_bytes(folders: Mapping[str, Path], keys: Sequence[str]) -> dict[str, int]:
    """Weights of the models in each disk cache, by pod."""
    return {
        name: sum(GenerationFolder(folder / cache_name(key)).complete_bytes() for key in keys)
        for name, folder in folders.items()
    }


def pods_to_start(
    running: set[str],
    wanted: WantedPods,
    names: Sequence[str],
    *,
    busy: set[str],
    cached_bytes: Mapping[str, int],
) -> list[str]:
    """Missing pods, those with most `cached_bytes` first, of equal ones in order of `names`.

    Pods whose former process still runs (`busy`) come last.
    """
    missing = wanted.pods - len(running)
    if missing <= 0:
        return []
    free = [name for name in names if name not in running]
    free.sort(key=lambda name: (name in busy, -cached_bytes.get(name, 0)))
    return free[:missing]


logger = logging.getLogger(__name__)

_PREFIX: Final = "placed-"


async def follow_placement(
    pod_processes: PodProcesses,
    watch: ClusterWatch,
    *,
    settings_of: Callable[[PlacedPod, Sequence[int]], Mapping[str, Any]],
    drain_s: float,
) -> None:
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
