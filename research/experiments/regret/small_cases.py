"""Small cases, for which the least possible latency is known, under our policies.

Two pods of one slot, four models, twelve requests. Pods are so far apart that remote proxying never
pays: the search for the optimum knows no proxying.
"""

from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Final

import numpy as np
import pyarrow as pa

from load.simulator.cluster.plan import ClusterPlan, ModelPlan, NodePlan, PodPlan
from load.simulator.simulation import Simulation
from load.traces.batches import NameColumn, arrival_batch
from load.traces.parameters import Seed, zipf_shares
from registry.domain.model import ModelName, ModelPolicy, ModelSpec, RoutingPolicy, Tier
from registry.domain.pod import ProfilePoint
from research.experiments.harness.experiment import Settings, Table
from research.experiments.harness.parallel_map import parallel_map
from research.experiments.regret.optimum import SmallCase, optimum
from research.experiments.regret.runs import AUTO, FIXED

CASES: Final = 200
QUICK_CASES: Final = 40
MAX_RATIO: Final = 1.25
_COMPARED: Final = (*(name for name in FIXED if name != "remote-proxy"), AUTO)
_DESIGN: Final = Seed(15)
_REQUESTS: Final = 12
_MODELS: Final = 4
_BYTES: Final = 10**6
_FAR_S: Final = 1000.0


@dataclass(frozen=True, slots=True)
class SmallResult:
    number: int
    optimum_s: float
    """Mean latency, as below."""
    mean_s: dict[str, float]
    """By policy."""


def drawn_case(number: int) -> SmallCase:
    rng = _DESIGN.derive("case", number).rng()
    infer_s = float(np.exp(rng.uniform(np.log(0.02), np.log(0.3))))
    load_s = infer_s * float(np.exp(rng.uniform(0.0, np.log(100.0))))
    utilisation, miss = float(rng.uniform(0.1, 1.0)), 0.4
    gap_s = (infer_s + miss * load_s) / 2 / utilisation
    at_s = np.cumsum(rng.exponential(gap_s, _REQUESTS)).tolist()
    shares = zipf_shares(_MODELS, float(rng.uniform(0.0, 1.2)))
    names = [f"model-{each}" for each in range(_MODELS)]
    models = [names[each] for each in rng.choice(_MODELS, _REQUESTS, p=shares)]
    return SmallCase(
        tuple(zip(at_s, models, strict=True)),
        load_s=dict.fromkeys(names, load_s),
        infer_s=dict.fromkeys(names, infer_s),
        places=int(rng.integers(1, 3)),
    )


def simulated_rows(case: SmallCase, policy: RoutingPolicy) -> list[dict[str, Any]]:
    """The records of a run of the case, in the order of arrival. Times of models are measured."""
    names = NameColumn()
    codes = np.array([names.code(model) for _, model in case.requests], np.int32)
    at_s = np.array([at for at, _ in case.requests])
    run = Simulation(
        _cluster(case), [arrival_batch(at_s, model=names.column(codes))], policy, seed=1
    )
    run.set_measured_times(
        {
            each.spec.key: {
                "infer": each.infer_s(1),
                "share": each.infer_s(1),
                "network": _FAR_S,
                "preprocess": 0.0,
                "postprocess": 0.0,
                **{f"load:{tier}": load_s for tier, load_s in each.load_s.items()},
            }
            for each in _cluster(case).models
        }
    )
    rows = pa.Table.from_batches(list(run)).to_pylist()
    return sorted(rows, key=lambda row: row["scheduled_s"])


def _cluster(case: SmallCase) -> ClusterPlan:
    return ClusterPlan(
        tuple(
            NodePlan(name, (PodPlan(name, slots=1, memory_bytes=case.places * _BYTES),))
            for name in (f"pod-{number}" for number in range(case.pods))
        ),
        tuple(
            ModelPlan(
                ModelSpec(
                    ModelName("default", name),
                    f"s3://models/{name}",
                    policy=ModelPolicy(max_batch_size=1, queue_timeout_s=1e6),
                ),
                size_bytes=_BYTES,
                memory_bytes=_BYTES,
                infer=(ProfilePoint(1, infer_s),),
                preprocess_s=0.0,
                postprocess_s=0.0,
                assets_s=0.0,
                load_s=dict.fromkeys((Tier.REMOTE, Tier.DISK, Tier.HOST), case.load_s[name]),
                is_batched=False,
            )
            for name, infer_s in case.infer_s.items()
        ),
        gateway_hop_s=0.0,
        pod_hop_s=_FAR_S,
    )


def solve(number: int) -> SmallResult:
    case = drawn_case(number)
    mean_s = {}
    for name in _COMPARED:
        rows = simulated_rows(case, RoutingPolicy(name))
        mean_s[name] = fmean(row["finished_s"] - row["scheduled_s"] for row in rows)
    return SmallResult(number, optimum(case).total_s / len(case.requests), mean_s)


def optimum_table(settings: Settings) -> Table:
    """Ratios of mean latencies to the optimum's."""
    numbers = range(QUICK_CASES if settings.is_quick else CASES)
    found = parallel_map(solve, numbers, settings, what="small cases")
    rows = []
    for name in _COMPARED:
        ratios = [each.mean_s[name] / each.optimum_s for each in found]
        rows.append(
            (name, fmean(ratios), median(ratios), float(np.quantile(ratios, 0.95)), max(ratios))
        )
    return Table(
        f"Mean latency over that of the offline optimum: {len(found)} cases of two pods, four "
        f"models, twelve requests; mark: auto's mean ratio <= {MAX_RATIO}",
        ("policy", "mean ratio", "median", "95 %", "worst"),
        tuple(rows),
    )
