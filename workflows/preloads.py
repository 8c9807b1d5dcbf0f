"""Loads models ahead of planned steps, and takes loads back that no run wants any more."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from common.pod_client import PodClient, PodRefused
from common.pod_secret import PodSecret
from common.tls import PartTls
from registry.domain.model import ModelSpec, Tier, name_of_key
from registry.domain.pod_state import PodState
from workflows.metrics import SchedulerMetrics

logger = logging.getLogger(__name__)

LOAD_TIMEOUT_S: Final = 600.0
UNUSED_AFTER_S: Final = 300.0
"""A loaded model that no step has used by then counts as wasted."""


@dataclass(eq=False, slots=True)
class Preload:
    """One load that runs have asked for."""

    pod: str
    key: str
    due_s: float
    is_predicted: bool
    begun_s: float
    """This and `ended_s`: on the registry's clock."""
    wanted_by: set[str] = field(default_factory=set)
    ended_s: float | None = None
    is_used: bool = False
    task: asyncio.Task[None] | None = None

    def as_json(self, begun_s: float) -> dict[str, object]:
        """With times in seconds since a run began."""
        ended_s = None if self.ended_s is None else round(self.ended_s - begun_s, 6)
        return {
            "model": name_of_key(self.key).name,
            "pod": self.pod,
            "predicted": self.is_predicted,
            "due_s": round(self.due_s - begun_s, 6),
            "begun_s": round(self.begun_s - begun_s, 6),
            "ended_s": ended_s,
        }


@dataclass(eq=False)
class Preloads:
    """All loads ahead of this scheduler. Tasks belong to its task group."""

    group: asyncio.TaskGroup
    secret: PodSecret
    metrics: SchedulerMetrics
    now_s: Callable[[], float]
    tls: PartTls | None = None

    def __post_init__(self) -> None:
        self._pods = PodClient(self.secret, self.tls, timeout_s=LOAD_TIMEOUT_S)
        self._loads: dict[tuple[str, str], Preload] = {}

    def close(self) -> None:
        self._pods.close()

    def want(
        self, run: str, pod: PodState, spec: ModelSpec, *, due_s: float, is_predicted: bool
    ) -> Preload:
        """Begin a load for a run, or join one that is under way."""
        self._forget_old()
        preload = self._loads.get((pod.name, spec.key))
        if preload is not None and preload.ended_s is not None:  # evicted since
            if not preload.is_used:
                self.metrics.preloads.labels("wasted").inc()
            preload = None
        if preload is None:
            preload = Preload(pod.name, spec.key, due_s, is_predicted, self.now_s())
            self._loads[pod.name, spec.key] = preload
            self.metrics.preloads.labels("begun").inc()
            preload.task = self.group.create_task(self._load(preload, pod.address, spec))
        preload.wanted_by.add(run)
        return preload

    def withdraw(self, run: str, kept: set[tuple[str, str]]) -> None:
        """End the run's interest in all loads but those kept; take back what nobody wants."""
        for place, preload in list(self._loads.items()):
            if place in kept or run not in preload.wanted_by:
                continue
            preload.wanted_by.discard(run)
            if not preload.wanted_by and preload.ended_s is None and preload.task is not None:
                preload.task.cancel()  # the pod ends a load whose last client has left

    def used(self, pod: str, key: str) -> None:
        """A step ran with the model at the pod."""
        preload = self._loads.get((pod, key))
        if preload is not None and not preload.is_used:
            preload.is_used = True
            self.metrics.preloads.labels("used").inc()

    async def _load(self, preload: Preload, address: str, spec: ModelSpec) -> None:
        due_ms = min(max(0.0, 1000 * (preload.due_s - preload.begun_s)), 1000 * LOAD_TIMEOUT_S)
        outcome, model, tier = "failed", spec.name.path_segment, Tier.DEVICE.value
        try:
            await self._pods.load(address, model, tier, withdrawable=True, due_ms=due_ms)
            outcome = "loaded"
        except asyncio.CancelledError:
            outcome = "withdrawn"
            raise
        except PodRefused as error:
            logger.info(
                "load ahead failed" if error.is_unreachable else "load ahead refused",
                extra={"pod": preload.pod, "key": preload.key, "error": str(error)},
            )
        finally:
            preload.ended_s = self.now_s()
            if outcome != "loaded":
                self.metrics.preloads.labels(outcome).inc()
                self._loads.pop((preload.pod, preload.key), None)

    def _forget_old(self) -> None:
        """Count what was never used; forget what was."""
        now_s = self.now_s()
        for place, preload in list(self._loads.items()):
            if preload.ended_s is None or preload.wanted_by:
                continue
            if preload.is_used:
                del self._loads[place]
            elif now_s - preload.ended_s > UNUSED_AFTER_S:
                self.metrics.preloads.labels("wasted").inc()
                del self._loads[place]
