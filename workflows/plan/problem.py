"""The scheduling problem of one run, its schedule, and policy `greedy`. Seconds from now.

Zhang et al. 2025 (DyOrc), section 5.3; a step is their task, a device their worker.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import nsmallest
from math import inf
from typing import Final


class SchedulingProblemError(ValueError):
    """Steps that cannot be scheduled; the message names the step and the mistake."""


@dataclass(frozen=True, slots=True)
class Step:
    """One call of a model."""

    model: str
    inputs: tuple[int, ...] = ()
    """Positions of the steps whose outputs it takes, all before its own."""
    calls: int = 1
    """Number of calls that it represents, which run as one batch."""


@dataclass(frozen=True, slots=True)
class Placement:
    device: int
    """Index into the problem's devices."""
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class SchedulingProblem:
    """One run's steps, the devices that may run them, and the times there."""

    steps: Sequence[Step]
    devices: Sequence[str]
    """Names; ties go to the first by name."""
    free_s: Sequence[Sequence[float]]
    """By step and device: when the device's queue reaches the step."""
    load_s: Sequence[Sequence[float]]
    """By step and device: 0 where the model is loaded; infinite where it can not be."""
    compute_s: Sequence[Sequence[float]]
    """By step and device: from the start to the end of the batch that holds the step."""
    transfer_s: Callable[[int, int, int, int], float]
    """(producing step, consuming step, from device, to device); not called within one device."""
    alike: Sequence[int] = ()
    """By step, a number that interchangeable steps share: same inputs, dependents and times. Such
    steps are placed in the order of their calls. Empty: none are interchangeable."""
    placed: Mapping[int, Placement] = field(default_factory=dict)
    """Steps that have run or are running: they stay where they are."""


@dataclass(frozen=True, slots=True)
class Schedule:
    placements: tuple[Placement, ...]
    """By step."""
    order: tuple[int, ...]
    """Steps in the order in which they are put on their devices, without those already placed."""
    exact: bool = False
    """True if a complete search proved that no schedule ends earlier."""

    @property
    def finish_s(self) -> float:
        """End of the last step; 0 without steps."""
        return max((placement.end_s for placement in self.placements), default=0.0)


def dependents(steps: Sequence[Step]) -> list[list[int]]:
    """By step, the steps that take its output. Inputs come before the steps that take them.

    Raises SchedulingProblemError for an input that does not.
    """
    found: list[list[int]] = [[] for _ in steps]
    for index, step in enumerate(steps):
        for source in step.inputs:
            if not 0 <= source < index:
                raise SchedulingProblemError(
                    f"step {index} ({step.model}) takes the output of step {source}, which does "
                    "not come before it"
                )
            if index not in found[source]:
                found[source].append(index)
    return found


def kinds_of(steps: Sequence[Step]) -> list[int]:
    """By step, a number; steps of one model with the same inputs and dependents share it."""
    after = [tuple(followers) for followers in dependents(steps)]
    kinds: dict[tuple[str, int, tuple[int, ...], tuple[int, ...]], int] = {}
    return [
        kinds.setdefault((step.model, step.calls, step.inputs, followers), len(kinds))
        for step, followers in zip(steps, after, strict=True)
    ]


def end_of_step(
    problem: SchedulingProblem,
    step: int,
    device: int,
    *,
    ready_s: float,
    busy_until_s: float,
    is_loaded: bool,
) -> tuple[float, float]:
    """Start and end of a step on a device (equation 1); infinite where it can not run.

    `busy_until_s`: end of this run's earlier steps on the device; `is_loaded`: they loaded the
    model. Loads run in parallel to execution (section 5.4).
    """
    free_s = max(problem.free_s[step][device], busy_until_s)
    load_s = 0.0 if is_loaded else problem.load_s[step][device]
    start_s = max(free_s, load_s, ready_s)
    end_s = start_s + problem.compute_s[step][device]
    return (start_s, end_s) if end_s < inf else (inf, inf)


