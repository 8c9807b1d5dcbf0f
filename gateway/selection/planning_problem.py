"""A window as arrays, which every selection policy reads, and the way back to a plan.

Requests are sorted by arrival and id, the rest by name, so that the order of the input does not
matter. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gateway.selection.utility import accuracy_by_class_mix, class_probabilities, penalty, priority
from gateway.selection.window import (
    SHORT_CIRCUIT,
    SelectionOptions,
    Window,
    WindowApplication,
    WindowRequest,
    Worker,
)
from registry.domain.application import Penalty

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


_FORBIDDEN: Final = -1.0
"""In place of the accuracy of a choice that does not serve the request."""


class Step(NamedTuple):
    """A request with the variant and worker that serve it, as indexes into the problem."""

    request: int
    variant: int
    worker: int


@dataclass(frozen=True, slots=True)
class Choices:
    """The (variant, worker) pairs of an application, in the order that breaks ties."""

    variants: Ints
    workers: Ints
    latency_s: Floats
    swap_s: Floats
    around_s: Floats


class StepValues(NamedTuple):
    """A row of the step table, as plain numbers."""

    variant: int
    worker: int
    latency_s: float
    swap_s: float
    around_s: float
    accuracy: float


@dataclass(frozen=True, slots=True, eq=False)
class StepTable:
    """Every possible step, a row each: a request with each choice of its application."""

    first: Ints
    """[requests], row of the request's first choice; the others follow."""
    request: Ints
    variant: Ints
    worker: Ints
    latency_s: Floats
    swap_s: Floats
    around_s: Floats
    beside_s: Floats
    """What is added to the end of its turn, for the completion from arrival."""
    accuracy: Floats
    deadline_s: Floats
    penalty_kind: Ints
    by_request: tuple[tuple[StepValues, ...], ...]
    """The same, for policies that place one request after another."""


@dataclass(frozen=True, slots=True, eq=False)
class PlanningProblem:
    """The last variant is the short circuit, the last worker the one that answers it at once."""

    options: SelectionOptions
    requests: tuple[WindowRequest, ...]
    application_of: tuple[int, ...]
    """Index into `choices` of each request."""
    choices: tuple[Choices, ...]
    variants: tuple[str, ...]
    workers: tuple[str, ...]
    accuracy: Floats
    """[requests, variants]; zero for variants of other applications."""
    free_s: Floats
    """[workers], from the time of planning."""
    loaded: Ints
    """[workers]; -1: nothing."""
    age_s: Floats
    """[requests], from arrival to the time of planning."""
    deadline_s: Floats
    """[requests], from arrival."""
    penalties: tuple[Penalty, ...]
    """The penalties that occur."""
    penalty_kind: Ints
    """[requests], index into `penalties`."""
    priority: Floats
    """[requests]."""
    may_split: tuple[bool, ...]
    """By application: whether its requests may be grouped by likely class."""
    theta: tuple[Floats | None, ...]
    """Class probabilities of each request; None without evidence."""
    steps: StepTable

    @property
    def short_circuit(self) -> int:
        return len(self.variants) - 1

    @property
    def has_one_worker(self) -> bool:
        return len(self.workers) == 2

    def penalty_of_group(self, group: Ints, completion_s: Floats) -> Floats:
        """The penalties of requests of one application."""
        kind = self.penalties[self.penalty_kind[group[0]]]
        return penalty(kind, self.deadline_s[group], completion_s)


def penalty_by_kind(
    kinds: tuple[Penalty, ...], kind: Ints, deadline_s: Floats, completion_s: Floats
) -> Floats:
    """The penalties of requests with different penalties; `kind` is an index into `kinds`."""
    if len(kinds) == 1:
        return penalty(kinds[0], deadline_s, completion_s)
    found = np.zeros(())
    for at, each in enumerate(kinds):
        found = np.where(kind == at, penalty(each, deadline_s, completion_s), found)
    return found


def _step_table(
    application_of: Sequence[int], choices: Sequence[Choices], accuracy: Floats, age_s: Floats,
    deadline_s: Floats, penalty_kind: Ints,
) -> StepTable:  # fmt: skip
    of_request = [choices[at] for at in application_of]
    counts = np.array([len(each.variants) for each in of_request], np.int64)
    first = np.cumsum(counts) - counts
    request = np.repeat(np.arange(len(counts)), counts)
    variant = np.concatenate([each.variants for each in of_request])
    around_s = np.concatenate([each.around_s for each in of_request])
    columns = (
        variant,
        np.concatenate([each.workers for each in of_request]),
        np.concatenate([each.latency_s for each in of_request]),
        np.concatenate([each.swap_s for each in of_request]),
        around_s,
        accuracy[request, variant],
    )
    rows = tuple(map(StepValues, *(column.tolist() for column in columns)))
    ends = [*first.tolist()[1:], len(rows)]
    _, worker, latency_s, swap_s, _, value = columns
    return StepTable(
        first, request, variant, worker, latency_s, swap_s, around_s,
        age_s[request] + around_s, value, deadline_s[request], penalty_kind[request],
        tuple(rows[begin:end] for begin, end in zip(first.tolist(), ends, strict=True)),
    )  # fmt: skip


