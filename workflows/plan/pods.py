"""Pods, models and their steps as scheduling policies read them live, and placing single steps.

The steps are those that this scheduler has put on each pod, and those that its plans predict there.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName, ModelSpec, name_of_key
from registry.domain.pod_state import NO_STEPS, PodState
from registry.redis.watch import ClusterWatch
from workflows.plan import cluster_view
from workflows.plan.costs import (
    AssignedStep,
    Device,
    DeviceQueue,
    ModelCosts,
    device_queue,
    foreign_steps,
    scheduling_problem,
)
from workflows.plan.problem import Placement, SchedulingProblemError, Step, greedy
from workflows.run import Run, RunStep
from workflows.values import outputs_bytes

logger = logging.getLogger(__name__)


class AssignedSteps:
    """By pod, the steps that are planned there and not over. Owned by the event loop."""

    def __init__(self) -> None:
        self._steps: dict[str, dict[tuple[str, int], AssignedStep]] = defaultdict(dict)
        self._pods: dict[tuple[str, int], str] = {}
        """By run and number of a step."""

    def assign(
        self,
        run: str,
        number: int,
        pod: str,
        key: str,
        *,
        ready_s: float,
        sent_s: float | None = None,
    ) -> None:
        """A step, perhaps a predicted one, is to run at a pod, and nowhere else."""
        self.remove(run, number)
        self._pods[run, number] = pod
        self._steps[pod][run, number] = AssignedStep(key, ready_s, sent_s)

    def remove(self, run: str, number: int) -> None:
        pod = self._pods.pop((run, number), None)
        if pod is not None:
            del self._steps[pod][run, number]

    def is_unsent(self, run: str, number: int) -> bool:
        """Whether a step is to run at a pod, and was not sent there."""
        pod = self._pods.get((run, number))
        return pod is not None and self._steps[pod][run, number].sent_s is None

    def at(self, pod: str, run: str, now_s: float) -> list[AssignedStep]:
        """What a plan of `run` counts at a pod: without its steps that are placed anew.

        Times in seconds from now.
        """
        return [
            AssignedStep(
                each.model,
                max(0.0, each.ready_s - now_s),
                None if each.sent_s is None else min(0.0, each.sent_s - now_s),
            )
            for (identity, _), each in self._steps[pod].items()
            if identity != run or each.sent_s is not None
        ]


class PodQueues:
    """The local copy of the registry, with the steps that this scheduler has put on pods."""

    def __init__(self, watch: ClusterWatch) -> None:
        self._watch = watch
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
        """By name."""
        pods = (pod for pod in self.state.pods.values() if pod.is_accepting)
        return sorted(pods, key=lambda pod: pod.name)

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
        size, key = (float(outputs_bytes(step.outputs)), self.key(step.model))
        self._output_bytes[key] = 0.8 * self._output_bytes.get(key, size) + 0.2 * size

    def place_alone(self, run: Run, step: RunStep) -> str:
        """The pod where a step with its inputs there ends earliest; empty where none can run it."""
        pods, now_s, key = self.accepting(), self.now_s(), self.key(step.model)
        sources = [run.steps[number] for number in step.sources]
        steps = [*(Step(self.key(source.model)) for source in sources)]
        steps.append(Step(key, tuple(range(len(sources)))))
        positions = {pod.name: position for position, pod in enumerate(pods)}
        try:
            problem = scheduling_problem(
                steps,
                [self.device(pod, self.queue(pod, run, now_s), [key], now_s) for pod in pods],
                self.costs_of([*(source.model for source in sources), step.model]),
                cluster_view.links(self.state),
                placed={
                    number: Placement(positions.get(source.pod, 0), 0.0, 0.0)
                    for number, source in enumerate(sources)
                },
            )
            return pods[greedy(problem).placements[-1].device].name
        except SchedulingProblemError as error:  # such as a model that was deleted
            logger.info("no place for a step", extra={"run": run.identity, "error": str(error)})
            return ""
