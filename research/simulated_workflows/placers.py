"""How simulated runs' steps are placed by the live scheduler's policies, and predicted.

By the live predictor, or by plain frequencies as Zhang et al. 2025, section 5.2, print them: their
key (a, T_k) reads as the last step, the text ("given a sequence of observed tasks") as all steps so
far, and both are here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Final, Protocol

from research.simulated_workflows.applications import GENERATORS
from research.simulated_workflows.cluster import COSTS, PlacedModels, SimulatedCluster
from research.simulated_workflows.constants import LINKS
from research.simulated_workflows.devices import SimulatedRun, SimulatedStep
from workflows.plan.costs import scheduling_problem
from workflows.plan.problem import (
    Placement,
    Schedule,
    SchedulingProblem,
    Step,
    candidate_devices,
    devices_by_name,
    greedy,
    place_in_call_order,
)
from workflows.plan.speculative import (
    FEW_STATES,
    MAX_STATES,
    MergedSteps,
    is_outdated,
    place_sharing_batches,
    speculative,
)
from workflows.predict import (
    END,
    Context,
    InputPositions,
    LongestContext,
    PredictedStep,
    StepCounts,
    predicted_steps,
    shares,
)


class NextStepPredictor(Protocol):
    """Learns from the runs of one workflow. Times in seconds of the caller's clock."""

    def probabilities(
        self, steps: Sequence[str], features: Collection[str], now_s: float
    ) -> dict[str, float]:
        """Of each model that may follow `steps`, and END; empty where nothing is known."""
        ...

    def observe(
        self, steps: Sequence[str], following: str, features: Collection[str], now_s: float
    ) -> None:
        """Count that `following`, a model or END, came after `steps`."""
        ...


class MarkovModel:
    """Frequencies by one context made of the steps so far."""

    def __init__(self, context: Callable[[Sequence[str]], Context]) -> None:
        self._context = context
        self._counts = StepCounts(half_life_s=inf)

    def probabilities(
        self, steps: Sequence[str], features: Collection[str], now_s: float
    ) -> dict[str, float]:
        """Of what follows `steps`; empty for a context never seen. Features count nothing."""
        del features
        return shares(self._counts.after(self._context(steps), now_s))

    def observe(
        self, steps: Sequence[str], following: str, features: Collection[str], now_s: float
    ) -> None:
        """Count a step, or END, that followed."""
        del features
        self._counts.add(self._context(steps), following, now_s)


def markov_last() -> MarkovModel:
    return MarkovModel(lambda steps: tuple(steps[-1:]))


def markov_prefix() -> MarkovModel:
    return MarkovModel(tuple)


PREDICTORS: Final[Mapping[str, Callable[[], NextStepPredictor]]] = {
    "longest-context": LongestContext,
    "markov-last": markov_last,
    "markov-prefix": markov_prefix,
}


class Placer(Protocol):
    """Says where steps run. Steps with inputs and a device are sent by the simulation."""

    def called(self, run: SimulatedRun, begun: int) -> None:
        """The run has called its steps from position `begun` on."""
        ...

    def ready(self, run: SimulatedRun, step: SimulatedStep) -> bool:
        """The step's inputs are computed: put it on a device; False: it waits for one."""
        ...

    def ended(self, run: SimulatedRun) -> None: ...


def round_robin(problem: SchedulingProblem, turn: int = 0) -> Schedule:
    """Place each step on the next device in turn, from the one at position `turn` by name on.

    Zhang et al. 2025, section 8.3, "RoundRobin". Devices that can not run a step are passed over.
    Raises SchedulingProblemError where none can.
    """
    positions = {device: position for position, device in enumerate(devices_by_name(problem))}

    def next_in_turn(options: Sequence[Placement]) -> Placement:
        nonlocal turn
        chosen = min(options, key=lambda at: (positions[at.device] - turn) % len(positions))
        turn = positions[chosen.device] + 1
        return chosen

    return place_in_call_order(problem, next_in_turn)


