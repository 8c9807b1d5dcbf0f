"""Pods, models and the steps at them, as the scheduling policies read them on the live cluster."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from registry.domain.model import ModelName, name_of_key
from registry.domain.queued_steps import NO_STEPS
from workflows.scheduling.backlog import device_queue, foreign_steps
from workflows.scheduling.pod_groups import WHOLE_POOL, members
from workflows.scheduling.problem import SchedulingProblemError
from workflows.service import cluster_view
from workflows.service.assigned_steps import AssignedSteps
from workflows.service.tensors import outputs_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from registry.domain.cluster import ClusterState
    from registry.domain.model import ModelSpec
    from registry.domain.pod_state import PodState
    from registry.redis.watch import ClusterWatch
    from workflows.scheduling.backlog import DeviceQueue
    from workflows.scheduling.costs import Device, ModelCosts
    from workflows.scheduling.pod_groups import PodGroup
    from workflows.service.run import Run, RunStep


class PodQueues:
    """The local copy of the registry, with the steps that this scheduler has put on pods."""

    def __init__(self, watch: ClusterWatch, group: PodGroup = WHOLE_POOL) -> None:
        """`group`: the pods that this scheduler plans over."""
        self._watch = watch
        self._group = group
        self.steps = AssignedSteps()
        self._output_bytes: dict[str, float] = {}

    @property
    def state(self) -> ClusterState:
        return self._watch.state

    def now_s(self) -> float:
        return self._watch.registry_now_s()

    def spec(self, model: ModelName) -> ModelSpec | None:
        record = self.state.models.get(model)
        return None if record is None else record.serving

    def key(self, model: ModelName) -> str:
        spec = self.spec(model)
        return str(model) if spec is None else spec.key

    def is_accepting(self, name: str) -> bool:
        pod = self.state.pods.get(name)
        return pod is not None and pod.is_accepting

    def accepting(self) -> list[PodState]:
        """Those of this scheduler's group, by name."""
        pods = cluster_view.accepting_pods(self.state)
        return [pods[at] for at in members([pod.name for pod in pods], self._group)]

    def queue(self, pod: PodState, run: Run, now_s: float) -> DeviceQueue:
        """The device's queue without the steps of this run that are placed anew."""
        own = self.steps.at(pod.name, run.identity, now_s)
        queued = self.state.queued_steps.get(pod.name, NO_STEPS)
        known = {key: count for key, count in queued.counts.items() if self._is_declared(key)}
        sent = Counter(step.model for step in own if step.sent_s is not None)
        foreign = foreign_steps(known, sent, min(0.0, queued.since_s - now_s))
        requests_s = cluster_view.requests_seconds(pod, max(sum(known.values()), sent.total()))
        return device_queue([*own, *foreign], self.costs_by_key, foreign_s=requests_s)

    def _is_declared(self, key: str) -> bool:
        return name_of_key(key) in self.state.models

    def device(
        self, pod: PodState, queue: DeviceQueue, keys: Sequence[str], now_s: float
    ) -> Device:
        return cluster_view.device_of(self.state, pod, queue, keys, now_s)

    def costs(self, model: ModelName) -> ModelCosts:
        """Raises SchedulingProblemError for a model that is not declared."""
        spec = self.spec(model)
        if spec is None:
            raise SchedulingProblemError(f"model {model} is not declared")
        return cluster_view.model_costs(self.state, spec, self._output_bytes.get(spec.key))

    def costs_by_key(self, key: str) -> ModelCosts:
        return self.costs(name_of_key(key))

    def costs_of(self, models: Sequence[ModelName]) -> Mapping[str, ModelCosts]:
        return {self.key(model): self.costs(model) for model in models}

    def note_arrival(self, step: RunStep) -> None:
        """Count a step that is sent: what an eviction costs goes by the models' rates."""
        self.state.arrivals.record(self.key(step.model), self.now_s())

    def note_outputs(self, step: RunStep) -> None:
        """Learn the size of a model's outputs."""
        if step.outputs is None:
            return
        size, key = (
            float(outputs_bytes(step.outputs)),
            self.key(step.model),
        )
        self._output_bytes[key] = 0.8 * self._output_bytes.get(key, size) + 0.2 * size