def planning_problem(window: Window, options: SelectionOptions) -> PlanningProblem:
    """Raises ValueError for an application that no worker can serve."""
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
    application_of = tuple(index[each.application] for each in requests)
    accuracy = np.zeros((len(requests), len(names) + 1))
    priorities = np.zeros(len(requests))
    theta: list[Floats | None] = [None] * len(requests)
    age = np.array([window.now_s - each.arrival_s for each in requests])
    deadlines = np.array([each.deadline_s for each in requests])
    members_of: list[list[int]] = [[] for _ in applications]
    for request, owner in enumerate(application_of):
        members_of[owner].append(request)
    for app, members in zip(applications, members_of, strict=True):
        scale = app.accuracy_scale
        columns = [column[each.name] for each in app.variants]
        estimates = _estimates(app, requests, members, theta, options) * scale
        accuracy[np.array(members)[:, None], columns] = estimates
        if app.short_circuit_accuracy is not None:
            answerable = np.array([requests[each].may_short_circuit for each in members])
            accuracy[members, -1] = np.where(
                answerable, app.short_circuit_accuracy * scale, _FORBIDDEN
            )
        priorities[members] = priority(estimates, deadlines[members] - age[members])
    kinds = sorted({app.penalty for app in applications})
    kind_of = np.array([kinds.index(applications[at].penalty) for at in application_of], np.int64)
    latency, swap, around = (
        _by_worker([each.latency_s for each in workers], names, np.inf),
        _by_worker([each.swap_s for each in workers], names, 0.0)
        + _by_worker([each.setup_s for each in workers], names, 0.0),
        _by_worker([each.around_s for each in workers], names, 0.0),
    )
    pairs = [_pairs(app, workers, column, options) for app in applications]
    choices = [
        Choices(to, at, latency[at, to], swap[at, to], around[at, to])
        for to, at in (np.array(each).T for each in pairs)
    ]
    return PlanningProblem(
        options,
        requests,
        application_of,
        tuple(choices),
        (*names, SHORT_CIRCUIT),
        (*(each.name for each in workers), ""),
        accuracy,
        np.array([*(max(each.free_s - window.now_s, 0.0) for each in workers), 0.0]),
        np.array([*(column.get(each.loaded or "", -1) for each in workers), -1]),
        age,
        deadlines,
        tuple(kinds),
        kind_of,
        priorities,
        tuple(app.splits_groups for app in applications),
        tuple(theta),
        _step_table(application_of, choices, accuracy, age, deadlines, kind_of),
    )


def _estimates(
    app: WindowApplication,
    requests: tuple[WindowRequest, ...],
    members: list[int],
    theta: list[Floats | None],
    options: SelectionOptions,
) -> Floats:
    """Accuracy of each variant for each member; sets theta of those with evidence."""
    found = np.array([[each.accuracy for each in app.variants]]).repeat(len(members), axis=0)
    seen = [row for row, member in enumerate(members) if requests[member].evidence is not None]
    if not seen or not (options.is_data_aware or options.splits_groups):
        return found
    evidence = np.array([requests[members[row]].evidence for row in seen], np.float64)
    probabilities = class_probabilities(app.prior_weights, evidence)
    for row, each in zip(seen, probabilities, strict=True):
        theta[members[row]] = each
    if options.is_data_aware:
        found[seen] = accuracy_by_class_mix([each.recalls for each in app.variants], probabilities)
    return found


def _pairs(
    app: WindowApplication,
    workers: list[Worker],
    column: dict[str, int],
    options: SelectionOptions,
) -> list[tuple[int, int]]:
    """The variants and workers that an application may choose."""
    pairs = [
        (column[name], at)
        for name in sorted(each.name for each in app.variants)
        for at, worker in enumerate(workers)
        if name in worker.latency_s
    ]
    if options.short_circuit and app.short_circuit_accuracy is not None:
        pairs.append((len(column), len(workers)))
    if not pairs:
        raise ValueError(f"no worker can run a variant of application {app.name!r}")
    return pairs


def _by_worker(times: list[Mapping[str, float]], names: list[str], missing: float) -> Floats:
    """[workers, variants]; zeros for the short circuit and the worker that answers it."""
    rows = [[*(each.get(name, missing) for name in names), 0.0] for each in times]
    return np.array([*rows, [0.0] * (len(names) + 1)])
