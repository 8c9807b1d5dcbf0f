"""Devices whose copies of models run at the same time, each at its share of the device's speed.

Zhang et al. 2025, section 8.1, on Ray Serve: copies are actors of their own, also several of one
model on one device; each batches what waits for it. Memory is counted per copy.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from load.simulator.event_queue import EventQueue
from research.simulated_workflows.constants import MODELS, load_seconds
from research.simulated_workflows.devices import DeviceCounts
from research.simulated_workflows.simulated_run import SimulatedStep


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
