"""Starts and drains this machine's pods as the autoscaler wants them.

The wish is a number, and who goes first, kept in the registry: carrying it out twice changes
nothing, and whoever leads the autoscalers needs no line to the pods' owner.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pilotlight.platform.pod_processes import PodProcesses, PodSpawn
    from registry.domain.action_log import WantedPods
    from registry.redis.watch import ClusterWatch

logger = logging.getLogger(__name__)


class PodScaling:
    """Follows the wanted number of pods. `run` is its one task."""

    def __init__(
        self,
        fleet: PodProcesses,
        watch: ClusterWatch,
        *,
        names: Sequence[str],
        spawn: Callable[[str], PodSpawn],
        drain_s: float,
    ) -> None:
        """`names` are all pods there may be: those further in front start first."""
        self._fleet = fleet
        self._watch = watch
        self._names = names
        self._spawn = spawn
        self._drain_s = drain_s
        self._changed = asyncio.Event()
        self._done: WantedPods | None = None

    async def run(self) -> None:
        """Follow until cancelled."""
        self._watch.subscribe(self._changed.set)
        while True:
            await self._changed.wait()
            self._changed.clear()
            wanted = self._watch.state.wanted
            if wanted is not None and wanted != self._done:
                self._done = wanted
                await self._follow(wanted)

    async def _follow(self, wanted: WantedPods) -> None:
        running = self._fleet.wanted
        going = pods_to_retire(running, wanted, self._names)
        if going:
            logger.info("pods drain", extra={"pods": going})
            await self._fleet.retire(going, grace_s=self._drain_s)
        coming = pods_to_start(running, wanted, self._names, busy=set(self._fleet.process_ids))
        if coming:
            logger.info("pods start", extra={"pods": coming})
            self._fleet.start([self._spawn(name) for name in coming])


def pods_to_retire(running: set[str], wanted: WantedPods, names: Sequence[str]) -> list[str]:
    """Those that leave: the ones that were named, then from the end."""
    surplus = len(running) - wanted.pods
    if surplus <= 0:
        return []
    named = [name for name in wanted.leaving if name in running]
    others = [name for name in reversed(names) if name in running and name not in named]
    return [*named, *others][:surplus]


def pods_to_start(
    running: set[str], wanted: WantedPods, names: Sequence[str], *, busy: set[str]
) -> list[str]:
    """Those that come: from the front, those whose last process is still ending last."""
    missing = wanted.pods - len(running)
    if missing <= 0:
        return []
    free = [name for name in names if name not in running]
    free.sort(key=lambda name: name in busy)
    return free[:missing]
