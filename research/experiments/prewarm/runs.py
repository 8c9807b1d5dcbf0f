"""One simulated run of prewarming: a policy with one value of its parameter, over the window."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from autoscaler import loading_policies as loading_policies
from autoscaler.policy import LoadingPolicy
from load.simulator.autoscaling import PlannedAutoscaler
from load.simulator.simulation import Simulation
from research.experiments.prewarm import forecast_cache
from research.experiments.prewarm.scenario import MODEL_BYTES, TICK_S, ReplayWindow, cluster

GB_PER_MODEL: Final = MODEL_BYTES / 1e9
PREDICTIVE: Final = "predictive"
BASELINES: Final = ("keep-alive", "greedy-dual", "hybrid-histogram")
PARAMETERS: Final[Mapping[str, str]] = {
    "keep-alive": "minutes after the last request",
    "greedy-dual": "models held",
    "hybrid-histogram": "range in minutes",
    PREDICTIVE: "price in seconds per GB and hour",
}
VALUES: Final[Mapping[str, tuple[float, ...]]] = {
    "keep-alive": (1, 4, 10, 30, 90, 240),
    "greedy-dual": (1, 3, 6, 12, 24, 40),
    "hybrid-histogram": (5, 15, 40, 90, 240),
    PREDICTIVE: (16, 5, 2, 1, 0.5, 0.2, 0.07),
}
"""In the order of the memory that models then hold, from little to much."""


@dataclass(frozen=True, slots=True)
class PrewarmTask:
    policy: str
    value: float
    span: ReplayWindow
    models: tuple[str, ...]
    forecasts: Path


@dataclass(frozen=True, slots=True)
class PrewarmResult:
    policy: str
    value: float
    requests: int
    cold: int
    p75: float
    """75th percentile over models of the share of their requests with a cold start."""
    idle_model_h: float
    """Idle memory x time, in models times hours."""
    preloads: int
    failed: int

    @property
    def cold_share(self) -> float:
        """Share of requests with a cold start."""
        return self.cold / max(1, self.requests)


def simulate(task: PrewarmTask) -> PrewarmResult:
    plan, window = cluster(list(task.models)), task.span
    scaler = PlannedAutoscaler(
        policy_of(task.policy, task.value),
        plan,
        every_s=TICK_S,
        epoch_s=window.epoch_s,
        counts=window.counts_before(),
        forecaster=forecast_cache.read(
            window, task.forecasts, with_history=task.policy == "hybrid-histogram"
        ),
    )
    requests: Counter[str] = Counter()
    cold: Counter[str] = Counter()
    run = Simulation(plan, window.trace(), autoscaler=scaler)
    for batch in run:
        starts = batch.column("start").to_pylist()
        for model, start in zip(batch.column("model").to_pylist(), starts, strict=True):
            requests[model] += 1
            cold[model] += start != "warm"
    shares = [cold[model] / requests[model] for model in requests]
    return PrewarmResult(
        task.policy,
        task.value,
        requests.total(),
        cold.total(),
        float(np.quantile(shares, 0.75)) if shares else 0.0,
        idle_model_h(run),
        scaler.actions["load forecast"],
        requests.total() - run.summary.statuses[200],
    )


def idle_model_h(run: Simulation) -> float:
    """Idle memory x time of a finished run, in models times hours."""
    return run.summary.wasted_memory_byte_s / MODEL_BYTES / 3600


def policy_of(name: str, value: float) -> LoadingPolicy[Any]:
    """The loading policy with a value of its parameter, in the units of `PARAMETERS`."""
    return loading_policies.policy_of(
        name, value * GB_PER_MODEL if name == "greedy-dual" else value
    )
