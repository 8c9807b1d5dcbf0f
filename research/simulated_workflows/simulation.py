"""Runs an application's requests on simulated devices, by the scheduling code of production."""

import random
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from load.simulator.event_queue import EventQueue
from research.simulated_workflows.applications import (
    APPLICATIONS,
    GENERATORS,
    Generators,
    WorkflowRequest,
    arrivals,
    knowledge_card,
    mean_work_s,
    models_of,
)
from research.simulated_workflows.cluster import PlacedModels, SimulatedCluster, transfer_s
from research.simulated_workflows.constants import (
    DEVICES,
    HOST_BYTES_PER_S,
    LOAD_SHARE,
    MEMORY_BYTES,
    MODELS,
    WORD_IS_TRUE,
)
from research.simulated_workflows.devices import CountedDevice, SimulatedRun, SimulatedStep
from research.simulated_workflows.placers import LonePlacer, Placer, Schedulers, SpeculativePlacer
from research.simulated_workflows.reactive import ReactiveParams
from research.simulated_workflows.reactive_placer import ReactivePlacer
from workflows.plan.problem import SchedulingPolicy

_MAX_PLACEMENTS: Final = 10_000
"""Kept apart; beyond it the half held the shortest is forgotten."""


class HeldPlacements:
    """For `static`: an account of time by placement. All placements have the same devices.

    Zhang et al. 2025, section 8: Triton Inference Server does not load by itself, so it is given
    the placement that the speculative scheduler held longest. Here models which that placement
    lacks are added where they were held longest.
    """

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


POLICIES: Final = ("speculative", "greedy", "reactive", "reactive-alone", "round-robin", "static")
"""Those of the live scheduler but `auto`, since there is no gateway here, and what the paper
compares them with: "reactive" is its Ray Serve, "static" its Triton."""


@dataclass(frozen=True, slots=True)
class WorkflowTask:
    """One simulation."""

    application: str
    policy: str
    """One of `POLICIES`."""
    seed: int
    devices: int
    memory_bytes: float
    rate_per_s: float
    file: Path
    minutes: int
    predictor: str = "longest-context"
    changes_at_s: float | None = None
    """From then on GILL's requests are doubled and the others halved (figure 10)."""
    planning_s: float = 0.0
    """Time of a scheduler for one plan."""
    schedulers: int = 1
    is_filtered: bool = False
    """Plans weigh a few devices only, as the live scheduler's."""
    is_always_loading: bool = False
    """The paper's loads ahead: all that is predicted."""
    host_bytes_per_s: float = HOST_BYTES_PER_S
    word_is_true: float = WORD_IS_TRUE
    """Share of KNOWLEDGECARD's prompts with a word that gives the card away."""


@dataclass(frozen=True, slots=True)
class WorkflowRunResult:
    requests: int
    mean_s: float
    p95_s: float
    loads: int
    unused_loads: int
    batch: float
    """Mean batch size."""
    predicted_share: float
    """Of steps, foreseen with model and inputs; 0 for policies that foresee none."""
    running_share: float
    """Of the devices' time: running alone; loading alone; both at the same time."""
    loading_share: float
    both_share: float
    before_s: float = 0.0
    """Mean latency before the change of rates, and after it; 0 without one."""
    after_s: float = 0.0


