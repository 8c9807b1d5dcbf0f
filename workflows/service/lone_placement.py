"""Places steps one by one when their inputs are there: greedy, round-robin and static."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workflows.scheduling.costs import scheduling_problem
from workflows.scheduling.greedy import greedy
from workflows.scheduling.held_placements import HeldPlacements
from workflows.scheduling.problem import Loading, Placement, SchedulingProblemError, Step
from workflows.scheduling.round_robin import round_robin
from workflows.service import cluster_view
from workflows.service.policy import SchedulingPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from registry.domain.pod_state import PodState
    from workflows.scheduling.costs import Device
    from workflows.scheduling.held_placements import PlacedModels
    from workflows.service.pod_queues import PodQueues
    from workflows.service.run import Run, RunStep


class LonePlacement:
    def __init__(self, pods: PodQueues) -> None:
        self._pods = pods
        self._turn = 0
        self._fixed = FixedPlacement(pods)

    def observe(self) -> None:
        """Count for how long the pods hold what they hold now, for `static`."""
        self._fixed.observe()

    def place(self, run: Run, step: RunStep) -> str:
        """The pod of a step whose inputs are there; empty where no pod can run it."""
        pods, now_s = self._pods.accepting(), self._pods.now_s()
        if not pods:
            return ""
        key = self._pods.key(step.model)
        sources = [run.steps[number] for number in step.sources]
        steps = [Step(self._pods.key(source.model)) for source in sources]
        steps.append(Step(key, tuple(range(len(sources)))))
        positions = {pod.name: position for position, pod in enumerate(pods)}
        allowed: Sequence[int] = range(len(pods))
        if run.scheduling is SchedulingPolicy.STATIC:
            holders = self._fixed.holders(key)
            allowed = [at for at, pod in enumerate(pods) if pod.name in holders] or allowed
        try:
            problem = scheduling_problem(
                steps,
                [self._device(pod, run, key, now_s) for pod in pods],
                self._pods.costs_of([*(source.model for source in sources), step.model]),
                cluster_view.links(self._pods.state),
                placed={
                    number: Placement(positions.get(source.pod, 0), 0.0, 0.0)
                    for number, source in enumerate(sources)
                },
                allowed=[*([range(len(pods))] * len(sources)), allowed],
                loading=Loading.BESIDE_QUEUE,
            )
            if run.scheduling is SchedulingPolicy.ROUND_ROBIN:
                schedule = round_robin(problem, self._turn % len(pods))
                self._turn = schedule.placements[-1].device + 1
            else:
                schedule = greedy(problem)
        except SchedulingProblemError:  # such as a model that was deleted
            return ""
        return pods[schedule.placements[-1].device].name

    def _device(self, pod: PodState, run: Run, key: str, now_s: float) -> Device:
        return self._pods.device(pod, self._pods.queue(pod, run, now_s), [key], now_s)


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
