"""Pods that leave: those that drain, and those that a newer revision replaces. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from controller.cluster.object_readers import PodObject
from registry.domain.model import ModelName
from registry.domain.pod import PodPhase
from registry.domain.pod_state import PodState

UNTRACKED_DRAIN_S: Final = 60.0
"""After this time a drain that was not started here counts as left over from an earlier leader: a
process that is shutting down drains for less."""


@dataclass(frozen=True, slots=True)
class _StartedDrain:
    epoch: int
    at_s: float


class DrainTracker:
    """The drains of one pool that were started here. Used by one task only."""

    def __init__(self) -> None:
        self._started: dict[str, _StartedDrain] = {}
        self._draining_since_s: dict[str, float] = {}
        """When each draining pod was first observed draining."""

    def observe(self, pods: Mapping[str, PodState], now_s: float) -> None:
        """Update the pods' phases; drops drains of pods that are gone or registered again."""
        self._draining_since_s = {
            name: self._draining_since_s.get(name, now_s)
            for name, pod in pods.items()
            if pod.phase is PodPhase.DRAINING
        }
        self._started = {
            name: drain
            for name, drain in self._started.items()
            if name in pods and pods[name].epoch == drain.epoch
        }

    def start(self, pod: PodState, now_s: float) -> None:
        self._started[pod.name] = _StartedDrain(pod.epoch, now_s)

    def cancel(self, name: str) -> None:
        self._started.pop(name, None)

    def started_s(self, name: str) -> float | None:
        """When its drain was started here; None: it was not."""
        drain = self._started.get(name)
        return None if drain is None else drain.at_s

    def is_shutting_down(self, name: str) -> bool:
        """True if the pod drains and the drain was not started here."""
        return name in self._draining_since_s and name not in self._started

    def cancellable(self, now_s: float) -> list[str]:
        """Draining pods that may be set ready again if they are needed."""
        return [
            name
            for name, since_s in self._draining_since_s.items()
            if name in self._started or now_s - since_s > UNTRACKED_DRAIN_S
        ]


def replaced_pods(
    pods: Iterable[PodObject], status_of: Mapping[ModelName, Mapping[str, Any]]
) -> set[PodObject]:
    """Pods older than every Revision to which Knative routes traffic of their service.

    `status_of`: status of each pool's InferenceService. Pods of newer Revisions are kept: Knative
    routes to them once they are ready. So are those of an older Revision after a rollback.
    """
    in_knative_mode = sorted((pod for pod in pods if pod.revision), key=_service)
    found: set[PodObject] = set()
    for service, group in groupby(in_knative_mode, _service):
        members = list(group)
        routed = _routed(status_of.get(service, {}))
        oldest = min((pod.generation for pod in members if pod.revision in routed), default=0)
        found |= {pod for pod in members if pod.generation < oldest}
    return found


def _service(pod: PodObject) -> ModelName:
    return ModelName(pod.namespace, pod.service)


def _routed(status: Mapping[str, Any]) -> set[str]:
    predictor = (status.get("components") or {}).get("predictor") or {}
    return {
        target.get("revisionName", "")
        for target in predictor.get("traffic") or ()
        if target.get("percent")
    }
