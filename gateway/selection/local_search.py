"""Improves plans by single moves and reassignments until none helps or the budget is spent.

A plan is an array [requests, 3] of steps sorted by worker. All neighbours of a plan are evaluated
at once; the best one is taken if it is better. Small neighbourhoods come first. The budget counts
evaluated plans, so that the result does not depend on the machine. Pure.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from gateway.selection.planning_problem import Step
from gateway.selection.timeline import completions, utilities

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.selection.planning_problem import Floats, Ints, PlanningProblem

_GAIN: Final = 1e-9
"""Smaller gains are rounding."""
_MAX_DISTANCE: Final = 24
"""Places that a move may cross; bounds the neighbours of a long plan."""


def improve(problem: PlanningProblem, starts: Sequence[Sequence[Step]]) -> list[Step]:
    """The best plan found from any of the starts, each with an equal share of the budget."""
    share = problem.options.max_evaluations // len(starts)
    found = [_descend(problem, np.array(start), share) for start in starts]
    best, _ = max(found, key=lambda each: each[1])  # the first of equally good ones
    return [Step(*step) for step in best.tolist()]


def _descend(problem: PlanningProblem, plan: Ints, budget: int) -> tuple[Ints, float]:
    plan = plan[np.argsort(plan[:, 2], kind="stable")]
    value = float(_values(problem, plan[None])[0])
    neighbourhoods = (_reassigned_runs, _reassigned_requests, _moved_runs, _moved_requests)
    at = 0
    while at < len(neighbourhoods) and budget > 0:
        plans = neighbourhoods[at](problem, plan)[:budget]
        at += 1
        if not len(plans):
            continue
        budget -= len(plans)
        plans = _sorted_by_worker(problem, plans)
        values = _values(problem, plans)
        best = int(np.argmax(values))
        if values[best] > value + _GAIN:
            plan, value, at = plans[best], float(values[best]), 0
    return plan, value


def _values(problem: PlanningProblem, plans: Ints) -> Floats:
    requests, variants, workers = plans[:, :, 0], plans[:, :, 1], plans[:, :, 2]
    ends = completions(problem, requests, variants, workers)
    return np.asarray(utilities(problem, requests, variants, ends).sum(axis=1))


def _sorted_by_worker(problem: PlanningProblem, plans: Ints) -> Ints:
    if problem.has_one_worker and not problem.options.short_circuit:
        return plans
    order = np.argsort(plans[:, :, 2], axis=1, kind="stable")
    return np.take_along_axis(plans, order[:, :, None], axis=1)


def _runs(plan: Ints) -> list[tuple[int, int]]:
    """Beginning and end of each run of requests with one variant on one worker."""
    changes = np.flatnonzero((plan[1:, 1:] != plan[:-1, 1:]).any(axis=1)) + 1
    bounds = [0, *changes.tolist(), len(plan)]
    return list(pairwise(bounds))


def _reassigned(problem: PlanningProblem, plan: Ints, begin: int, end: int) -> Ints:
    """The requests from `begin` to `end`, all of one application, with every other choice."""
    choices = problem.choices[problem.application_of[plan[begin, 0]]]
    pairs = np.stack([choices.variants, choices.workers], axis=1)
    pairs = pairs[(pairs != plan[begin, 1:]).any(axis=1)]
    plans = np.repeat(plan[None], len(pairs), axis=0)
    plans[:, begin:end, 1:] = pairs[:, None, :]
    return plans


def _reassigned_runs(problem: PlanningProblem, plan: Ints) -> Ints:
    found = []
    for begin, end in _runs(plan):
        owners = {problem.application_of[request] for request in plan[begin:end, 0].tolist()}
        if len(owners) == 1:  # short circuits of several applications are one run
            found.append(_reassigned(problem, plan, begin, end))
    return _joined(found, plan)


def _reassigned_requests(problem: PlanningProblem, plan: Ints) -> Ints:
    return _joined([_reassigned(problem, plan, at, at + 1) for at in range(len(plan))], plan)


def _moved_runs(problem: PlanningProblem, plan: Ints) -> Ints:
    """Each run at the place of every other one, on its own worker."""
    runs = _runs(plan)
    blocks = [np.arange(begin, end) for begin, end in runs]
    orders = []
    for at in range(len(runs)):
        others = blocks[:at] + blocks[at + 1 :]
        orders += [
            np.concatenate([*others[:place], blocks[at], *others[place:]])
            for place in range(len(runs))
            if place != at
        ]
    return plan[np.array(orders)] if orders else plan[None][:0]


def _moved_requests(problem: PlanningProblem, plan: Ints) -> Ints:
    """Each request at every other place, as it is and as the request that was there."""
    count = len(plan)
    if count < 2:
        return plan[None][:0]
    orders, places = _insertions(count)
    moved = plan[orders]
    rows = np.arange(len(orders))
    there = plan[places]
    application = np.array(problem.application_of)
    alike = application[moved[rows, places, 0]] == application[there[:, 0]]
    differs = (moved[rows, places, 1:] != there[:, 1:]).any(axis=1)
    joining = moved[alike & differs]
    joining[np.arange(len(joining)), places[alike & differs], 1:] = there[alike & differs, 1:]
    parts = [joining, moved]
    if not problem.has_one_worker:
        other = moved.copy()
        other[rows, places, 2] = there[:, 2]
        runs_there = np.isfinite(
            problem.latency_s[other[rows, places, 2], other[rows, places, 1]]
        ) & (other[rows, places, 1] != problem.short_circuit)
        runs_there &= there[:, 2] != len(problem.workers) - 1
        parts.append(other[runs_there])
    return np.concatenate(parts)


@lru_cache(maxsize=128)
def _insertions(count: int) -> tuple[Ints, Ints]:
    """Orders of `count` items with one moved, and the place that it moved to."""
    orders, places = [], []
    for at in range(count):
        rest = [*range(at), *range(at + 1, count)]
        for place in range(max(0, at - _MAX_DISTANCE), min(count, at + _MAX_DISTANCE + 1)):
            if place != at:
                orders.append([*rest[:place], at, *rest[place:]])
                places.append(place)
    return np.array(orders), np.array(places)


def _joined(parts: Sequence[Ints], plan: Ints) -> Ints:
    return np.concatenate(parts) if parts else plan[None][:0]
