"""Static: each step at a pod of the placement that the pods held longest.

Zhang et al. 2025, section 8, on Triton Inference Server.
"""

from dataclasses import replace
from typing import Final

from research.simulated_workflows.applications import models_of
from research.simulated_workflows.cluster import PlacedModels
from research.simulated_workflows.constants import MODELS
from research.simulated_workflows.placers import LonePlacer
from research.simulated_workflows.simulation import WorkflowSimulation, WorkflowTask
from research.workflows.held_placements import HeldPlacements
from workflows.scheduling.policies import SchedulingPolicy, StatefulPolicy
from workflows.service.lone_placement import LonePlacement
from workflows.service.pod_queues import PodQueues
from workflows.service.preloads import Preloads
from workflows.service.run import Run, RunStep


class StaticPlacement:
    """Among the pods of the placement as `greedy`."""

    def __init__(self, pods: PodQueues, preloads: Preloads) -> None:
        del preloads
        self._pods = pods
        self._fixed = FixedPlacement(pods)
        self._alone = LonePlacement(pods)

    def observe(self) -> None:
        """Count for how long the pods hold what they hold now."""
        self._fixed.observe()

    def place(self, run: Run, step: RunStep) -> str:
        holders = self._fixed.holders(self._pods.key(step.model))
        return self._alone.place(run, step, policy=SchedulingPolicy.GREEDY, among=holders)


class FixedPlacement:
    """What the pods held longest until the first run by `static`; anew when pods come or go."""

    def __init__(self, pods: PodQueues) -> None:
        self._pods = pods
        self._held = HeldPlacements()
        self._names: tuple[str, ...] = ()
        self._fixed: PlacedModels | None = None

    def observe(self) -> None:
        names = tuple(pod.name for pod in self._pods.accepting())
        if names != self._names:
            self._held, self._names, self._fixed = HeldPlacements(), names, None
        state = self._pods.state
        warm = [set[str]() for _ in names]
        for position, name in enumerate(names):
            for key in state.residency:
                residency = state.holders(key).get(name)
                if residency is not None and residency.is_warm:
                    warm[position].add(key)
        self._held.observe(tuple(map(frozenset, warm)), self._pods.now_s())

    def holders(self, key: str) -> set[str]:
        """The pods that are to run the model; empty where it is in no memory."""
        if self._fixed is None:
            self.observe()
            state = self._pods.state
            models = [record.serving.key for record in state.models.values() if record.serving]
            prices = state.prices_at(self._pods.now_s())
            pods = [state.pods[name] for name in self._names]
            self._fixed = self._held.fixed(
                sorted(models), prices.size_bytes,
                [pod.memory_bytes or float("inf") for pod in pods],
            )  # fmt: skip
        held = zip(self._names, self._fixed, strict=True)
        return {name for name, models in held if key in models}


def simulated_static(simulation: WorkflowSimulation) -> LonePlacer:
    fixed = placement_held_longest(simulation.task)
    simulation.cluster.fill(fixed)
    return LonePlacer(simulation.cluster, SchedulingPolicy.GREEDY, fixed)


def placement_held_longest(task: WorkflowTask) -> PlacedModels:
    """What `speculative` held longest on the same requests."""
    simulation = WorkflowSimulation(replace(task, policy=SchedulingPolicy.SPECULATIVE))
    held = HeldPlacements()
    simulation.run(held.observe)
    return held.fixed(
        models_of(task.application), lambda model: MODELS[model].size_bytes,
        [task.memory_bytes] * task.devices,
    )  # fmt: skip


STATIC: Final = StatefulPolicy(StaticPlacement, simulated_static)
