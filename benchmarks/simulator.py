"""Speed of the simulator: requests per second of CPU time, with the policies of production.

Poisson arrivals for models with Zipf popularity, at half of the devices' capacity. One core; the
time is the process' CPU time of the run alone (the trace is made before).
"""

import gc
import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from benchmarks.quantiles import spread
from load.schema import TRACE_SCHEMA
from load.simulator.cluster.cluster_file import cluster_of
from load.simulator.cluster.plan import ClusterPlan
from load.simulator.simulation import Simulation
from registry.domain.model import RoutingPolicy

_INFER_S: Final = 0.005
_USED_SHARE: Final = 0.5
_SKEW: Final = 0.9
_SPARE: Final = 1.5
"""Copies at the start, as a multiple of those that a model's popularity needs."""
_ROWS: Final = 16_384


@dataclass(frozen=True, slots=True)
class Size:
    """A cluster and a trace."""

    pods: int
    models: int
    requests: int


SIZES: Final = (
    Size(pods=8, models=20, requests=100_000),
    Size(pods=100, models=1_000, requests=100_000),
    Size(pods=1_000, models=10_000, requests=100_000),
)
POLICIES: Final = (
    RoutingPolicy.COLOCATION,
    RoutingPolicy.COLOCATION_QUEUEING,
    RoutingPolicy.REMOTE_PROXY,
    RoutingPolicy.AUTO,
)


@dataclass(frozen=True, slots=True)
class Timed:
    """One policy at one size: CPU seconds per request for each repeat."""

    size: Size
    policy: RoutingPolicy
    cpu_s: list[float]
    cold_starts: int


def measure(*, seed: int, repeats: int, is_quick: bool = False, only: str = "") -> list[Timed]:
    """Time every policy at every size; with `is_quick` on a tenth of the requests.

    `only` has parts of policies' names, separated by commas.
    """
    results = []
    for size in SIZES:
        count = size.requests // 10 if is_quick else size.requests
        plan, batches = cluster(size), trace(size, count, seed)
        for policy in POLICIES:
            if not any(part in policy for part in only.split(",")):
                continue
            runs = [time_run(plan, batches, policy, seed) for _ in range(repeats)]
            results.append(Timed(size, policy, [cpu_s / count for cpu_s, _ in runs], runs[0][1]))
    return results


def time_run(
    plan: ClusterPlan, batches: Sequence[pa.RecordBatch], policy: RoutingPolicy, seed: int
) -> tuple[float, int]:
    run = Simulation(plan, batches, policy, seed)
    _set_times(run)
    gc.collect()
    gc.freeze()
    start_s = time.process_time()
    for _ in run:
        pass
    took_s = time.process_time() - start_s
    gc.unfreeze()
    return took_s, run.summary.cold_starts


def _set_times(run: Simulation) -> None:
    """Give the models times, as after some time in service."""
    times_s = {"infer": _INFER_S, "share": _INFER_S, "preprocess": 0.001, "postprocess": 0.001}
    times_s |= {"network": 0.002, "load:remote": 0.25}
    run.set_measured_times({each.spec.key: times_s for each in run.registry.state.models.values()})


def cluster(size: Size) -> ClusterPlan:
    """Pods with memory for some forty models each, warm for the requests of the trace."""
    width = len(str(size.pods - 1))
    pods = itertools.cycle(f"n-{number:0{width}d}" for number in range(size.pods))
    models = []
    for number, share in enumerate(popularity(size)):
        copies = min(size.pods, max(2, math.ceil(_SPARE * share * size.pods)))
        models.append(
            {
                "name": f"t/m{number}",
                "size": "200MB",
                "assets": "0s",
                "infer": {1: f"{_INFER_S}s", 8: f"{3 * _INFER_S}s"},
                "at": dict.fromkeys(itertools.islice(pods, copies), "device"),
            }
        )
    nodes = [{"name": "n", "count": size.pods, "pods": [{"slots": 4, "memory": "8GB"}]}]
    return cluster_of({"nodes": nodes, "models": models}, source="benchmark")


def popularity(size: Size) -> list[float]:
    """Each model's share of the requests."""
    weights = 1.0 / np.arange(1, size.models + 1) ** _SKEW
    return [float(share) for share in weights / weights.sum()]


def trace(size: Size, count: int, seed: int) -> list[pa.RecordBatch]:
    """Arrivals at half of the devices' capacity."""
    rng = np.random.default_rng(seed)
    names = [f"m{number}" for number in range(size.models)]
    at_s = np.cumsum(rng.exponential(_INFER_S / _USED_SHARE / size.pods, count))
    chosen = rng.choice(size.models, count, p=popularity(size)).astype(np.int32)
    columns = [
        pa.array(at_s),
        pa.array(["t"] * count, pa.string()).dictionary_encode(),
        pa.DictionaryArray.from_arrays(pa.array(chosen), pa.array(names)),
        pa.array(np.ones(count, np.int64)),
        pa.array(np.zeros(count, np.int64)),
        pa.nulls(count, pa.float64()),
        pa.nulls(count, TRACE_SCHEMA.field("blocks").type),
    ]
    whole = pa.RecordBatch.from_arrays(columns, schema=TRACE_SCHEMA)
    return [whole.slice(offset, _ROWS) for offset in range(0, count, _ROWS)]


def summary(results: Sequence[Timed]) -> str:
    """A Markdown table."""
    lines = [
        "| pods | models | policy | requests per CPU second | lowest to highest | CPU us each |"
        " cold starts |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in results:
        rates = spread([1 / cpu_s for cpu_s in each.cpu_s])
        lines.append(
            f"| {each.size.pods:,} | {each.size.models:,} | {each.policy} | {rates.median:,.0f} |"
            f" {rates.lowest:,.0f} to {rates.highest:,.0f} | {1e6 / rates.median:.1f} |"
            f" {each.cold_starts:,} |"
        )
    return "\n".join(lines)
