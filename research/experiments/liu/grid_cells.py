"""Cells of the grid of liu-grid: one combination of times under one workload, and its winners."""

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pilotlight.demo.runs import mean_s
from pilotlight.demo.scenarios import FIXED_POLICIES, POLICIES
from registry.domain.model import RoutingPolicy
from research.experiments.liu.simulated import PODS, ModelTimings, run_responses, simulation_of

_LOADS_S: Final = (0.3, 1.0, 3.0, 10.0, 30.0)
_INFERS_S: Final = (0.1, 1.0, 10.0)
_POSTPROCESSINGS_S: Final = (0.0, 1.0, 5.0)
_NETWORKS_S: Final = (0.0, 1.0, 5.0)
"""Network time to another pod, in addition to 2 ms there and back."""
_BURST_REQUESTS: Final = {"pair": 2, "burst": 8}
WORKLOADS: Final = (*_BURST_REQUESTS, "stream")
_TIE_RATIO: Final = 0.01
"""Fixed policies within 1 % of the best one win together."""
LETTERS: Final = dict(zip(FIXED_POLICIES, "CQP", strict=True))
_STREAM_REQUESTS: Final = 200
_BUSY_SHARE: Final = 0.4
"""Share of all slots that warm requests occupy in a stream."""


@dataclass(frozen=True, slots=True)
class CellTask:
    """One cell under one workload, with all seeds."""

    times: ModelTimings
    workload: str
    seeds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CellResult:
    mean_s: Mapping[str, float]
    """Mean latency by policy, `auto` included."""

    @property
    def best_s(self) -> float:
        """Mean latency of the best fixed policy."""
        return min(self.mean_s[policy] for policy in FIXED_POLICIES)

    @property
    def winners(self) -> str:
        """The letters of the policies that win."""
        limit_s = self.best_s * (1 + _TIE_RATIO)
        return "".join(LETTERS[each] for each in FIXED_POLICIES if self.mean_s[each] <= limit_s)

    @property
    def regret(self) -> float:
        """The share by which `auto` takes longer than the best fixed policy of the cell."""
        return self.mean_s["auto"] / self.best_s - 1


def cells(*, is_quick: bool) -> Iterator[ModelTimings]:
    """Every point of the grid; with `is_quick` only the first and last cold start."""
    step = 4 if is_quick else 1
    axes = (_LOADS_S, _INFERS_S, _POSTPROCESSINGS_S, _NETWORKS_S)
    for times in itertools.product(*(axis[::step] for axis in axes)):
        yield ModelTimings(*times)


def simulate_cell(task: CellTask) -> CellResult:
    """The mean latency under every policy; only a stream depends on the seed."""
    simulate = _stream_s if task.workload == "stream" else _burst_s
    seeds = task.seeds if task.workload == "stream" else task.seeds[:1]
    return CellResult(
        {policy: mean_s([simulate(task, policy, seed) for seed in seeds]) for policy in POLICIES}
    )


def _burst_s(task: CellTask, policy: str, seed: int) -> float:
    """Concurrent requests after one that warms a pod."""
    burst = [(task.times.settled_s, "m")] * _BURST_REQUESTS[task.workload]
    run = simulation_of([(0.0, "m"), *burst], {"m": task.times}, RoutingPolicy(policy), seed)
    return mean_s([response.latency_s for response in run_responses(run)[1:]])


def _stream_s(task: CellTask, policy: str, seed: int) -> float:
    """A random sequence for two models on pods with memory for one."""
    times, rng = task.times, random.Random(f"{seed}:stream")
    rate_per_s = _BUSY_SHARE * PODS / (times.infer_s + times.postprocess_s)
    at_s = list(itertools.accumulate(rng.expovariate(rate_per_s) for _ in range(_STREAM_REQUESTS)))
    run = simulation_of(
        list(zip(at_s, rng.choices(("a", "b"), k=len(at_s)), strict=True)),
        dict.fromkeys(("a", "b"), times),
        RoutingPolicy(policy),
        seed,
        models_per_pod=1,
    )
    return mean_s([response.latency_s for response in run_responses(run)])
