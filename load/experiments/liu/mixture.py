"""The three workloads of section 6.4 at once: pairs of requests, models that displace each other.

Which workload a pair is of and when it comes is drawn; so are ties of the policies.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from load.experiments.liu.scenarios import WIN_SCENARIOS
from load.experiments.liu.simulated import (
    ModelTimings,
    cluster_of,
    model_of,
    tell_times,
    times_of,
    trace_of,
)
from load.simulator.simulation import Simulation
from registry.domain.model import RoutingPolicy

LOADS: Final = (0.05, 0.2, 0.4)
"""Pairs per second: the two requests of a pair hold a slot for 2 to 12 s together, of 8 slots."""


@dataclass(frozen=True, slots=True)
class MixtureTask:
    """One run."""

    policy: str
    """A routing policy; any other text: each model's own."""
    pairs_per_s: float
    seed: int
    pairs: int
    base: ModelTimings


@dataclass(frozen=True, slots=True)
class Mixed:
    """What it came to. Seconds."""

    mean_s: float
    p99_s: float
    cold_starts: int


def play_mixture(task: MixtureTask) -> Mixed:
    """Simulate one mixture."""
    rng = random.Random(f"{task.seed}:mixture")
    times = {each.model: times_of(each, task.base) for each in WIN_SCENARIOS}
    at_s, chosen, now_s = [], [], 0.0
    for _ in range(task.pairs):
        now_s += rng.expovariate(task.pairs_per_s)
        scenario = rng.choice(WIN_SCENARIOS)
        at_s += [now_s, now_s]
        chosen += [scenario.model, scenario.model]
    models = [
        model_of(each.model, times[each.model], RoutingPolicy(each.winner))
        for each in WIN_SCENARIOS
    ]
    is_known = task.policy in set(RoutingPolicy)
    run = Simulation(
        cluster_of(models, models_per_pod=1),
        trace_of(at_s, chosen),
        RoutingPolicy(task.policy) if is_known else None,
        task.seed,
    )
    tell_times(run, times)
    for _ in run:
        pass
    summary = run.summary
    return Mixed(summary.mean_s, summary.quantile_s(0.99), summary.cold_starts)
