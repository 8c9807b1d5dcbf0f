"""A plan as a run's document shows it, for explanations. Pure."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from workflows.scheduling.problem import SchedulingProblem
    from workflows.service.plan import Plan

MAX_CANDIDATES: Final = 6
"""Devices shown of each step: those where it would end earliest by itself."""


def plan_document(
    plan: Plan, problem: SchedulingProblem, *, begun_s: float, known: int, exact: bool
) -> Mapping[str, object]:
    """With times in seconds since the run began at `begun_s`; `known`: steps called so far."""
    return {
        "at_s": round(plan.made_s - begun_s, 6),
        "known": known,
        "exact": exact,
        "steps": [
            {
                "model": step.model, "inputs": step.inputs, "pod": step.pod,
                "start_s": round(step.start_s - begun_s, 6),
                "end_s": round(step.end_s - begun_s, 6),
                "probability": round(step.probability, 4),
                "candidates": _candidates(problem, number) if number >= known else [],
            }
            for number, step in enumerate(plan.steps)
        ],
    }  # fmt: skip


def _candidates(problem: SchedulingProblem, number: int) -> Sequence[Mapping[str, object]]:
    """Waiting, loading and computing on each device, in seconds from the plan."""
    costs = zip(
        problem.devices, problem.free_s[number], problem.load_s[number],
        problem.compute_s[number], strict=True,
    )  # fmt: skip
    found = [
        (max(free_s, load_s) + compute_s, name, free_s, load_s, compute_s)
        for name, free_s, load_s, compute_s in costs
        if max(free_s, load_s) + compute_s < inf
    ]
    return [
        {"pod": name, "free_s": round(free_s, 6), "load_s": round(load_s, 6),
         "compute_s": round(compute_s, 6)}
        for _, name, free_s, load_s, compute_s in sorted(found)[:MAX_CANDIDATES]
    ]  # fmt: skip