class LonePlacer:
    """Each step by itself when its inputs are there: greedy, or on the next device in turn."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        fixed: PlacedModels | None = None,
        *,
        is_in_turn: bool = False,
    ) -> None:
        self._cluster = cluster
        self._is_in_turn = is_in_turn
        self._fixed = fixed
        self._turn = 0

    def called(self, run: SimulatedRun, begun: int) -> None:
        pass

    def ended(self, run: SimulatedRun) -> None:
        pass

    def ready(self, run: SimulatedRun, step: SimulatedStep) -> bool:
        inputs = run.inputs_of(step)
        steps = [Step(each.model) for each in inputs]
        steps.append(Step(step.model, tuple(range(len(inputs)))))
        placed = {number: Placement(each.device, 0.0, 0.0) for number, each in enumerate(inputs)}
        devices: Sequence[int] = range(len(self._cluster.devices))
        allowed = [devices] * len(inputs)
        if self._fixed is not None:
            devices = [at for at in devices if step.model in self._fixed[at]] or devices
        problem = scheduling_problem(
            steps,
            self._cluster.views([step.model]),
            COSTS,
            LINKS,
            placed=placed,
            allowed=[*allowed, devices],
        )
        schedule = round_robin(problem, self._turn) if self._is_in_turn else greedy(problem)
        device = schedule.placements[-1].device
        self._turn = (device + 1) % len(problem.devices)
        self._cluster.assign(step, device)
        return True


@dataclass(slots=True)
class Schedulers:
    """The processes that plan, each one plan at a time."""

    seconds: float = 0.0
    """Time of one plan; 0: plans take no time."""
    free_s: list[float] = field(default_factory=lambda: [0.0])
    """By scheduler, when it is done."""

    def planned_s(self, scheduler: int, now_s: float) -> float:
        """When a plan that a scheduler is asked for now is made."""
        self.free_s[scheduler] = max(now_s, self.free_s[scheduler]) + self.seconds
        return self.free_s[scheduler]


class SpeculativePlacer:
    """All known and predicted steps of a run together, with loads ahead."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        predictor: str,
        *,
        send: Callable[[SimulatedRun], None],
        schedulers: Schedulers,
        is_filtered: bool = False,
        is_always_loading: bool = False,
    ) -> None:
        """`send` is called with runs whose steps have got devices after a plan's time."""
        self._cluster = cluster
        self._send = send
        self._schedulers = schedulers
        self._is_filtered = is_filtered
        self._is_always_loading = is_always_loading
        self._models: dict[str, NextStepPredictor] = {
            name: PREDICTORS[predictor]() for name in GENERATORS
        }
        self._positions = {name: InputPositions() for name in GENERATORS}
        self.foreseen = self.known = 0

    def called(self, run: SimulatedRun, begun: int) -> None:
        is_foreseen = begun > 0
        for step in run.steps[begun:]:
            is_foreseen &= self._observe(run, step)
        now_s = self._cluster.events.now_s
        if not is_outdated(is_foreseen, now_s - run.planned_s) or run.is_waiting_for_plan:
            return
        if self._schedulers.seconds == 0:
            self._plan(run)
            return
        run.is_waiting_for_plan = True
        planned_s = self._schedulers.planned_s(self._cluster.scheduler_of(run.number), now_s)
        self._cluster.events.at(planned_s, self._plan_late, run)

    def _plan_late(self, run: SimulatedRun) -> None:
        run.is_waiting_for_plan = False
        self._plan(run)
        self._send(run)

    def ready(self, run: SimulatedRun, step: SimulatedStep) -> bool:
        return step.device >= 0 and not run.is_waiting_for_plan

    def ended(self, run: SimulatedRun) -> None:
        request = run.request
        self._models[request.workflow].observe(
            [each.model for each in run.steps], END, request.features, self._cluster.events.now_s
        )
        self._want(run, {})

    def _observe(self, run: SimulatedRun, step: SimulatedStep) -> bool:
        """Learn of a call; whether the plan foresaw it."""
        number, request, now_s = step.number, run.request, self._cluster.events.now_s
        call = request.calls[number]
        names = [each.model for each in run.steps[:number]]
        self.known += 1
        run.ahead.pop(number, None)
        self._models[request.workflow].observe(names, call.model, request.features, now_s)
        self._positions[request.workflow].observe(names, call.model, call.inputs, now_s)
        if number < len(run.plan) and run.plan[number][:2] == (call.model, call.inputs):
            self.foreseen += 1
            self._cluster.assign(step, run.plan[number][2])
            return True
        return False

    def _plan(self, run: SimulatedRun) -> None:
        request, now_s = run.request, self._cluster.events.now_s
        run.planned_s = now_s
        steps = [Step(step.model, request.calls[step.number].inputs) for step in run.steps]
        predicted = predicted_steps(
            [step.model for step in run.steps],
            partial(
                self._models[request.workflow].probabilities, features=request.features, now_s=now_s
            ),
            self._positions[request.workflow],
            now_s,
        )
        steps += [Step(each.model, each.inputs) for each in predicted]
        schedule, devices = self._schedule(run, steps)
        run.plan = [
            (step.model, step.inputs, devices[at.device])
            for step, at in zip(steps, schedule.placements, strict=True)
        ]
        for step in run.steps:
            if step.ready_s is None:
                self._cluster.assign(step, run.plan[step.number][2])
        run.ahead = {
            number: (devices[at.device], now_s + at.start_s)
            for number, at in enumerate(schedule.placements)
            if number >= len(run.steps)
        }
        self._load_ahead(run, predicted)

    def _schedule(self, run: SimulatedRun, steps: Sequence[Step]) -> tuple[Schedule, list[int]]:
        """A schedule, and the devices that its placements mean."""
        cluster = self._cluster
        models = {step.model for step in steps}
        devices = list(range(len(cluster.devices)))
        queues = cluster.queues(run, devices)
        sent = {
            step.number: (step.device, self._ends_in_s(step) if step.end_s is None else 0.0)
            for step in run.steps
            if step.ready_s is not None
        }
        allowed = None
        if self._is_filtered:
            loaded = [cluster.devices[device].loaded for device in devices]
            candidates = candidate_devices(
                steps,
                free_s=[queue.free_s for queue in queues],
                holders={
                    model: [at for at, held in enumerate(loaded) if model in held]
                    for model in models
                },
                outputs_at={devices.index(device) for device, _ in sent.values()},
            )
            used = sorted({at for each in candidates for at in each})
            devices, queues = [devices[at] for at in used], [queues[at] for at in used]
            position = {at: number for number, at in enumerate(used)}
            allowed = [[position[at] for at in each] for each in candidates]
        positions = {device: at for at, device in enumerate(devices)}
        placed = {
            number: Placement(positions[device], 0.0, end_s)
            for number, (device, end_s) in sent.items()
        }
        views = cluster.views(models, only=devices, queues=queues)

        def place(way: MergedSteps, fixed: Mapping[int, Placement]) -> Schedule:
            problem = scheduling_problem(
                way.steps,
                views,
                COSTS,
                LINKS,
                placed=fixed,
                allowed=None if allowed is None else [allowed[at] for at in way.calls_of()],
            )
            return speculative(problem, FEW_STATES if self._is_filtered else MAX_STATES)

        return place_sharing_batches(steps, placed, _max_batch, place), devices

    def _ends_in_s(self, step: SimulatedStep) -> float:
        device = self._cluster.devices[step.device]
        left_s = device.batch_end_s - device.now_s
        if step in device.running:
            return left_s
        wait_s = max(left_s, 0.0) if device.running else 0.0
        return max(wait_s, device.load_s(step.model)) + COSTS[step.model].batch_s(1)

    def _load_ahead(self, run: SimulatedRun, predicted: Sequence[PredictedStep]) -> None:
        called = len(run.steps)
        self._want(
            run,
            {
                (device, model): None
                for number, (model, _, device) in enumerate(run.plan)
                if number >= called
                and self._is_worth_loading(device, model, predicted[number - called].probability)
            },
        )

    def _is_worth_loading(self, index: int, model: str, probability: float) -> bool:
        """Whether a load saves more, as expected, than its evictions cost."""
        device = self._cluster.devices[index]
        expected_s = probability * device.load_s(model)
        return self._is_always_loading or expected_s > device.harm_s(model)

    def _want(self, run: SimulatedRun, ahead: dict[tuple[int, str], None]) -> None:
        """Load these models ahead, and withdraw what this run wanted before."""
        for device in self._cluster.devices:
            for model in list(device.wanted):
                if (device.index, model) not in ahead:
                    device.wanted[model].discard(run.number)
                    if not device.wanted[model]:
                        del device.wanted[model]
        for index, model in ahead:
            device = self._cluster.devices[index]
            device.wanted.setdefault(model, set()).add(run.number)
            device.poke()


def _max_batch(model: str) -> int:
    return COSTS[model].max_batch
