"""Steps to copies that grow with their queues, and that share their device's speed.

Zhang et al. 2025, section 8.1, on Ray Serve: copies are actors of their own, also several of one
model on one device; each batches what waits for it. Memory is counted per copy.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

from load.simulator.event_queue import EventQueue
from research.simulated_workflows.cluster import PlacedModels
from research.simulated_workflows.constants import MODELS, load_seconds
from research.simulated_workflows.devices import DeviceCounts, SimulatedRun, SimulatedStep
from research.simulated_workflows.reactive import (
    CopiesView,
    ModelCopy,
    ReactiveParams,
    ReactiveState,
    reactive,
    shortest_queue,
)


@dataclass(eq=False, slots=True)
class SimulatedCopy:
    """One copy of a model, with its own queue."""

    model: str
    device: "SharingDevice"
    queue: list[SimulatedStep] = field(default_factory=list)
    running: list[SimulatedStep] = field(default_factory=list)
    left_s: float = 0.0
    """Of the running batch, if it had the device for itself."""
    is_loading: bool = False
    is_used: bool = False

    def begin_batch(self, now_s: float) -> None:
        """Run what waits and has its inputs, if nothing runs."""
        if self.running or self.is_loading:
            return
        ready = [step for step in self.queue if step.ready_s is not None and step.ready_s <= now_s]
        if not ready:
            return
        figures = MODELS[self.model]
        ready.sort(key=lambda step: (step.ready_s or 0.0, step.run, step.number))
        self.running = ready[: figures.max_batch]
        for step in self.running:
            step.begun_s = now_s
            self.queue.remove(step)
        self.left_s = figures.batch_s(len(self.running))
        self.is_used = True


@dataclass(eq=False, slots=True)
class SharingDevice:
    index: int
    memory_bytes: float
    events: EventQueue
    on_end: Callable[[SimulatedStep], None]
    copies: list[SimulatedCopy] = field(default_factory=list)
    counts: DeviceCounts = field(default_factory=DeviceCounts)
    _advanced_s: float = 0.0
    _version: int = 0
    """Of what runs here: events of older versions are void."""

    def add(self, model: str, *, is_loaded: bool = False) -> SimulatedCopy:
        """A further copy, which loads first, beside what runs."""
        copy = SimulatedCopy(model, self, is_loading=not is_loaded)
        self.copies.append(copy)
        if not is_loaded:
            self.counts.loads += 1
            self.events.after(load_seconds(model), self._end_load, copy)
            self._note()
        return copy

    def remove(self, copy: SimulatedCopy) -> None:
        """End a copy that has no steps."""
        self.copies.remove(copy)
        self.counts.unused += not copy.is_used

    def poke(self, _: object = None) -> None:
        """Begin what can begin, and find when the next batch ends."""
        self._advance()
        for copy in self.copies:
            if not copy.running:
                copy.begin_batch(self.events.now_s)
                self.counts.batches += bool(copy.running)
                self.counts.steps += len(copy.running)
        self._note()
        running = [copy for copy in self.copies if copy.running]
        self._version += 1
        if running:
            soonest_s = min(copy.left_s for copy in running) * len(running)
            self.events.after(soonest_s, self._end_batches, self._version)

    def _note(self) -> None:
        self.counts.begin(
            self.events.now_s,
            is_running=any(copy.running for copy in self.copies),
            is_loading=any(copy.is_loading for copy in self.copies),
        )

    def _advance(self) -> None:
        """Let running batches share the time that has passed."""
        now_s = self.events.now_s
        passed_s, self._advanced_s = now_s - self._advanced_s, now_s
        running = [copy for copy in self.copies if copy.running]
        for copy in running:
            copy.left_s -= passed_s / len(running)

    def _end_batches(self, version: int) -> None:
        if version != self._version:
            return
        self._advance()
        least_s = min((copy.left_s for copy in self.copies if copy.running), default=inf)
        ended = [copy for copy in self.copies if copy.running and copy.left_s <= least_s + 1e-9]
        for copy in ended:
            steps, copy.running = copy.running, []
            for step in steps:
                step.end_s = self.events.now_s
                self.on_end(step)
        self.poke()

    def _end_load(self, copy: SimulatedCopy) -> None:
        copy.is_loading = False
        self.poke()


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
