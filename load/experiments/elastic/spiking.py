"""One run of the spike: a steady load that grows at once, and how long answers are late for it."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final

import numpy as np

from autoscaler.planning.pool_view import Limits
from load.experiments.elastic.kpa import KpaParams
from load.experiments.elastic.rules import Knative, Ours, ScrapedKnative
from load.experiments.elastic.scaler import PodScaler
from load.experiments.elastic.scenario import (
    EPOCH_S,
    MADE_WITH,
    Scenario,
    cluster_of,
    past,
    spike_arrivals,
    trace_of,
)
from load.simulator.simulation import Simulation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from load.experiments.elastic.scaler import Rule

OURS: Final = "predictive"
KNATIVE: Final = "knative"
SCRAPED: Final = "knative, scraped"
RULES: Final = (OURS, KNATIVE, SCRAPED)


@dataclass(frozen=True, slots=True)
class SpikeTask:
    """One run. `is_known`: the spike came every ten minutes for hours before."""

    rule: str
    is_known: bool
    seed: int
    scenario: Scenario = MADE_WITH


@dataclass(frozen=True, slots=True)
class Spiked:
    """What a run came to."""

    late_s: float
    """From the spike's beginning until the 99th percentile stays within the deadline; infinite:
    it never does while the spike lasts."""
    worst_p99_s: float
    late_share: float
    """Of the requests of the spike."""
    most_pods: int
    pod_s: float
    failed: int
    p99_s: tuple[float, ...]
    """Of the requests that came in each second, from the start."""
    pods: tuple[float, ...]
    """Pods that lived, on average in each second."""


def run_spike(task: SpikeTask) -> Spiked:
    """Simulate."""
    scenario = task.scenario
    pods = [f"pod-{at:03d}" for at in range(scenario.most_pods)]
    scaler = PodScaler(_rule(task), pods, start_s=scenario.pod_start_s)
    trace = trace_of(spike_arrivals(scenario, task.seed))
    run = Simulation(cluster_of(scenario, pods), trace, seed=task.seed, autoscaler=scaler)
    at_s: list[float] = []
    took_s: list[float] = []
    for batch in run:
        came, finished, status = (
            batch.column(name).to_numpy(zero_copy_only=False)
            for name in ("scheduled_s", "finished_s", "status")
        )
        at_s += came.tolist()
        took_s += np.where(status == 200, finished - came, inf).tolist()
    return spiked(scenario, np.array(at_s), np.array(took_s), scaler.pods_at)


def spiked(
    scenario: Scenario,
    at_s: NDArray[np.float64],
    took_s: NDArray[np.float64],
    pods_at: Sequence[tuple[float, int]],
) -> Spiked:
    """The measures of a run: arrivals, how long each took (infinite: it failed), and the pods.

    `pods_at` are pairs of time and pods, evenly spaced.
    """
    seconds = np.floor(at_s).astype(int)
    length = int(scenario.length_s)
    p99 = [_p99(took_s[seconds == second]) for second in range(length)]
    begin, end = int(scenario.spike_at_s), int(scenario.spike_at_s + scenario.spike_s)
    late = [second for second in range(begin, end) if p99[second] > scenario.deadline_s]
    until = late[-1] + 1 - begin if late else 0
    in_spike = (at_s >= begin) & (at_s < end)
    times_s, lived = np.array(pods_at).T
    each_second = [lived[(times_s >= at) & (times_s < at + 1)] for at in range(length)]
    pods = tuple(float(each.mean()) for each in each_second if each.size)
    return Spiked(
        late_s=inf if until >= scenario.spike_s else float(until),
        worst_p99_s=max(p99[begin:end]),
        late_share=float((took_s[in_spike] > scenario.deadline_s).mean()),
        most_pods=int(lived.max()),
        pod_s=float(sum(pods)),
        failed=int(np.isinf(took_s).sum()),
        p99_s=tuple(p99),
        pods=pods,
    )


def _p99(took_s: NDArray[np.float64]) -> float:
    return float(np.quantile(took_s, 0.99, method="higher")) if took_s.size else 0.0


def _rule(task: SpikeTask) -> Rule:
    scenario = task.scenario
    params = KpaParams(slots=1, max_pods=scenario.most_pods)
    match task.rule:
        case "knative":
            return Knative(params, least=1)
        case "knative, scraped":
            return ScrapedKnative(params, least=1)
    return Ours(
        Limits(1, scenario.most_pods),
        pods=scenario.first_pods,
        counts=past(scenario, task.seed, with_spikes=task.is_known),
        epoch_s=EPOCH_S,
    )
