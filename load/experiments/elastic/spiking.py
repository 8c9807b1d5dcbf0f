"""One run of the spike: a steady load that grows tenfold at once, and how long it is late for."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final

import numpy as np

from autoscaler.forecasting.counts import Counts
from autoscaler.planning.pool import Limits
from autoscaler.scaling.kpa import KpaParams
from load.experiments.elastic.rules import Knative, Ours
from load.experiments.elastic.scaler import PodScaler
from load.simulator.cluster import ClusterPlan, ModelPlan, NodePlan, PodPlan
from load.simulator.simulate import simulate
from load.traces.batches import Names, arrivals
from registry.model import ModelName, ModelPolicy, ModelSpec, RoutingPolicy, Tier
from registry.profile import ProfilePoint

if TYPE_CHECKING:
    import pyarrow as pa

    from load.experiments.elastic.scaler import Rule
    from load.schema import Trace

OURS: Final = "predictive"
KNATIVE: Final = "knative"
RULES: Final = (OURS, KNATIVE)
BASE_RPS: Final = 14.0
TIMES: Final = 10
INFER_S: Final = 0.1
"""So a pod with one slot answers ten requests a second: two pods for the load before, 20 after."""
DEADLINE_S: Final = 1.0
POD_START_S: Final = 3.0
LOAD_S: Final = 1.0
FIRST_PODS: Final = 2
MOST_PODS: Final = 60
SPIKE_AT_S: Final = 90.0
SPIKE_S: Final = 120.0
AFTER_S: Final = 60.0
EVERY_S: Final = 600.0
"""Between the spikes that came before, where they came before."""
_EPOCH_S: Final = 40 * EVERY_S
_MODEL: Final = ModelName("default", "model")
_ROWS: Final = 2_000


@dataclass(frozen=True, slots=True)
class SpikeTask:
    """One run. `is_known`: the spike came every ten minutes for hours before."""

    rule: str
    is_known: bool
    seed: int


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
    pods = [f"pod-{at:02d}" for at in range(MOST_PODS)]
    scaler = PodScaler(_rule(task), pods, start_s=POD_START_S)
    run = simulate(_cluster(pods), _trace(task.seed), seed=task.seed, autoscaler=scaler)
    at_s: list[float] = []
    took_s: list[float] = []
    failed = 0
    for batch in run:
        for scheduled, finished, status in zip(
            *(batch.column(name).to_pylist() for name in ("scheduled_s", "finished_s", "status")),
            strict=True,
        ):
            failed += status != 200
            at_s.append(scheduled)
            took_s.append(finished - scheduled if status == 200 else inf)
    return _outcome(np.array(at_s), np.array(took_s), scaler, failed)


def _outcome(
    at_s: np.typing.NDArray[np.float64],
    took_s: np.typing.NDArray[np.float64],
    scaler: PodScaler,
    failed: int,
) -> Spiked:
    seconds = np.floor(at_s).astype(int)
    length = int(SPIKE_AT_S + SPIKE_S + AFTER_S)
    p99 = [
        float(np.quantile(took_s[seconds == second], 0.99, method="higher"))
        if (seconds == second).any()
        else 0.0
        for second in range(length)
    ]
    begin, end = int(SPIKE_AT_S), int(SPIKE_AT_S + SPIKE_S)
    late = [second for second in range(begin, end) if p99[second] > DEADLINE_S]
    until = late[-1] + 1 - begin if late else 0
    in_spike = (at_s >= begin) & (at_s < end)
    times_s, lived = np.array(scaler.pods_at).T
    pods = tuple(
        float(lived[(times_s >= second) & (times_s < second + 1)].mean())
        for second in range(length)
        if ((times_s >= second) & (times_s < second + 1)).any()
    )
    return Spiked(
        late_s=inf if until >= SPIKE_S else float(until),
        worst_p99_s=max(p99[begin:end]),
        late_share=float((took_s[in_spike] > DEADLINE_S).mean()),
        most_pods=int(lived.max()),
        pod_s=float(lived[times_s < length].sum() * scaler.every_s),
        failed=failed,
        p99_s=tuple(p99),
        pods=pods,
    )


def _rule(task: SpikeTask) -> Rule:
    if task.rule == KNATIVE:
        return Knative(KpaParams(slots=1, most_pods=MOST_PODS), least=1)
    counts = _past(task)
    return Ours(Limits(1, MOST_PODS), pods=FIRST_PODS, counts=counts, epoch_s=_EPOCH_S)


def _past(task: SpikeTask) -> Counts:
    """What came in the hours before: the load, and with `is_known` its spikes."""
    counts = Counts()
    counts.declare(str(_MODEL))
    rng = np.random.default_rng([task.seed, 1])
    for start_s in np.arange(0.0, _EPOCH_S, EVERY_S):
        counts.advance(start_s + EVERY_S - 1)
        times_s = start_s + _arrival_times(rng, EVERY_S - 1, with_spike=task.is_known)
        counts.add([str(_MODEL)] * times_s.size, times_s.tolist(), [1] * times_s.size)
    return counts


def _arrival_times(
    rng: np.random.Generator, length_s: float, *, with_spike: bool
) -> np.typing.NDArray[np.float64]:
    """Poisson arrivals of one spell."""
    parts = [rng.uniform(0, length_s, rng.poisson(BASE_RPS * length_s))]
    if with_spike:
        more = rng.poisson(BASE_RPS * (TIMES - 1) * SPIKE_S)
        parts.append(rng.uniform(SPIKE_AT_S, SPIKE_AT_S + SPIKE_S, more))
    return np.sort(np.concatenate(parts))


def _trace(seed: int) -> Trace:
    rng = np.random.default_rng([seed, 2])
    at_s = _arrival_times(rng, SPIKE_AT_S + SPIKE_S + AFTER_S, with_spike=True)
    names = Names([_MODEL.name])
    batches: list[pa.RecordBatch] = []
    for offset in range(0, at_s.size, _ROWS):
        part = at_s[offset : offset + _ROWS]
        column = names.column(np.zeros(part.size, dtype=np.int32))
        batches.append(arrivals(part, model=column))
    return batches


def _cluster(pods: list[str]) -> ClusterPlan:
    """A pod a node, so that loads do not share a link; the first two live and have the model."""
    policy = ModelPolicy(
        routing=RoutingPolicy.COLOCATION_QUEUEING, queue_depth=100_000, queue_timeout_s=600.0
    )
    spec = ModelSpec(_MODEL, "s3://simulated/model", policy=policy)
    model = ModelPlan(
        spec,
        infer=(ProfilePoint(1, INFER_S),),
        preprocess_s=0.0,
        postprocess_s=0.0,
        assets_s=0.0,
        load_s=dict.fromkeys((Tier.HOST, Tier.DISK, Tier.REMOTE), LOAD_S),
        is_batched=False,
        at=dict.fromkeys(pods[:FIRST_PODS], Tier.DEVICE),
    )
    nodes = tuple(
        NodePlan(name, (PodPlan(name, start_s=0.0 if at < FIRST_PODS else inf),))
        for at, name in enumerate(pods)
    )
    return ClusterPlan(nodes, (model,))
