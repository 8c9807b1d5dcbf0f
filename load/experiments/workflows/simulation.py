"""Runs an application's requests on simulated devices, by the scheduling code of production."""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from math import inf
from typing import TYPE_CHECKING

from load.experiments.workflows.applications import models_of
from load.experiments.workflows.arrivals import arrivals
from load.experiments.workflows.constants import LINKS, MODELS, RECENT_S
from load.experiments.workflows.devices import SimulatedDevice, SimulatedStep
from workflows.prediction.input_positions import InputPositions
from workflows.prediction.predictors import PREDICTORS
from workflows.prediction.rollout import predicted_steps
from workflows.prediction.step_counts import END
from workflows.scheduling.backlog import AssignedStep, device_queue
from workflows.scheduling.costs import Device, ModelCosts, scheduling_problem
from workflows.scheduling.greedy import greedy
from workflows.scheduling.problem import Loading, Placement, Step
from workflows.scheduling.replanning import is_outdated
from workflows.scheduling.round_robin import round_robin
from workflows.scheduling.speculative import speculative

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from load.experiments.workflows.applications import WorkflowRequest

COSTS = {
    name: ModelCosts(each.batch_s, each.max_batch, 0.0, each.output_bytes)
    for name, each in MODELS.items()
}


@dataclass(frozen=True, slots=True)
class WorkflowTask:
    """One simulation."""

    application: str
    policy: str
    """speculative, greedy or round-robin."""
    seed: int
    devices: int
    memory_bytes: float
    rate_per_s: float
    file: Path
    minutes: int
    predictor: str = "longest-context"


@dataclass(frozen=True, slots=True)
class WorkflowRunResult:
    requests: int
    mean_s: float
    p95_s: float
    loads: int
    unused_loads: int
    beside_share: float
    """Of loading time, begun while a batch ran."""
    batch: float
    """Mean batch size."""
    predicted_share: float
    """Of steps, foreseen with model and inputs; 0 for policies that foresee none."""


@dataclass(eq=False, slots=True)
class _Run:
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
    end_s: float = 0.0