class WorkflowSimulation:
    """One task, in virtual time."""

    def __init__(self, task: WorkflowTask) -> None:
        self.task = task
        self.events = EventQueue()
        self.runs: list[SimulatedRun] = []
        self.cluster = SimulatedCluster(
            task.devices,
            task.memory_bytes,
            self.events,
            self.on_end,
            task.host_bytes_per_s,
            schedulers=task.schedulers,
        )
        self.devices: Sequence[CountedDevice] = self.cluster.devices
        self._placer = self._make_placer(task)

    def _make_placer(self, task: WorkflowTask) -> Placer:
        if task.policy.startswith("reactive"):
            return self._reactive_placer(task)
        if task.policy == "static":
            fixed = placement_held_longest(task)
            self.cluster.fill(fixed)
            return LonePlacer(self.cluster, fixed)
        self.cluster.fill(self.filled())
        if task.policy == SchedulingPolicy.SPECULATIVE:
            return SpeculativePlacer(
                self.cluster,
                task.predictor,
                send=self.send,
                schedulers=Schedulers(task.planning_s, [0.0] * task.schedulers),
                is_filtered=task.is_filtered,
                is_always_loading=task.is_always_loading,
            )
        return LonePlacer(self.cluster, is_in_turn=task.policy == "round-robin")

    def _reactive_placer(self, task: WorkflowTask) -> ReactivePlacer:
        placer = ReactivePlacer(
            task.devices,
            task.memory_bytes,
            self.events,
            ReactiveParams(is_one_per_device=task.policy == "reactive-alone"),
            on_end=self.on_end,
            send=self.send,
        )
        placer.fill(self.filled())
        self.devices = placer.devices
        return placer

    def filled(self) -> PlacedModels:
        """Before the first request: as many models as fit, beginning with another on each device.

        So no policy is compared by how it starts.
        """
        task = self.task
        models, placement = models_of(task.application), []
        for device in range(task.devices):
            free, held = task.memory_bytes, list[str]()
            first = device % len(models)
            for model in [*models[first:], *models[:first]]:
                if MODELS[model].size_bytes <= free:
                    held.append(model)
                    free -= MODELS[model].size_bytes
            placement.append(frozenset(held))
        return tuple(placement)

    def run(
        self, observe: Callable[[PlacedModels, float], object] | None = None
    ) -> WorkflowRunResult:
        """`observe`: told what the devices hold, and the time, after each event."""
        task = self.task
        rng = random.Random(task.seed)
        cards = partial(knowledge_card, word_is_true=task.word_is_true)
        generators: Generators = {**GENERATORS, "knowledge-card": cards}
        for time_s, request in arrivals(
            task.file,
            task.application,
            task.rate_per_s,
            rng,
            task.minutes,
            changes_at_s=task.changes_at_s,
            generators=generators,
        ):
            self.events.at(time_s, self._arrive, request)
        while self.events.run_some(1, until=lambda: False):
            if observe is not None:
                observe(self.cluster.loaded(), self.events.now_s)
        return self._result()

    # The course of a run

    def _arrive(self, request: WorkflowRequest) -> None:
        run = SimulatedRun(len(self.runs), request, self.events.now_s)
        self.runs.append(run)
        self.cluster.active[run.number] = run
        self._go_on(run)

    def _go_on(self, run: SimulatedRun) -> None:
        """Make the calls that are known now, have them placed, and send those with inputs."""
        calls, called = run.request.calls, len(run.steps)
        while len(run.steps) < len(calls) and self._is_known(run, len(run.steps)):
            number = len(run.steps)
            run.steps.append(SimulatedStep(run.number, number, calls[number].model))
        if len(run.steps) > called:
            self._placer.called(run, called)
        self.send(run)

    def _is_known(self, run: SimulatedRun, number: int) -> bool:
        after = run.request.calls[number].known_after
        return all(run.steps[each].end_s is not None for each in after)

    def send(self, run: SimulatedRun) -> None:
        """Begin to move the inputs of steps to their devices, where all are computed."""
        for step in run.steps:
            inputs = run.inputs_of(step)
            is_waiting = step.ready_s is None and all(each.end_s is not None for each in inputs)
            if is_waiting and self._placer.ready(run, step):
                moved_s = [(each.end_s or 0.0) + transfer_s(each, step.device) for each in inputs]
                step.ready_s = max([self.events.now_s, *moved_s])
                self.cluster.state.arrivals.record(step.model, self.events.now_s)
                self.events.at(step.ready_s, self.devices[step.device].poke)

    def on_end(self, step: SimulatedStep) -> None:
        run = self.runs[step.run]
        run.end_s = self.events.now_s
        if run.is_over:
            self._placer.ended(run)
            del self.cluster.active[run.number]
        else:
            self._go_on(run)

    def _result(self) -> WorkflowRunResult:
        seconds = sorted(run.end_s - run.arrival_s for run in self.runs)
        counts = [device.counts for device in self.devices]
        total_s = self.events.now_s * len(self.devices)
        placer = self._placer
        foreseen = placer.foreseen if isinstance(placer, SpeculativePlacer) else 0
        return WorkflowRunResult(
            requests=len(seconds),
            mean_s=sum(seconds) / len(seconds),
            p95_s=seconds[int(0.95 * len(seconds))],
            loads=sum(each.loads for each in counts),
            unused_loads=sum(each.unused for each in counts),
            batch=sum(each.steps for each in counts) / sum(each.batches for each in counts),
            predicted_share=foreseen / sum(len(run.steps) for run in self.runs),
            running_share=sum(each.running_s for each in counts) / total_s,
            loading_share=sum(each.loading_s for each in counts) / total_s,
            both_share=sum(each.both_s for each in counts) / total_s,
            before_s=self._mean_s(is_after=False),
            after_s=self._mean_s(is_after=True),
        )

    def _mean_s(self, *, is_after: bool) -> float:
        changes_at_s = self.task.changes_at_s
        if changes_at_s is None:
            return 0.0
        seconds = [
            run.end_s - run.arrival_s
            for run in self.runs
            if (run.arrival_s >= changes_at_s) == is_after
        ]
        return sum(seconds) / max(1, len(seconds))


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


def placement_tasks(
    file: Path,
    seeds: Sequence[int],
    minutes: int,
    *,
    applications: Iterable[str] = APPLICATIONS,
    policies: Sequence[str] = (),
) -> list[WorkflowTask]:
    """At a rate of half of what the devices can do with batches of one."""
    tasks = []
    for application in applications:
        work_s = mean_work_s(application, random.Random(0))
        rate_per_s = LOAD_SHARE * DEVICES / work_s
        tasks += [
            WorkflowTask(
                application,
                policy,
                seed,
                DEVICES,
                MEMORY_BYTES[application],
                rate_per_s,
                file,
                minutes,
            )
            for policy in policies or POLICIES
            for seed in seeds
        ]
    return tasks


def simulate_workflows(task: WorkflowTask) -> WorkflowRunResult:
    return WorkflowSimulation(task).run()
