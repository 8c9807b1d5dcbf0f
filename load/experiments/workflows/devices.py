"""One simulated device: runs one batch at a time, loads one model at a time beside it.

Zhang et al. 2025, sections 5.1, 5.4 and 6.1: queued steps of one model form a batch, the least
recently used model goes, and models of queued steps stay.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from load.experiments.workflows.constants import (
    HOST_BYTES_PER_S,
    LOAD_FIXED_S,
    MODELS,
    RECENT_S,
)

if TYPE_CHECKING:
    from collections.abc import Callable


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


@dataclass(slots=True)
class DeviceCounts:
    loads: int = 0
    load_s: float = 0.0
    beside_s: float = 0.0
    """Of loading, while a batch ran at the load's begin."""
    batches: int = 0
    steps: int = 0
    unused: int = 0
    """Loads of models that left the device without a step."""


@dataclass(eq=False, slots=True)
class SimulatedDevice:
    index: int
    memory_bytes: float
    after: Callable[[float, Callable[[], None]], None]
    """Call something at a time."""
    on_end: Callable[[SimulatedStep], None]
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

    def poke(self, now_s: float) -> None:
        """Begin what can begin."""
        self._begin_batch(now_s)
        self._begin_load(now_s)

    def load_s(self, model: str, now_s: float) -> float:
        """Time until the model is loaded, if nothing else were; 0 where it is."""
        if model in self.loaded:
            return 0.0
        if model == self.loading:
            return self.load_end_s - now_s
        return LOAD_FIXED_S + MODELS[model].size_bytes / HOST_BYTES_PER_S

    def harm_s(self, model: str, now_s: float) -> float:
        """What a load costs others: reloads of evicted models that were used lately."""
        if model in self.loaded or model == self.loading:
            return 0.0
        seconds = 0.0
        short = MODELS[model].size_bytes - self.memory_bytes
        short += sum(MODELS[each].size_bytes for each in {*self.loaded, self.loading} - {""})
        for victim in sorted(self.loaded, key=lambda each: (self.loaded[each], each)):
            if short <= 0:
                break
            short -= MODELS[victim].size_bytes
            if now_s - self.loaded[victim] < RECENT_S:
                seconds += LOAD_FIXED_S + MODELS[victim].size_bytes / HOST_BYTES_PER_S
        return seconds

    def _ready(self, now_s: float) -> list[SimulatedStep]:
        return [step for step in self.queue if step.ready_s is not None and step.ready_s <= now_s]

    def _begin_batch(self, now_s: float) -> None:
        if self.running:
            return
        ready = [step for step in self._ready(now_s) if step.model in self.loaded]
        if not ready:
            return
        first = min(ready, key=lambda step: (step.ready_s or 0.0, step.run, step.number))
        figures = MODELS[first.model]
        batch = [step for step in ready if step.model == first.model][: figures.max_batch]
        for step in batch:
            step.begun_s = now_s
            self.queue.remove(step)
        self.running = batch
        self.loaded[first.model] = now_s
        self.used.add(first.model)
        self.batch_end_s = now_s + figures.batch_s(len(batch))
        self.counts.batches += 1
        self.counts.steps += len(batch)
        self.after(self.batch_end_s, self._end_batch)

    def _end_batch(self) -> None:
        batch, self.running = self.running, []
        self.loaded[batch[0].model] = self.batch_end_s
        for step in batch:
            step.end_s = self.batch_end_s
            self.on_end(step)
        self.poke(self.batch_end_s)

    def _begin_load(self, now_s: float) -> None:
        if self.loading:
            return
        needed = [step.model for step in self._ready(now_s)]
        coming = [step.model for step in self.queue if step.model not in needed]
        for model in dict.fromkeys((*needed, *coming, *self.wanted)):
            if model in self.loaded:
                continue
            is_urgent = model in needed and not self.running
            if self._make_room(model, is_urgent=is_urgent):
                self._load(model, now_s)
                return
            if model in needed:
                return  # later ones wait for the room, too

    def _load(self, model: str, now_s: float) -> None:
        seconds = self.load_s(model, now_s)
        self.loading, self.load_end_s = model, now_s + seconds
        self.counts.loads += 1
        self.counts.load_s += seconds
        if self.running:
            self.counts.beside_s += seconds
        self.after(self.load_end_s, self._end_load)

    def _end_load(self) -> None:
        self.loaded[self.loading] = self.load_end_s
        self.used.discard(self.loading)
        self.loading = ""
        self.poke(self.load_end_s)

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
            self.counts.unused += victim not in self.used
        return True
