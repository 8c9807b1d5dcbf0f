"""The scenario of a spike: the load before and during it, the pods, and the arrivals. Seconds."""

from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

from autoscaler.forecasting.counts import Counts
from load.schema import Trace
from load.simulator.cluster.plan import ClusterPlan, ModelPlan, NodePlan, PodPlan
from load.traces.batches import arrival_batch
from registry.domain.model import ModelName, ModelPolicy, ModelSpec, RoutingPolicy, Tier
from registry.domain.pod import ProfilePoint

_PERIOD_S: Final = 600.0
"""Time between earlier spikes, if there are any."""
EPOCH_S: Final = 40 * _PERIOD_S
"""Time before the run in which arrivals were counted."""
_MODEL: Final = ModelName("default", "model")
_BATCH_ROWS: Final = 2_000


@dataclass(frozen=True, slots=True)
class SpikeScenario:
    """One model's load with a sudden rise. The rules were tuned with the defaults."""

    base_rps: float = 14.0
    times: float = 10.0
    """Ratio of the load in the spike to the load before."""
    infer_s: float = 0.1
    """A pod takes one request at a time."""
    deadline_s: float = 1.0
    pod_start_s: float = 3.0
    """Time from the request for a pod until it runs."""
    load_s: float = 1.0
    first_pods: int = 2
    most_pods: int = 60
    spike_at_s: float = 90.0
    spike_s: float = 120.0
    after_s: float = 60.0

    @property
    def length_s(self) -> float:
        """Length of the whole run."""
        return self.spike_at_s + self.spike_s + self.after_s


TUNED_WITH: Final = SpikeScenario()


def spike_arrivals(scenario: SpikeScenario, seed: int) -> NDArray[np.float64]:
    """Poisson arrivals of the run, ascending."""
    rng = np.random.default_rng([seed, 2])
    return _arrival_times(scenario, rng, scenario.length_s, with_spike=True)


def past_counts(scenario: SpikeScenario, seed: int, *, with_spikes: bool) -> Counts:
    """Arrivals of the hours before the run: the base load, and its spikes if there were any."""
    counts = Counts()
    counts.add_model(str(_MODEL))
    rng = np.random.default_rng([seed, 1])
    for start_s in np.arange(0.0, EPOCH_S, _PERIOD_S):
        counts.advance(start_s + _PERIOD_S - 1)
        times_s = start_s + _arrival_times(scenario, rng, _PERIOD_S - 1, with_spike=with_spikes)
        counts.add([str(_MODEL)] * times_s.size, times_s.tolist(), [1] * times_s.size)
    return counts


def _arrival_times(
    scenario: SpikeScenario, rng: np.random.Generator, length_s: float, *, with_spike: bool
) -> NDArray[np.float64]:
    parts = [rng.uniform(0, length_s, rng.poisson(scenario.base_rps * length_s))]
    if with_spike:
        more = rng.poisson(scenario.base_rps * (scenario.times - 1) * scenario.spike_s)
        start_s = scenario.spike_at_s
        parts.append(rng.uniform(start_s, start_s + scenario.spike_s, more))
    return np.sort(np.concatenate(parts))


def spike_trace(at_s: NDArray[np.float64]) -> Trace:
    """Requests for the one model."""
    whole = arrival_batch(at_s, model=_MODEL.name)
    return [whole.slice(first, _BATCH_ROWS) for first in range(0, at_s.size, _BATCH_ROWS)]


def spike_cluster(scenario: SpikeScenario, pods: list[str]) -> ClusterPlan:
    """A pod per node, so that loads share no link; the first pods run and have the model warm."""
    policy = ModelPolicy(
        routing=RoutingPolicy.COLOCATION_QUEUEING, queue_depth=100_000, queue_timeout_s=600.0
    )
    first = scenario.first_pods
    model = ModelPlan(
        ModelSpec(_MODEL, "s3://simulated/model", policy=policy),
        infer=(ProfilePoint(1, scenario.infer_s),),
        preprocess_s=0.0,
        postprocess_s=0.0,
        assets_s=0.0,
        load_s=dict.fromkeys((Tier.HOST, Tier.DISK, Tier.REMOTE), scenario.load_s),
        is_batched=False,
        at=dict.fromkeys(pods[:first], Tier.DEVICE),
    )
    nodes = tuple(
        NodePlan(name, (PodPlan(name, slots=1, start_s=0.0 if number < first else inf),))
        for number, name in enumerate(pods)
    )
    return ClusterPlan(nodes, (model,))
