"""A window as arrays, which every selection policy reads, and what a plan of its requests gives.

Requests are sorted by arrival and id, the rest by name, so that the order of the input does not
matter. A step is a request with one of its choices, a variant at a worker: the index of both in
arrays [requests, choices]. A plan has a step for each request, in the order in which workers begin
them. Each takes its variant's latency there, and the swap time where the variant before differs; a
short circuit takes no time and no place (Wolfrath et al. 2025, eq. 1 to 3). Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from registry.domain.application import Penalty
from variants.planning.window import (
    SHORT_CIRCUIT,
    Assignment,
    SelectionOptions,
    SelectionPlan,
    Window,
    WindowApplication,
    WindowRequest,
    Worker,
    accuracy_by_class_mix,
    class_probabilities,
    penalty,
    priority,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


_FORBIDDEN: Final = -1.0
"""In place of the accuracy of a choice that does not serve the request."""
_NO_CHOICE: Final = (-2.0, 0.0, 0.0, 0.0, 0.0)
"""Where an application has fewer choices than others."""


@dataclass(frozen=True, slots=True, eq=False)
class PlanningProblem:
    """The last variant is the short circuit, the last worker the one that answers it at once."""

    options: SelectionOptions
    requests: tuple[WindowRequest, ...]
    application: Ints
    """[requests]."""
    variants: tuple[str, ...]
    workers: tuple[str, ...]
    variant: Ints
    """[requests, choices], in the order that breaks ties; -2: no choice."""
    worker: Ints
    latency_s: Floats
    swap_s: Floats
    beside_s: Floats
    accuracy: Floats
    deadline_s: Floats
    """[requests, choices], from arrival."""
    penalty_kind: Ints
    """[requests, choices], index into `penalties`."""
    penalties: tuple[Penalty, ...]
    """The penalties that occur."""
    free_s: Floats
    """[workers], from the time of planning."""
    age_s: Floats
    """[requests], from arrival to the time of planning."""
    priority: Floats
    """[requests]."""
    likely: Ints
    """[requests]: the class that is likelier than all others together; -1: none, or unknown."""

    @property
    def short_circuit(self) -> int:
        return len(self.variants) - 1

    @property
    def has_one_worker(self) -> bool:
        """But for the one that answers short circuits."""
        return len(self.workers) == 2


def planning_problem(window: Window, options: SelectionOptions) -> PlanningProblem:
    """Raises ValueError for an application that no worker can serve, and for times that are NaN."""
    requests = tuple(sorted(window.requests, key=lambda each: (each.arrival_s, each.id)))
    used = {each.application for each in requests}
    applications = sorted(
        (each for each in window.applications if each.name in used), key=lambda each: each.name
    )
    if unknown := used - {each.name for each in applications}:
        raise ValueError(f"the window has no application {min(unknown)!r}")
    workers = sorted(window.workers, key=lambda each: each.name)
    names = sorted({each.name for app in applications for each in app.variants})
    column = {name: at for at, name in enumerate(names)}
    index = {app.name: at for at, app in enumerate(applications)}
    application = np.array([index[each.application] for each in requests], np.int64)
    choices = [_choices(app, workers, column, options) for app in applications]
    most = max(map(len, choices))
    padded = [[*each, *[_NO_CHOICE] * (most - len(each))] for each in choices]
    table = np.array(padded)[application]
    if np.isnan(table).any():
        raise ValueError("a worker's time is no number")
    variant, worker = (table[:, :, at].astype(np.int64) for at in (0, 1))
    age = np.array([window.now_s - each.arrival_s for each in requests])
    latency, swap = (np.ascontiguousarray(table[:, :, at]) for at in (2, 3))
    beside = table[:, :, 4] + age[:, None]
    deadlines = np.array([each.deadline_s for each in requests])
    accuracy, priorities = np.full(variant.shape, _FORBIDDEN), np.zeros(len(requests))
    likely = np.full(len(requests), -1)
    for at, app in enumerate(applications):
        members = np.flatnonzero(application == at)
        asked = [requests[each] for each in members.tolist()]
        estimates, likely[members] = _estimates(app, asked, options)
        priorities[members] = priority(estimates, deadlines[members] - age[members])
        by_variant = np.full((len(members), len(column) + 1), _FORBIDDEN)
        by_variant[:, [column[each.name] for each in app.variants]] = estimates
        if app.short_circuit_accuracy is not None:
            answerable = [each.may_short_circuit for each in asked]
            by_variant[:, -1] = np.where(answerable, app.short_circuit_accuracy, _FORBIDDEN)
        to = variant[members[0], : len(choices[at])]
        accuracy[members, : len(to)] = by_variant[:, to]
    kinds = sorted({app.penalty for app in applications})
    kind = np.array([kinds.index(applications[at].penalty) for at in application], np.int64)
    return PlanningProblem(
        options,
        requests,
        application,
        (*names, SHORT_CIRCUIT),
        (*(each.name for each in workers), ""),
        variant,
        worker,
        latency,
        swap,
        beside,
        accuracy,
        deadlines[:, None].repeat(most, axis=1),
        kind[:, None].repeat(most, axis=1),
        tuple(kinds),
        np.array([*(max(each.free_s - window.now_s, 0.0) for each in workers), 0.0]),
        age,
        priorities,
        likely,
    )


def _choices(
    app: WindowApplication,
    workers: Sequence[Worker],
    column: dict[str, int],
    options: SelectionOptions,
) -> list[tuple[float, ...]]:
    """The variants and workers that an application may choose, with latency, swap and around."""
    found: list[tuple[float, ...]] = [
        (
            column[name],
            at,
            worker.latency_s[name],
            worker.swap_s.get(name, 0.0) + worker.setup_s.get(name, 0.0),
            worker.around_s.get(name, 0.0),
        )
        for name in sorted(each.name for each in app.variants)
        for at, worker in enumerate(workers)
        if name in worker.latency_s
    ]
    if options.short_circuit and app.short_circuit_accuracy is not None:
        found.append((len(column), len(workers), 0.0, 0.0, 0.0))
    if not found:
        raise ValueError(f"no worker can run a variant of application {app.name!r}")
    return found


def _estimates(
    app: WindowApplication, requests: Sequence[WindowRequest], options: SelectionOptions
) -> tuple[Floats, Ints]:
    """[requests, variants] accuracies, and the class that splits each request off; -1: none."""
    found = np.array([[each.accuracy for each in app.variants]]).repeat(len(requests), axis=0)
    likely = np.full(len(requests), -1)
    seen = [at for at, each in enumerate(requests) if each.evidence is not None]
    if seen and (options.is_data_aware or options.splits_groups):
        evidence = np.array([requests[at].evidence for at in seen], np.float64)
        theta = class_probabilities(evidence)
        if options.is_data_aware:
            found[seen] = accuracy_by_class_mix([each.recalls for each in app.variants], theta)
        likely[seen] = np.where(theta.max(axis=1) > 0.5, theta.argmax(axis=1), -1)  # section 5.3.2
    return found, likely


def penalty_by_kind(
    kinds: tuple[Penalty, ...], kind: Ints, deadline_s: Floats, completion_s: Floats
) -> Floats:
    """The penalties of requests with different penalties; `kind` is an index into `kinds`."""
    found = penalty(kinds[0], deadline_s, completion_s)
    for at, each in enumerate(kinds[1:], 1):
        found = np.where(kind == at, penalty(each, deadline_s, completion_s), found)
    return found


def evaluated(problem: PlanningProblem, plans: Ints) -> tuple[Ints, Floats, Floats]:
    """Plans [plans, requests] with the steps of each worker together, in their order.

    With each step's completion from the arrival of its request, and its expected utility.
    """
    workers = problem.worker.take(plans)
    is_mixed = workers[:, 1:] < workers[:, :-1]
    if is_mixed.any():
        mixed = np.flatnonzero(is_mixed.any(axis=1))
        order = np.argsort(workers[mixed], axis=1, kind="stable")
        plans = plans.copy()
        plans[mixed] = np.take_along_axis(plans[mixed], order, axis=1)
        workers = problem.worker.take(plans)
    ends_s = _completions(problem, plans, workers)
    late = penalty_by_kind(
        problem.penalties, problem.penalty_kind.take(plans), problem.deadline_s.take(plans), ends_s
    )
    return plans, ends_s, np.asarray((1.0 - late) * problem.accuracy.take(plans))


def _completions(problem: PlanningProblem, plans: Ints, workers: Ints) -> Floats:
    """Of plans that are sorted by worker."""
    variants = problem.variant.take(plans)
    is_first = np.ones(plans.shape, bool)
    np.not_equal(workers[:, 1:], workers[:, :-1], out=is_first[:, 1:])
    is_same = ~is_first
    is_same[:, 1:] &= variants[:, 1:] == variants[:, :-1]
    takes = problem.latency_s.take(plans) + np.where(is_same, 0.0, problem.swap_s.take(plans))
    ends = np.add.accumulate(takes, axis=1)
    # What other workers do before this one in the row does not delay it.
    begins = np.where(is_first, ends - takes, 0.0)
    ends -= np.maximum.accumulate(begins, axis=1)
    ends += problem.beside_s.take(plans)
    ends += problem.free_s.take(workers)
    return np.asarray(ends)


def mean_utility(problem: PlanningProblem, plan: ArrayLike) -> float:
    """Expected, over the requests of a plan."""
    return float(evaluated(problem, np.asarray(plan)[None])[2].mean())


def plan_of(problem: PlanningProblem, plan: ArrayLike) -> SelectionPlan:
    """The plan that consists of these steps, in their order on each worker."""
    plans, ends_s, utilities = evaluated(problem, np.asarray(plan, np.int64)[None])
    columns = (
        plans // problem.variant.shape[1],
        problem.variant.take(plans),
        problem.worker.take(plans),
        ends_s,
        problem.accuracy.take(plans),
        utilities,
    )
    return SelectionPlan(
        tuple(
            Assignment(
                problem.requests[request].id,
                problem.variants[variant],
                problem.workers[worker],
                *expected,
            )
            for request, variant, worker, *expected in zip(
                *(each[0].tolist() for each in columns), strict=True
            )
        )
    )
