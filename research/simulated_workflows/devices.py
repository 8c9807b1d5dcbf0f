"""One simulated device: runs one batch at a time, loads one model at a time beside it.

Zhang et al. 2025, sections 5.1, 5.4 and 6.1: queued steps of one model form a batch, the least
recently used model goes, and models of queued steps stay.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from load.simulator.event_queue import EventQueue
from registry.domain.cluster import ClusterState
from registry.domain.model import Tier
from registry.domain.pod_index import Residency
from registry.domain.pod_state import PodState
from research.simulated_workflows.applications import WorkflowRequest
from research.simulated_workflows.constants import HOST_BYTES_PER_S, MODELS, load_seconds
from workflows.plan.pods import eviction_seconds


@dataclass(eq=False, slots=True)
class SimulatedStep:
    """One call of one request."""

    run: int
    number: int
    model: str
    device: int = -1
    ready_s: float | None = None
    """When its inputs are at its device; None: they are not all computed."""
    begun_s: float | None = None
    end_s: float | None = None


@dataclass(eq=False, slots=True)
class SimulatedRun:
    number: int
    request: WorkflowRequest
    arrival_s: float
    steps: list[SimulatedStep] = field(default_factory=list)
    """Those that the code has called."""
    plan: list[tuple[str, tuple[int, ...], int]] = field(default_factory=list)
    """Model, inputs and device by position."""
    ahead: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Device and planned start of the steps that are predicted, by position."""
    planned_s: float = -inf
    is_waiting_for_plan: bool = False
    end_s: float = 0.0

    @property
    def is_over(self) -> bool:
        return len(self.steps) == len(self.request.calls) and all(
            step.end_s is not None for step in self.steps
        )

    def inputs_of(self, step: SimulatedStep) -> list[SimulatedStep]:
        return [self.steps[each] for each in self.request.calls[step.number].inputs]


@dataclass(slots=True)
class DeviceCounts:
    """What a device has done, and how its time went (figure 9); times in seconds."""

    loads: int = 0
    unused: int = 0
    """Loads of models that left the device without a step."""
    batches: int = 0
    steps: int = 0
    running_s: float = 0.0
    """Running without loading; `loading_s` the reverse."""
    loading_s: float = 0.0
    both_s: float = 0.0
    _since_s: float = 0.0
    _is_running: bool = False
    _is_loading: bool = False

    def begin(self, now_s: float, *, is_running: bool, is_loading: bool) -> None:
        """The device is in this state from now on."""
        passed_s, self._since_s = now_s - self._since_s, now_s
        if self._is_running and self._is_loading:
            self.both_s += passed_s
        elif self._is_running:
            self.running_s += passed_s
        elif self._is_loading:
            self.loading_s += passed_s
        self._is_running, self._is_loading = is_running, is_loading


class CountedDevice(Protocol):
    """What a simulation asks of devices, whatever kind a policy has."""

    counts: DeviceCounts
    memory_bytes: float

    def poke(self, _: object = None) -> None:
        """Begin what can begin."""
        ...


