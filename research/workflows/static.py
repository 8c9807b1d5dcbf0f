"""Static: each step at a pod of the placement that the pods held longest.

Zhang et al. 2025, section 8: Triton Inference Server does not load by itself, so it is given the
placement that the speculative scheduler held longest. Here models which that placement lacks are
added where they were held longest.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final

from research.simulated_workflows.applications import models_of
from research.simulated_workflows.cluster import PlacedModels
from research.simulated_workflows.constants import MODELS
from research.simulated_workflows.placers import LonePlacer
from research.simulated_workflows.simulation import WorkflowSimulation, WorkflowTask
from workflows.plan.pods import LonePlacement, PodQueues
from workflows.plan.policies import SchedulingPolicy, StatefulPolicy
from workflows.preloads import Preloads
from workflows.run import Run, RunStep

_MAX_PLACEMENTS: Final = 10_000
"""Kept apart; beyond it the half held the shortest is forgotten."""


class HeldPlacements:
    """An account of time by placement. All placements have the same devices."""

    def __init__(self) -> None:
        self._held_s: dict[PlacedModels, float] = {}
        self._on_device_s: dict[tuple[str, int], float] = {}
        self._latest: PlacedModels = ()
        self._since_s = 0.0

    def observe(self, placement: PlacedModels, now_s: float) -> None:
        """The placement from now on."""
        passed_s = now_s - self._since_s
        if self._latest and passed_s > 0:
            self._held_s[self._latest] = self._held_s.get(self._latest, 0.0) + passed_s
            for device, models in enumerate(self._latest):
                for model in models:
                    place = model, device
                    self._on_device_s[place] = self._on_device_s.get(place, 0.0) + passed_s
        self._latest, self._since_s = placement, now_s
        if len(self._held_s) > _MAX_PLACEMENTS:
            kept = sorted(self._held_s.items(), key=lambda each: -each[1])[: _MAX_PLACEMENTS // 2]
            self._held_s = dict(kept)

    def fixed(
        self,
        models: Sequence[str],
        size_bytes: Callable[[str], float],
        memory_bytes: Sequence[float],
    ) -> PlacedModels:
        """The placement held longest, with each of `models` on some device where memory allows.

        A missing model takes free memory first, then that of models which other devices hold, too.
        """
        longest = max(
            self._held_s,
            key=lambda each: (self._held_s[each], list(map(sorted, each))),
            default=self._latest,
        )
        placement = [set(each) for each in longest]
        for model in models:
            if not any(model in each for each in placement):
                self._add(model, placement, size_bytes, memory_bytes)
        return tuple(map(frozenset, placement))

    def _add(
        self,
        model: str,
        placement: Sequence[set[str]],
        size_bytes: Callable[[str], float],
        memory_bytes: Sequence[float],
    ) -> None:
        def held_s(device: int) -> float:
            return self._on_device_s.get((model, device), 0.0)

        by_time = sorted(range(len(placement)), key=lambda device: (-held_s(device), device))
        for may_remove in (False, True):
            for device in by_time:
                free = memory_bytes[device] - sum(size_bytes(each) for each in placement[device])
                removed = []
                for other in self._spare(device, placement) if may_remove else ():
                    if free >= size_bytes(model):
                        break
                    removed.append(other)
                    free += size_bytes(other)
                if free >= size_bytes(model):
                    placement[device].difference_update(removed)
                    placement[device].add(model)
                    return

    def _spare(self, device: int, placement: Sequence[Collection[str]]) -> list[str]:
        """Models of a device that others hold, too; those first that it held the shortest."""
        shared = [
            model
            for model in placement[device]
            if any(model in each for at, each in enumerate(placement) if at != device)
        ]
        return sorted(
            shared, key=lambda model: (self._on_device_s.get((model, device), 0.0), model)
        )


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
                sorted(models),
                prices.size_bytes,
                [pod.memory_bytes or float("inf") for pod in pods],
            )
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
        models_of(task.application),
        lambda model: MODELS[model].size_bytes,
        [task.memory_bytes] * task.devices,
    )


STATIC: Final = StatefulPolicy(StaticPlacement, simulated_static)
