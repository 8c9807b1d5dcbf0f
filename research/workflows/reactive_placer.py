"""Steps to copies that grow with their queues, by the policy `reactive`."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

from load.simulator.event_queue import EventQueue
from research.simulated_workflows.cluster import PlacedModels
from research.simulated_workflows.constants import MODELS
from research.simulated_workflows.simulated_run import SimulatedRun, SimulatedStep
from research.workflows.reactive import (
    CopiesView,
    ModelCopy,
    ReactiveParams,
    ReactiveState,
    reactive,
    shortest_queue,
)
from research.workflows.sharing_devices import SharingDevice, SimulatedCopy

INTERVAL_S: Final = 1.0
"""Between decisions on copies; a step of a model without a copy asks for one at once."""


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
        """Of the models that have a copy or were called."""
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
