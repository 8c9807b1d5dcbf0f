"""Steps to copies that grow with their queues, by the policy `reactive`, on the live cluster.

A pod runs one batch at a time in one process, so a model has at most one copy at a pod, and a copy
that ends is merely not used any more: the pod evicts its model when it needs the memory.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Final

from load.simulator.event_queue import EventQueue
from registry.domain.model import ModelSpec, name_of_key
from registry.domain.pod_state import PodState
from research.simulated_workflows.cluster import PlacedModels
from research.simulated_workflows.constants import MODELS
from research.simulated_workflows.simulated_run import SimulatedRun, SimulatedStep
from research.simulated_workflows.simulation import WorkflowSimulation
from research.workflows.reactive import (
    CopiesView,
    ModelCopy,
    ReactiveParams,
    ReactiveState,
    reactive,
    shortest_queue,
)
from research.workflows.sharing_devices import SharingDevice, SimulatedCopy
from workflows.plan.pods import PodQueues
from workflows.plan.policies import StatefulPolicy
from workflows.preloads import Preloads
from workflows.run import Run, RunStep

OWNER: Final = "reactive"
"""In place of a run, which loads are asked for by."""


INTERVAL_S: Final = 1.0
"""Between decisions on copies; a step of a model without a copy asks for one at once."""


class ReactiveCopies:
    """Owned by the event loop."""

    def __init__(self, pods: PodQueues, preloads: Preloads, *, is_one_per_device: bool) -> None:
        self._pods = pods
        self._preloads = preloads
        self._owner = f"{OWNER}-alone" if is_one_per_device else OWNER
        self._params = ReactiveParams(is_one_per_device=is_one_per_device, several_of_model=False)
        self._state = ReactiveState()
        self._copies: list[tuple[str, str]] = []
        """Key and pod."""
        self._models: set[str] = set()

    def place(self, run: Run, step: RunStep) -> str:
        """The pod of a step; empty where its model finds no room, so that it waits nowhere."""
        del run
        key = self._pods.key(step.model)
        self._models.add(key)
        pods = self._pods.accepting()
        chosen = self._shortest(key, pods)
        if chosen is None:
            self._decide(pods, {key: 1})
            chosen = self._shortest(key, pods)
        return "" if chosen is None else self._copies[chosen][1]

    def observe(self) -> None:
        """Add and remove copies; called about once a second."""
        if self._models:
            self._decide(self._pods.accepting(), {})

    def _shortest(self, key: str, pods: list[PodState]) -> int | None:
        return shortest_queue(self._seen(pods), key)

    def _seen(self, pods: list[PodState]) -> list[ModelCopy]:
        """The copies of models served now, at pods that still are; others are forgotten."""
        self._models = {key for key in self._models if self._spec(key) is not None}
        positions = {pod.name: position for position, pod in enumerate(pods)}
        self._copies = [
            (key, pod) for key, pod in self._copies if pod in positions and key in self._models
        ]
        return [
            ModelCopy(
                key, positions[pod], self._pods.steps.count(pod, key), self._is_loading(key, pod)
            )
            for key, pod in self._copies
        ]

    def _spec(self, key: str) -> ModelSpec | None:
        """None: the model is gone, or has another generation."""
        spec = self._pods.spec(name_of_key(key))
        return spec if spec is not None and spec.key == key else None

    def _is_loading(self, key: str, pod: str) -> bool:
        residency = self._pods.state.holders(key).get(pod)
        return residency is not None and residency.is_warming

    def _decide(self, pods: list[PodState], waiting: dict[str, int]) -> None:
        copies = self._seen(pods)
        now_s = self._pods.now_s()
        prices = self._pods.state.prices_at(now_s)
        view = CopiesView(
            copies,
            [pod.memory_bytes or inf for pod in pods],
            {key: prices.size_bytes(key) for key in sorted(self._models)},
            waiting,
        )
        self._state, changes = reactive(self._state, view, now_s, self._params)
        kept = [each for at, each in enumerate(self._copies) if at not in changes.removed]
        for key, device in changes.added:
            spec = self._spec(key)
            if spec is not None:
                kept.append((key, pods[device].name))
                self._preloads.want(
                    self._owner, pods[device], spec, due_s=now_s, is_predicted=False
                )
        self._copies = kept
        self._preloads.withdraw(self._owner, {(pod, key) for key, pod in kept})


class ReactivePlacer:
    def __init__(
        self,
        devices: int,
        memory_bytes: float,
        events: EventQueue,
        params: ReactiveParams,
        *,
        on_end: Callable[[SimulatedStep], None],
        send: Callable[[SimulatedRun], None],
    ) -> None:
        self._events = events
        self._params = params
        self._send = send
        self.devices = [
            SharingDevice(index, memory_bytes, events, on_end) for index in range(devices)
        ]
        self._size_bytes: dict[str, float] = {}
        """Of the models that have a copy or were called, as the live scheduler knows them."""
        self._state = ReactiveState()
        self._waiting: dict[str, list[tuple[SimulatedRun, SimulatedStep]]] = defaultdict(list)
        self._under_way = 0

    def fill(self, placement: PlacedModels) -> None:
        """What is loaded before the first request; the first model only where copies are alone."""
        for device, models in zip(self.devices, placement, strict=True):
            for model in sorted(models)[: 1 if self._params.is_one_per_device else None]:
                device.add(model, is_loaded=True)
                self._size_bytes[model] = MODELS[model].size_bytes

    def called(self, run: SimulatedRun, begun: int) -> None:
        if begun == 0:
            self._under_way += 1
            if self._under_way == 1:
                self._events.after(INTERVAL_S, self._decide_again)

    def ended(self, run: SimulatedRun) -> None:
        self._under_way -= 1

    def ready(self, run: SimulatedRun, step: SimulatedStep) -> bool:
        if step.device >= 0:
            return True
        if self._queue(step):
            return True
        self._waiting[step.model].append((run, step))
        self._size_bytes[step.model] = MODELS[step.model].size_bytes
        self._decide()
        return step.device >= 0

    def _queue(self, step: SimulatedStep) -> bool:
        """Put a step on the copy of its model with the shortest queue; False without one."""
        copies = self._copies()
        chosen = shortest_queue(self._seen(copies), step.model)
        if chosen is None:
            return False
        copies[chosen].queue.append(step)
        step.device = copies[chosen].device.index
        return True

    def _copies(self) -> list[SimulatedCopy]:
        return [copy for device in self.devices for copy in device.copies]

    def _seen(self, copies: Sequence[SimulatedCopy]) -> list[ModelCopy]:
        return [
            ModelCopy(
                copy.model, copy.device.index, len(copy.queue) + len(copy.running), copy.is_loading
            )
            for copy in copies
        ]

    def _decide_again(self, _: object) -> None:
        if self._under_way:
            self._decide()
            self._events.after(INTERVAL_S, self._decide_again)

    def _decide(self) -> None:
        copies = self._copies()
        view = CopiesView(
            self._seen(copies),
            [device.memory_bytes for device in self.devices],
            self._size_bytes,
            {model: len(each) for model, each in self._waiting.items()},
        )
        self._state, changes = reactive(self._state, view, self._events.now_s, self._params)
        for position in changes.removed:
            copies[position].device.remove(copies[position])
        for model, device in changes.added:
            self.devices[device].add(model)
            runs = self._waiting.pop(model, [])
            for _, step in runs:
                self._queue(step)
            for run, _ in runs:
                self._send(run)


def simulated_reactive(
    simulation: WorkflowSimulation, *, is_one_per_device: bool
) -> ReactivePlacer:
    task, params = simulation.task, ReactiveParams(is_one_per_device=is_one_per_device)
    placer = ReactivePlacer(
        task.devices,
        task.memory_bytes,
        simulation.events,
        params,
        on_end=simulation.on_end,
        send=simulation.send,
    )
    placer.fill(simulation.filled())
    simulation.devices = placer.devices
    return placer


REACTIVE: Final = StatefulPolicy(
    partial(ReactiveCopies, is_one_per_device=False),
    partial(simulated_reactive, is_one_per_device=False),
)
REACTIVE_ALONE: Final = StatefulPolicy(
    partial(ReactiveCopies, is_one_per_device=True),
    partial(simulated_reactive, is_one_per_device=True),
)