MAX_PER_REASON: Final = 4
"""Limit of candidates per reason if a run has several steps of one model."""
PER_REASON: Final = 3
"""Candidates per reason, see `candidate_devices`. On random clusters of 8 devices, plans of chains
of 6 steps end 5 % later than the best with 1, 0.9 % with 2, equally with 3."""


def candidate_devices(
    steps: Sequence[Step],
    *,
    free_s: Sequence[float],
    holders: Mapping[str, Collection[int]],
    outputs_at: Collection[int] = (),
) -> list[list[int]]:
    """By step, the indices of the devices to consider.

    These are, by shortest queue: holders of the step's model, holders of several of the run's
    models, and any devices; and the devices of existing outputs. `free_s`: end of the queue by
    device; `holders`: devices where it is loaded by model.
    """
    calls = Counter(step.model for step in steps)
    limit = min(max(PER_REASON, *calls.values()), MAX_PER_REASON) if calls else PER_REASON

    def emptiest(devices: Collection[int]) -> list[int]:
        return nsmallest(limit, devices, key=lambda device: (free_s[device], device))

    models = set(calls)
    held: dict[int, int] = {}
    for model in sorted(models):
        for device in holders.get(model, ()):
            held[device] = held.get(device, 0) + 1
    several = nsmallest(
        PER_REASON,
        [device for device, count in held.items() if count > 1],
        key=lambda device: (-held[device], free_s[device], device),
    )
    shared = {*several, *outputs_at, *emptiest(range(len(free_s)))}
    by_model = {model: sorted(shared.union(emptiest(holders.get(model, ())))) for model in models}
    return [by_model[step.model] for step in steps]


def place_in_call_order(
    problem: SchedulingProblem, choose: Callable[[Sequence[Placement]], Placement]
) -> Schedule:
    """Let `choose` pick among the devices that can run each step, given by device name.

    Raises SchedulingProblemError for a step that no device can run.
    """
    placements = dict(problem.placed)
    busy_until_s: dict[int, float] = {}
    loaded: set[tuple[int, str]] = set()
    by_name = devices_by_name(problem)
    dependents(problem.steps)  # refuses inputs that come later
    order = [step for step in range(len(problem.steps)) if step not in problem.placed]
    for step in order:
        model = problem.steps[step].model
        options = []
        for device in by_name:
            start_s, end_s = end_of_step(
                problem,
                step,
                device,
                ready_s=_ready_s(problem, step, device, placements),
                busy_until_s=busy_until_s.get(device, 0.0),
                is_loaded=(device, model) in loaded,
            )
            if end_s < inf:
                options.append(Placement(device, start_s, end_s))
        if not options:
            raise SchedulingProblemError(f"no device can run step {step} ({model})")
        chosen = placements[step] = choose(options)
        busy_until_s[chosen.device] = chosen.end_s
        loaded.add((chosen.device, model))
    return Schedule(tuple(placements[step] for step in range(len(problem.steps))), tuple(order))


def devices_by_name(problem: SchedulingProblem) -> list[int]:
    return sorted(range(len(problem.devices)), key=problem.devices.__getitem__)


def _ready_s(
    problem: SchedulingProblem, step: int, device: int, placements: Mapping[int, Placement]
) -> float:
    """When the outputs of all inputs are on the device (equation 2)."""
    latest_s = 0.0
    for source in problem.steps[step].inputs:
        at = placements[source]
        moved_s = at.end_s
        if at.device != device:
            moved_s += problem.transfer_s(source, step, at.device, device)
        latest_s = max(latest_s, moved_s)
    return latest_s


def greedy(problem: SchedulingProblem) -> Schedule:
    """Place the steps as called; ties go to the first device by name.

    Raises SchedulingProblemError for a step that no device can run.
    """
    return place_in_call_order(
        problem, lambda options: min(options, key=lambda option: option.end_s)
    )


class SchedulingPolicy(StrEnum):
    """Who places a run's steps, and when."""

    SPECULATIVE = "speculative"
    """All steps of the run together, those that are predicted included."""
    GREEDY = "greedy"
    """Each step when its inputs are there, on the pod where it ends earliest."""
    AUTO = "auto"
    """Each step is an ordinary request, which the gateway routes."""
