"""What a spike is like: the load before and in it, what a pod does, and the arrivals. Seconds."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final

import numpy as np

from autoscaler.forecasting.counts import Counts
from load.simulator.cluster.plan import ClusterPlan, ModelPlan, NodePlan, PodPlan
from load.traces.batches import arrival_batch
from load.traces.name_columns import NameColumn
from registry.domain.model import ModelName, ModelPolicy, ModelSpec, RoutingPolicy, Tier
from registry.domain.profile import ProfilePoint

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from load.schema import Trace

EVERY_S: Final = 600.0
"""Between the spikes that came before, where they came before."""
EPOCH_S: Final = 40 * EVERY_S
"""For so long arrivals were counted before the run."""
_MODEL: Final = ModelName("default", "model")
_ROWS: Final = 2_000


@dataclass(frozen=True, slots=True)
class Scenario:
    """One model's load that grows at once. The defaults are those the rules were made with."""

    base_rps: float = 14.0
    times: float = 10.0
    """The load of the spike, over the one before."""
    infer_s: float = 0.1
    """A pod takes one request at a time."""
    deadline_s: float = 1.0
    pod_start_s: float = 3.0
    """From asking for a pod until it is there."""
    load_s: float = 1.0
    first_pods: int = 2
    most_pods: int = 60
    spike_at_s: float = 90.0
    spike_s: float = 120.0
    after_s: float = 60.0

    @property
    def length_s(self) -> float:
        """Of the whole run."""
        return self.spike_at_s + self.spike_s + self.after_s


MADE_WITH: Final = Scenario()


def spike_arrivals(scenario: Scenario, seed: int) -> NDArray[np.float64]:
    """Poisson arrivals of the run, rising."""
    rng = np.random.default_rng([seed, 2])
    return _arrival_times(scenario, rng, scenario.length_s, with_spike=True)


def past(scenario: Scenario, seed: int, *, with_spikes: bool) -> Counts:
    """What came in the hours before: the load, and perhaps its spikes."""
    counts = Counts()
    counts.add_model(str(_MODEL))
    rng = np.random.default_rng([seed, 1])
    for start_s in np.arange(0.0, EPOCH_S, EVERY_S):
        counts.advance(start_s + EVERY_S - 1)
        times_s = start_s + _arrival_times(scenario, rng, EVERY_S - 1, with_spike=with_spikes)
        counts.add([str(_MODEL)] * times_s.size, times_s.tolist(), [1] * times_s.size)
    return counts


def _arrival_times(
    scenario: Scenario, rng: np.random.Generator, length_s: float, *, with_spike: bool
) -> NDArray[np.float64]:
    parts = [rng.uniform(0, length_s, rng.poisson(scenario.base_rps * length_s))]
    if with_spike:
        more = rng.poisson(scenario.base_rps * (scenario.times - 1) * scenario.spike_s)
        from_s = scenario.spike_at_s
        parts.append(rng.uniform(from_s, from_s + scenario.spike_s, more))
    return np.sort(np.concatenate(parts))


def trace_of(at_s: NDArray[np.float64]) -> Trace:
    """Requests for the one model."""
    names = NameColumn([_MODEL.name])
    batches: list[pa.RecordBatch] = []
    for offset in range(0, at_s.size, _ROWS):
        part = at_s[offset : offset + _ROWS]
        column = names.column(np.zeros(part.size, dtype=np.int32))
        batches.append(arrival_batch(part, model=column))
    return batches


def cluster_of(scenario: Scenario, pods: list[str]) -> ClusterPlan:
    """A pod a node, so that loads do not share a link; the first ones live and have the model."""
    policy = ModelPolicy(
        routing=RoutingPolicy.COLOCATION_QUEUEING, queue_depth=100_000, queue_timeout_s=600.0
    )
    spec = ModelSpec(_MODEL, "s3://simulated/model", policy=policy)
    first = scenario.first_pods
    model = ModelPlan(
        spec,
        infer=(ProfilePoint(1, scenario.infer_s),),
        preprocess_s=0.0,
        postprocess_s=0.0,
        assets_s=0.0,
        load_s=dict.fromkeys((Tier.HOST, Tier.DISK, Tier.REMOTE), scenario.load_s),
        is_batched=False,
        at=dict.fromkeys(pods[:first], Tier.DEVICE),
    )
    nodes = tuple(
        NodePlan(name, (PodPlan(name, start_s=0.0 if at < first else inf),))
        for at, name in enumerate(pods)
    )
    return ClusterPlan(nodes, (model,))
