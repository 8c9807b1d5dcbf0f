"""Loads for eight models on two pods of two places: ours beside LRU, Belady's rule and Ray Serve's.

400 Poisson requests at 20/s; a load takes 250 ms, an inference 5 ms. LRU and Belady's rule have one
cache of four places and no times; ours and Ray Serve's choose between two pods.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

import numpy as np
import pyarrow as pa

from load.simulator.autoscaling import LoadingOptions
from load.simulator.cluster.plan import ClusterPlan, ModelPlan, NodePlan, PodPlan
from load.simulator.simulation import Simulation
from load.trace_spec import open_trace
from registry.domain.model import ModelName, ModelPolicy, ModelSpec, RoutingPolicy, Tier
from registry.domain.pod import ProfilePoint
from research.experiments.harness.experiment import Cell, Table
from research.experiments.regret.caching import belady_loads, lru_loads, multiplexed

POPULARITIES: Final = (0.0, 1.1)
SEEDS: Final = tuple(range(1, 11))
MAX_P99_S: Final = 0.6
WAITS_S: Final = (0.2, 0.3, 0.35)
"""Of `max-load-wait`, which is off by default: it lengthens the mean latency."""
_REQUESTS: Final = 400
_MODELS: Final = 8
_PODS: Final = 2
_PLACES: Final = 2
_LOAD_S: Final = 0.25
_INFER_S: Final = 0.005
_BYTES: Final = 10**8


@dataclass(frozen=True, slots=True)
class LoadCount:
    loads: int
    p99_s: float | None
    """None for a rule without times."""


def count_loads(zipf: float, seed: int) -> dict[str, LoadCount]:
    """Loads of each rule for the same requests."""
    spec = f"poisson:rate=20,duration=120s,models={_MODELS},zipf={zipf:g}|limit={_REQUESTS}"
    batches = list(open_trace(spec, seed=seed))
    requests = [
        pair
        for batch in batches
        for pair in zip(
            batch.column("at_s").to_pylist(), batch.column("model").to_pylist(), strict=True
        )
    ]
    models = [model for _, model in requests]
    places = _PODS * _PLACES
    found = {
        "LRU, one cache": LoadCount(lru_loads(models, places), None),
        "Belady, one cache": LoadCount(belady_loads(models, places), None),
    }
    for bound, name in ((_REQUESTS, "Ray Serve"), (5, "Ray Serve, max_ongoing_requests=5")):
        loads, latencies_s = multiplexed(
            requests,
            replicas=_PODS,
            places=_PLACES,
            load_s=_LOAD_S,
            infer_s=_INFER_S,
            max_ongoing=bound,
        )
        found[name] = LoadCount(loads, float(np.quantile(latencies_s, 0.99)))
    for policy in (RoutingPolicy.COLOCATION_QUEUEING, RoutingPolicy.AUTO):
        found[str(policy)] = _simulated(batches, policy, seed)
    for wait_s in WAITS_S:
        found[f"{RoutingPolicy.AUTO}, max-load-wait {wait_s * 1000:g}ms"] = _simulated(
            batches, RoutingPolicy.AUTO, seed, wait_s=wait_s
        )
    found[f"{RoutingPolicy.AUTO} + predictive"] = _simulated(
        batches, RoutingPolicy.AUTO, seed, LoadingOptions("predictive")
    )
    return found


def _simulated(
    trace: Sequence[pa.RecordBatch],
    policy: RoutingPolicy,
    seed: int,
    loading: LoadingOptions | None = None,
    wait_s: float = 0.0,
) -> LoadCount:
    plan = _cluster(wait_s)
    scaler = None if loading is None else loading.new_autoscaler(plan)
    run = Simulation(plan, trace, policy, seed, autoscaler=scaler)
    rows = pa.Table.from_batches(list(run))
    latency_s = rows["finished_s"].to_numpy() - rows["scheduled_s"].to_numpy()
    return LoadCount(run.summary.loads_started.total(), float(np.quantile(latency_s, 0.99)))


def _cluster(wait_s: float) -> ClusterPlan:
    """Pods have the default number of slots."""
    return ClusterPlan(
        tuple(
            NodePlan(name, (PodPlan(name, memory_bytes=_PLACES * _BYTES),))
            for name in (f"pod-{number}" for number in range(_PODS))
        ),
        tuple(
            ModelPlan(
                ModelSpec(
                    ModelName("default", f"model-{number}"),
                    f"s3://models/{number}",
                    policy=ModelPolicy(queue_depth=_REQUESTS, max_load_wait_s=wait_s),
                ),
                size_bytes=_BYTES,
                memory_bytes=_BYTES,
                infer=(ProfilePoint(1, _INFER_S),),
                preprocess_s=0.0,
                postprocess_s=0.0,
                assets_s=0.0,
                load_s=dict.fromkeys((Tier.REMOTE, Tier.DISK, Tier.HOST), _LOAD_S),
            )
            for number in range(_MODELS)
        ),
    )


def load_table(seeds: Sequence[int]) -> Table:
    """Means over the seeds."""
    counts = {zipf: [count_loads(zipf, seed) for seed in seeds] for zipf in POPULARITIES}
    rows: list[tuple[Cell, ...]] = []
    for name in counts[POPULARITIES[0]][0]:
        row: list[Cell] = [name]
        for found in counts.values():
            row += [
                _mean(found, name, lambda each: each.loads),
                _mean(found, name, lambda each: each.p99_s),
            ]
        rows.append(tuple(row))
    return Table(
        f"Loads by {_REQUESTS} Poisson requests (20/s) to eight models, two pods of two places, "
        f"mean of {len(seeds)} seeds; mark: auto below Belady's at p99 <= {MAX_P99_S:g} s",
        ("rule", "loads, uniform", "p99 s", "loads, zipf 1.1", "p99 s (zipf)"),
        tuple(rows),
    )


def _mean(
    found: Sequence[Mapping[str, LoadCount]],
    name: str,
    measure: Callable[[LoadCount], float | None],
) -> float | None:
    values = [value for each in found if (value := measure(each[name])) is not None]
    return fmean(values) if values else None
