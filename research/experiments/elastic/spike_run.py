"""One simulated run of the spike scenario, and its measures: how long responses are late."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

from autoscaler.policy import Limits
from load.simulator.cluster.plan import ClusterPlan
from load.simulator.simulation import Simulation
from research.experiments.elastic.kpa import KpaParams
from research.experiments.elastic.pod_scaler import PodScaler, Rule, arrivals_and_latencies_s
from research.experiments.elastic.rules import KnativeRule, PredictiveRule, ScrapedKnativeRule
from research.experiments.elastic.spike_scenario import (
    EPOCH_S,
    TUNED_WITH,
    SpikeScenario,
    past_counts,
    spike_arrivals,
    spike_cluster,
    spike_trace,
)

PREDICTIVE: Final = "predictive"
KNATIVE: Final = "knative"
_SCRAPED: Final = "knative, scraped"
RULES: Final = (PREDICTIVE, KNATIVE, _SCRAPED)


@dataclass(frozen=True, slots=True)
class SpikeTask:
    """One run. `is_known`: the hours before the run had the same spike every ten minutes."""

    rule: str
    is_known: bool
    seed: int
    scenario: SpikeScenario = TUNED_WITH


@dataclass(frozen=True, slots=True)
class SpikeResult:
    late_s: float
    """Time from the start of the spike until the 99th percentile stays within the deadline;
    infinite if the spike ends before that."""
    worst_p99_s: float
    late_share: float
    """Share of the spike's requests that missed the deadline or failed."""
    most_pods: int
    pod_s: float
    failed: int
    p99_s: tuple[float, ...]
    """99th percentile latency of the requests that arrived in each second of the run."""
    pods: tuple[float, ...]
    """Mean number of running pods in each second of the run."""


def run_spike(task: SpikeTask) -> SpikeResult:
    scenario = task.scenario
    pods = [f"pod-{number:03d}" for number in range(scenario.most_pods)]
    trace = spike_trace(spike_arrivals(scenario, task.seed))
    cluster = spike_cluster(scenario, pods)
    scaler = PodScaler(_rule(task, cluster), pods, start_s=scenario.pod_start_s)
    run = Simulation(cluster, trace, seed=task.seed, autoscaler=scaler)
    return measure_spike(scenario, *arrivals_and_latencies_s(run), scaler.pods_at)


def measure_spike(
    scenario: SpikeScenario,
    at_s: NDArray[np.float64],
    took_s: NDArray[np.float64],
    pods_at: Sequence[tuple[float, int]],
) -> SpikeResult:
    """The measures of a run from its arrivals, latencies (infinite: failed) and pods.

    `pods_at` are pairs of time and running pods, evenly spaced.
    """
    seconds = np.floor(at_s).astype(int)
    length = int(scenario.length_s)
    p99 = [_p99(took_s[seconds == second]) for second in range(length)]
    begin, end = int(scenario.spike_at_s), int(scenario.spike_at_s + scenario.spike_s)
    late = [second for second in range(begin, end) if p99[second] > scenario.deadline_s]
    late_s = late[-1] + 1 - begin if late else 0
    in_spike = (at_s >= begin) & (at_s < end)
    times_s, running = np.array(pods_at).T
    each_second = [running[(times_s >= at) & (times_s < at + 1)] for at in range(length)]
    pods = tuple(float(each.mean()) for each in each_second if each.size)
    return SpikeResult(
        late_s=inf if late_s >= scenario.spike_s else float(late_s),
        worst_p99_s=max(p99[begin:end]),
        late_share=float((took_s[in_spike] > scenario.deadline_s).mean()),
        most_pods=int(running.max()),
        pod_s=float(sum(pods)),
        failed=int(np.isinf(took_s).sum()),
        p99_s=tuple(p99),
        pods=pods,
    )


def _p99(took_s: NDArray[np.float64]) -> float:
    return float(np.quantile(took_s, 0.99, method="higher")) if took_s.size else 0.0


def _rule(task: SpikeTask, cluster: ClusterPlan) -> Rule:
    scenario = task.scenario
    params = KpaParams(slots=1, max_pods=scenario.most_pods)
    if task.rule == KNATIVE:
        return KnativeRule(params, min_pods=1)
    if task.rule == _SCRAPED:
        return ScrapedKnativeRule(params, min_pods=1)
    return PredictiveRule(
        cluster,
        Limits(1, scenario.most_pods),
        pods=scenario.first_pods,
        counts=past_counts(scenario, task.seed, with_spikes=task.is_known),
        epoch_s=EPOCH_S,
    )