class WorkflowSimulation:
    """One task, in virtual time."""

    def __init__(self, task: WorkflowTask) -> None:
        self._task = task
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._now_s = 0.0
        self.devices = [
            SimulatedDevice(index, task.memory_bytes, self._at, self._on_end)
            for index in range(task.devices)
        ]
        self.runs: list[_Run] = []
        self._active: dict[int, _Run] = {}
        self._models = {name: PREDICTORS[task.predictor]() for name in ("gill", "knowledge-card",
                                                                        "debate")}  # fmt: skip
        self._positions = {name: InputPositions() for name in self._models}
        self._turn = 0
        self._foreseen = self._called = 0

    def run(self) -> WorkflowRunResult:
        task = self._task
        self._fill()
        rng = random.Random(task.seed)
        for time_s, request in arrivals(
            task.file, task.application, task.rate_per_s, rng, task.minutes
        ):
            self._at(time_s, partial(self._arrive, request))
        while self._events:
            self._now_s, _, act = heapq.heappop(self._events)
            act()
        return self._result()

    def _fill(self) -> None:
        """Before the first request: each device has as many models as fit, beginning with another.

        So no policy is compared by how it starts.
        """
        models = models_of(self._task.application)
        for device in self.devices:
            free = device.memory_bytes
            first = device.index % len(models)
            for model in models[first:] + models[:first]:
                if MODELS[model].size_bytes <= free:
                    device.loaded[model] = -RECENT_S
                    free -= MODELS[model].size_bytes

    def _at(self, time_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time_s, next(self._order), act))

    # The course of a run

    def _arrive(self, request: WorkflowRequest) -> None:
        run = _Run(len(self.runs), request, self._now_s)
        self.runs.append(run)
        self._active[run.number] = run
        self._go_on(run, is_new=True)

    def _go_on(self, run: _Run, *, is_new: bool = False) -> None:
        """Make the calls that are known now, place them, and send those with inputs."""
        calls, called = run.request.calls, len(run.steps)
        is_foreseen = not is_new
        while len(run.steps) < len(calls) and self._is_known(run, len(run.steps)):
            is_foreseen &= self._call(run)
        if is_new or len(run.steps) > called:
            age_s = self._now_s - run.planned_s
            if self._task.policy == "speculative" and is_outdated(is_foreseen, age_s):
                self._plan(run)
        for step in run.steps:
            if step.ready_s is None:
                self._send(run, step)

    def _is_known(self, run: _Run, number: int) -> bool:
        after = run.request.calls[number].known_after
        return all(run.steps[each].end_s is not None for each in after)

    def _call(self, run: _Run) -> bool:
        """The code makes its next call; whether the plan foresaw it."""
        number, request = len(run.steps), run.request
        call = request.calls[number]
        names = [each.model for each in run.steps]
        step = SimulatedStep(run.number, number, call.model)
        run.steps.append(step)
        self._called += 1
        run.ahead.pop(number, None)
        self._models[request.workflow].observe(names, call.model, request.features, self._now_s)
        self._positions[request.workflow].observe(names, call.model, call.inputs, self._now_s)
        if number < len(run.plan) and run.plan[number][:2] == (call.model, call.inputs):
            self._foreseen += 1
            self._assign(step, run.plan[number][2])
            return True
        return False

    def _send(self, run: _Run, step: SimulatedStep) -> None:
        """Begin to move a step's inputs to its device, if they are all computed."""
        inputs = [run.steps[each] for each in run.request.calls[step.number].inputs]
        if any(each.end_s is None for each in inputs):
            return
        if self._task.policy != "speculative":
            self._assign(step, self._place_alone(run, step))
        moved_s = [
            (each.end_s or 0.0)
            + LINKS.within_node.seconds(COSTS[each.model].output_bytes)
            * (each.device != step.device)
            for each in inputs
        ]
        step.ready_s = max([self._now_s, *moved_s])
        self._at(step.ready_s, partial(self._poke, step.device))

    def _poke(self, device: int) -> None:
        self.devices[device].poke(self._now_s)

    def _assign(self, step: SimulatedStep, device: int) -> None:
        if step.device >= 0:
            self.devices[step.device].queue.remove(step)
        step.device = device
        self.devices[device].queue.append(step)
        self._poke(device)

    def _on_end(self, step: SimulatedStep) -> None:
        run = self.runs[step.run]
        run.end_s = step.end_s or 0.0
        is_over = len(run.steps) == len(run.request.calls) and all(
            each.end_s is not None for each in run.steps
        )
        if is_over:
            request = run.request
            self._models[request.workflow].observe(
                [each.model for each in run.steps], END, request.features, self._now_s
            )
            self._want(run, {})
            del self._active[run.number]
        else:
            self._go_on(run)

    # Placement

    def _queues(self, run: _Run | None) -> list[Device]:
        """Devices as policies see them, without the steps of this run that are placed anew."""
        devices = []
        ahead: dict[int, list[AssignedStep]] = defaultdict(list)
        for other in self._active.values():
            for number, (index, start_s) in other.ahead.items():
                if other is not run:
                    expected = AssignedStep(other.plan[number][0], max(0.0, start_s - self._now_s))
                    ahead[index].append(expected)
        for device in self.devices:
            assigned = [
                AssignedStep(step.model, max(0.0, (step.ready_s or self._now_s) - self._now_s))
                for step in device.queue
                if run is None or step.run != run.number or step.ready_s is not None
            ]
            running = [
                AssignedStep(step.model, 0.0, (step.begun_s or 0.0) - self._now_s)
                for step in device.running
            ]
            queue = device_queue([*running, *assigned, *ahead[device.index]], COSTS.__getitem__)
            load_s = {model: device.load_s(model, self._now_s) for model in MODELS}
            harm_s = {model: device.harm_s(model, self._now_s) for model in MODELS}
            devices.append(
                Device(
                    f"device-{device.index:03}", "node", queue.batches, queue.free_s, load_s,
                    frozenset(device.loaded), harm_s,
                )
            )  # fmt: skip
        return devices

    def _plan(self, run: _Run) -> None:
        """Place all known and predicted steps together, and load ahead for them."""
        request, run.planned_s = run.request, self._now_s
        steps = [Step(step.model, request.calls[step.number].inputs) for step in run.steps]
        predicted = predicted_steps(
            [step.model for step in run.steps], self._models[request.workflow],
            self._positions[request.workflow], features=request.features, now_s=self._now_s,
        )  # fmt: skip
        steps += [Step(each.model, each.inputs) for each in predicted]
        placed = {
            step.number: Placement(
                step.device, 0.0, self._ends_in_s(step) if step.end_s is None else 0.0
            )
            for step in run.steps
            if step.ready_s is not None
        }
        problem = scheduling_problem(
            steps, self._queues(run), COSTS, LINKS, placed=placed, loading=Loading.BESIDE_QUEUE
        )
        schedule = speculative(problem)
        run.plan = [
            (step.model, step.inputs, at.device)
            for step, at in zip(steps, schedule.placements, strict=True)
        ]
        for step in run.steps:
            if step.ready_s is None:
                self._assign(step, run.plan[step.number][2])
        run.ahead = {
            number: (at.device, self._now_s + at.start_s)
            for number, at in enumerate(schedule.placements)
            if number >= len(run.steps)
        }
        called = len(run.steps)
        ahead = {
            (device, model): None
            for number, (model, _, device) in enumerate(run.plan)
            if number >= called
            and self._is_worth_loading(device, model, predicted[number - called].probability)
        }
        self._want(run, ahead)

    def _ends_in_s(self, step: SimulatedStep) -> float:
        device = self.devices[step.device]
        if step in device.running:
            return device.batch_end_s - self._now_s
        wait_s = max(device.batch_end_s - self._now_s, 0.0) if device.running else 0.0
        load_s = device.load_s(step.model, self._now_s)
        return max(wait_s, load_s) + COSTS[step.model].batch_s(1)

    def _is_worth_loading(self, index: int, model: str, probability: float) -> bool:
        """Whether a load saves more, as expected, than it costs models used lately."""
        device = self.devices[index]
        load_s = device.load_s(model, self._now_s)
        return probability * load_s > device.harm_s(model, self._now_s)

    def _want(self, run: _Run, ahead: dict[tuple[int, str], None]) -> None:
        """Load these models ahead, and withdraw what this run wanted before."""
        for device in self.devices:
            for model in list(device.wanted):
                if (device.index, model) not in ahead:
                    device.wanted[model].discard(run.number)
                    if not device.wanted[model]:
                        del device.wanted[model]
        for index, model in ahead:
            self.devices[index].wanted.setdefault(model, set()).add(run.number)
            self._poke(index)

    def _place_alone(self, run: _Run, step: SimulatedStep) -> int:
        """One step, by `greedy` or `round_robin`."""
        inputs = [run.steps[each] for each in run.request.calls[step.number].inputs]
        steps = [Step(each.model) for each in inputs]
        steps.append(Step(step.model, tuple(range(len(inputs)))))
        placed = {number: Placement(each.device, 0.0, 0.0) for number, each in enumerate(inputs)}
        problem = scheduling_problem(
            steps, self._queues(None), COSTS, LINKS, placed=placed, loading=Loading.BESIDE_QUEUE
        )
        if self._task.policy == "round-robin":
            chosen = round_robin(problem, self._turn).placements[-1].device
            self._turn = (chosen + 1) % len(self.devices)
            return chosen
        return greedy(problem).placements[-1].device

    def _result(self) -> WorkflowRunResult:
        seconds = sorted(run.end_s - run.arrival_s for run in self.runs)
        counts = [device.counts for device in self.devices]
        load_s = sum(each.load_s for each in counts)
        return WorkflowRunResult(
            requests=len(seconds),
            mean_s=sum(seconds) / len(seconds),
            p95_s=seconds[int(0.95 * len(seconds))],
            loads=sum(each.loads for each in counts),
            unused_loads=sum(each.unused for each in counts),
            beside_share=sum(each.beside_s for each in counts) / load_s if load_s else 0.0,
            batch=sum(each.steps for each in counts) / sum(each.batches for each in counts),
            predicted_share=self._foreseen / self._called,
        )


def simulate_workflows(task: WorkflowTask) -> WorkflowRunResult:
    return WorkflowSimulation(task).run()
