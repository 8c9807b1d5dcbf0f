"""Pods, models and their steps as scheduling policies read them live, and placing single steps.

The steps are those that this scheduler has put on each pod, and those that its plans predict there.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import inf
from typing import Final

from registry.domain.cluster import ClusterState
from registry.domain.estimates import TRANSFERS
from registry.domain.model import ModelName, ModelSpec, Tier, name_of_key
from registry.domain.pod import Profile
from registry.domain.pod_state import NO_STEPS, PodState
from registry.redis.watch import ClusterWatch
from workflows.plan.costs import (
    AssignedStep,
    Device,
    DeviceQueue,
    Links,
    ModelCosts,
    TransferCosts,
    device_queue,
    foreign_steps,
    measured_links,
    scheduling_problem,
)
from workflows.plan.problem import Placement, SchedulingProblemError, Step, greedy
from workflows.run import Run, RunStep
from workflows.values import outputs_bytes

logger = logging.getLogger(__name__)

LINKS: Final = Links(
    sent=TransferCosts(0.0, inf),
    shared_memory=TransferCosts(0.0005, 5e9),
    raw_bytes=TransferCosts(0.001, 1e9),
)
"""Before the first measurement; `docs/workflows.md`, Tensors between pods, on one machine. What the
scheduler sends it sends to every pod alike."""
UNKNOWN_OUTPUT_BYTES: Final = 4096.0
UNPROFILED_BATCH: Final = 8
"""Largest batch of a model without a profile, as of a pod's default slots."""
ASSUMED_REQUEST_S: Final = 0.05
"""Device time of a request of an unknown model. Chosen."""


def links(state: ClusterState) -> Links:
    """Costs of transfers, as far as they are measured.

    Over all kinds of accelerators: kept outputs are in host memory.
    """
    return measured_links(LINKS, state.measured(TRANSFERS))


def model_costs(state: ClusterState, spec: ModelSpec, output_bytes: float | None) -> ModelCosts:
    """Measured costs of a model, over all kinds of accelerators; priors without measurements.

    `output_bytes`: what this scheduler has seen; None: nothing, so that what pods say counts.
    """
    profiles = state.profiles_of(spec.key)
    measured = state.measured(spec.key)
    if profiles:
        batch_s, largest = partial(_profiled_s, profiles[0]), profiles[0].best_rows
    else:
        batch_s = partial(_estimated_s, measured.infer.seconds, measured.share.seconds)
        largest = UNPROFILED_BATCH
    return ModelCosts(
        batch_s=batch_s,
        max_batch=spec.policy.max_batch_size or max(largest, 1),
        load_s=measured.load_from(Tier.REMOTE, None).seconds,
        output_bytes=output_bytes or measured.output_bytes or UNKNOWN_OUTPUT_BYTES,
    )


def _estimated_s(infer_s: float, share_s: float, size: int) -> float:
    return infer_s + (size - 1) * share_s


def _profiled_s(profile: Profile, size: int) -> float:
    """Between the profile's points in proportion, beyond the last one by its rate."""
    points = profile.points
    if size >= points[-1].rows:
        return points[-1].latency_s * size / points[-1].rows
    for before, after in pairwise(points):
        if before.rows <= size <= after.rows:
            part = (size - before.rows) / (after.rows - before.rows)
            return before.latency_s + part * (after.latency_s - before.latency_s)
    return points[0].latency_s


def device_of(
    state: ClusterState, pod: PodState, queue: DeviceQueue, models: Sequence[str], now_s: float
) -> Device:
    """A pod, with what loading each of these models there would take, and cost other models."""
    loaded, load_s, harm_s = set(), {}, {}
    for key in models:
        seconds = load_seconds(state, pod, key, now_s)
        if seconds > 0.0:
            load_s[key] = seconds
            harm_s[key] = eviction_seconds(state, pod, key, now_s, seconds)
        else:
            loaded.add(key)
    memory = pod.info.shared_memory or pod.name
    return Device(pod.name, memory, queue.batches, queue.free_s, load_s, loaded, harm_s)


def eviction_seconds(
    state: ClusterState, pod: PodState, key: str, now_s: float, load_s: float
) -> float:
    """What evictions for a load cost later requests; while loads take the memory: a load's time.

    Nothing for a load in progress, which has its memory.
    """
    if not pod.memory_bytes or _is_loading(state, pod, key):
        return 0.0
    price_s = state.prices_at(now_s).price_s(pod, key)
    return price_s if price_s < inf else load_s


def is_worth_loading(
    state: ClusterState, pod: PodState, key: str, now_s: float, load_s: float, probability: float
) -> bool:
    """Whether a load is expected to save a step more time than it costs requests of other models.

    One in progress is: it has evicted others already.
    """
    if _is_loading(state, pod, key):
        return True
    prices = state.prices_at(now_s)
    return probability * load_s > prices.load_cost_s(pod, prices.size_bytes(key), load_s)


def _is_loading(state: ClusterState, pod: PodState, key: str) -> bool:
    residency = state.holders(key).get(pod.name)
    return residency is not None and residency.is_warming


def load_seconds(state: ClusterState, pod: PodState, key: str, now_s: float) -> float:
    """Time until the model is on the pod's device; infinite where it never fits."""
    residency = state.holders(key).get(pod.name)
    if residency is not None and residency.is_warm:
        return 0.0
    if state.residency.device_bytes.get(key, 0) > pod.memory_bytes > 0:
        return inf
    tier = Tier.REMOTE if residency is None else (residency.loading_from or residency.tier)
    seconds = pod.estimates[key].load_from(tier, pod.info.link_bytes_per_s).seconds
    if residency is not None and residency.is_warming:
        seconds = max(seconds - max(0.0, now_s - residency.since_s), 0.05 * seconds)
    return max(seconds, 1e-6)


def holders_by_model(
    state: ClusterState, pods: Mapping[str, int], models: Sequence[str]
) -> dict[str, list[int]]:
    """By model, positions of the pods that hold it on their device or load it."""
    return {
        key: sorted(
            pods[name]
            for name, residency in state.holders(key).items()
            if name in pods and (residency.is_warm or residency.is_warming)
        )
        for key in models
    }


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
        steps = max(sum(known.values()), sent.total())
        requests_s = max(0, pod.inferring - steps) * ASSUMED_REQUEST_S  # what is no step
        return device_queue([*own, *foreign], self.costs_by_key, foreign_s=requests_s)

    def _is_declared(self, key: str) -> bool:
        return name_of_key(key) in self.state.models

    def device(
        self, pod: PodState, queue: DeviceQueue, keys: Sequence[str], now_s: float
    ) -> Device:
        return device_of(self.state, pod, queue, keys, now_s)

    def costs(self, model: ModelName) -> ModelCosts:
        """Raises SchedulingProblemError for a model that is not declared."""
        spec = self.spec(model)
        if spec is None:
            raise SchedulingProblemError(f"model {model} is not declared")
        return model_costs(self.state, spec, self._output_bytes.get(spec.key))

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
                links(self.state),
                placed={
                    number: Placement(positions.get(source.pod, 0), 0.0, 0.0)
                    for number, source in enumerate(sources)
                },
            )
            return pods[greedy(problem).placements[-1].device].name
        except SchedulingProblemError as error:  # such as a model that was deleted
            logger.info("no place for a step", extra={"run": run.identity, "error": str(error)})
            return ""
