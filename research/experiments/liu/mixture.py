"""The three workloads of section 6.4 at once: pairs of requests, and models that evict each other.

Each pair has a random workload and arrival time; policies break ties at random.
"""

import random
from dataclasses import dataclass
from typing import Final

from registry.domain.model import RoutingPolicy
from research.demo import WIN_SCENARIOS
from research.experiments.liu.simulated import ModelTimings, scenario_timings, simulation_of

LOADS: Final = (0.05, 0.2, 0.4)
"""Pairs per second: the two requests of a pair together hold a slot for 2 to 12 s, of 8 slots."""
OWN_WINNER: Final = "each its winner"
"""Given instead of a policy: each model uses the policy that wins its workload."""


@dataclass(frozen=True, slots=True)
class MixtureTask:
    policy: str
    """A routing policy, or `OWN_WINNER`."""
    pairs_per_s: float
    seed: int
    pairs: int
    base: ModelTimings


@dataclass(frozen=True, slots=True)
class MixtureResult:
    mean_s: float
    p99_s: float
    cold_starts: int


def simulate_mixture(task: MixtureTask) -> MixtureResult:
    rng = random.Random(f"{task.seed}:mixture")
    requests, now_s = [], 0.0
    for _ in range(task.pairs):
        now_s += rng.expovariate(task.pairs_per_s)
        requests += [(now_s, rng.choice(WIN_SCENARIOS).model)] * 2
    run = simulation_of(
        requests,
        {each.model: scenario_timings(each, task.base) for each in WIN_SCENARIOS},
        None if task.policy == OWN_WINNER else RoutingPolicy(task.policy),
        task.seed,
        models_per_pod=1,
        routing={each.model: RoutingPolicy(each.winner) for each in WIN_SCENARIOS},
    )
    for _ in run:
        pass
    summary = run.summary
    return MixtureResult(summary.mean_s, summary.quantile_s(0.99), summary.cold_starts)