@dataclass(eq=False, slots=True)
class SimulatedDevice:
    index: int
    memory_bytes: float
    events: EventQueue
    on_end: Callable[[SimulatedStep], None]
    state: ClusterState
    """Of all devices: told what this one holds and loads, for prices."""
    pod: PodState
    """This device there."""
    host_bytes_per_s: float = HOST_BYTES_PER_S
    queue: list[SimulatedStep] = field(default_factory=list)
    """Assigned and not begun."""
    running: list[SimulatedStep] = field(default_factory=list)
    batch_end_s: float = 0.0
    loaded: dict[str, float] = field(default_factory=dict)
    """Time of the last use, by model."""
    used: set[str] = field(default_factory=set)
    loading: str = ""
    load_end_s: float = 0.0
    wanted: dict[str, set[int]] = field(default_factory=dict)
    """Models to load ahead, with the runs that want them."""
    counts: DeviceCounts = field(default_factory=DeviceCounts)

    @property
    def now_s(self) -> float:
        return self.events.now_s

    def poke(self, _: object = None) -> None:
        """Begin what can begin."""
        self._begin_batch()
        self._begin_load()
        is_running, is_loading = bool(self.running), bool(self.loading)
        self.counts.begin(self.now_s, is_running=is_running, is_loading=is_loading)

    def load_s(self, model: str) -> float:
        """Time until the model is loaded, if nothing else were; 0 where it is."""
        if model in self.loaded:
            return 0.0
        if model == self.loading:
            return self.load_end_s - self.now_s
        return load_seconds(model, self.host_bytes_per_s)

    def harm_s(self, model: str) -> float:
        """What a load costs later requests of the models that it evicts: production's price."""
        if model in self.loaded:
            return 0.0
        return eviction_seconds(self.state, self.pod, model, self.now_s, self.load_s(model))

    def hold(self, model: str) -> None:
        """The model is loaded now."""
        self.loaded[model] = self.now_s
        self._put(model, Residency(Tier.DEVICE, None, self.now_s, _size_bytes(model)))

    def _put(self, model: str, residency: Residency) -> None:
        self.state.residency.put(model, self.pod.name, residency)

    def _ready(self) -> list[SimulatedStep]:
        now_s = self.now_s
        return [step for step in self.queue if step.ready_s is not None and step.ready_s <= now_s]

    def _begin_batch(self) -> None:
        if self.running:
            return
        ready = [step for step in self._ready() if step.model in self.loaded]
        if not ready:
            return
        first = min(ready, key=lambda step: (step.ready_s or 0.0, step.run, step.number))
        figures = MODELS[first.model]
        batch = [step for step in ready if step.model == first.model][: figures.max_batch]
        for step in batch:
            step.begun_s = self.now_s
            self.queue.remove(step)
        self.running = batch
        self.loaded[first.model] = self.now_s
        self.used.add(first.model)
        self.batch_end_s = self.now_s + figures.batch_s(len(batch))
        self.counts.batches += 1
        self.counts.steps += len(batch)
        self.events.at(self.batch_end_s, self._end_batch)

    def _end_batch(self, _: object) -> None:
        batch, self.running = self.running, []
        self.loaded[batch[0].model] = self.now_s
        for step in batch:
            step.end_s = self.now_s
            self.on_end(step)
        self.poke()

    def _begin_load(self) -> None:
        if self.loading:
            return
        needed = [step.model for step in self._ready()]
        coming = [step.model for step in self.queue if step.model not in needed]
        for model in dict.fromkeys((*needed, *coming, *self.wanted)):
            if model in self.loaded:
                continue
            is_urgent = model in needed and not self.running
            if self._make_room(model, is_urgent=is_urgent):
                self.loading, self.load_end_s = model, self.now_s + self.load_s(model)
                loading = Residency(Tier.HOST, Tier.HOST, self.now_s, _size_bytes(model))
                self._put(model, loading)
                self.counts.loads += 1
                self.events.at(self.load_end_s, self._end_load)
                return
            if model in needed:
                return  # later ones wait for the room, too

    def _end_load(self, _: object) -> None:
        self.hold(self.loading)
        self.used.discard(self.loading)
        self.loading = ""
        self.poke()

    def _make_room(self, model: str, *, is_urgent: bool) -> bool:
        """Evict by last use; urgent loads may evict models of queued steps, for a deadlock else."""
        free = self.memory_bytes - sum(MODELS[each].size_bytes for each in self.loaded)
        kept = {step.model for step in self.running}
        if not is_urgent:
            kept |= {step.model for step in self.queue}
            kept |= self.wanted.keys()
        victims: list[str] = []
        for victim in sorted(self.loaded, key=lambda each: (self.loaded[each], each)):
            if free >= MODELS[model].size_bytes:
                break
            if victim not in kept:
                victims.append(victim)
                free += MODELS[victim].size_bytes
        if free < MODELS[model].size_bytes:
            return False
        for victim in victims:
            del self.loaded[victim]
            self.state.residency.drop(victim, self.pod.name)
            self.counts.unused += victim not in self.used
        return True


def _size_bytes(model: str) -> int:
    return int(MODELS[model].size_bytes)
