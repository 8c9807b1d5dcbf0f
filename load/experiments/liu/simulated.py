"""Liu's cluster and workloads in the simulator: eight machines, a pod each, one slot.

What the thesis's seconds were is in `ModelTimings`; the policies and all else are production's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow.compute as pc

from load.experiments.liu.runs import SimpleRun, TimedAnswer, WinRun
from load.experiments.liu.scenarios import THESIS_SLEEP_S
from load.simulator.cluster.plan import ClusterPlan, ModelPlan, NodePlan, PodPlan
from load.simulator.simulation import Simulation
from load.stages import STAGES
from load.traces.batches import arrival_batch
from load.traces.name_columns import NameColumn
from registry.domain.model import ModelName, ModelPolicy, ModelSpec, RoutingPolicy, Tier
from registry.domain.profile import ProfilePoint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from load.experiments.liu.scenarios import WinScenario

PODS: Final = 8
FAST_NETWORK_S: Final = 0.002
"""Between two pods and back, a few bytes."""
TENANT: Final = "default"
PATIENCE_S: Final = 86_400.0
"""Nobody gives up, however long the line: all policies answer the same requests."""
MODEL_BYTES: Final = 10**9
"""Any size: loads take what `ModelTimings` says."""


@dataclass(frozen=True, slots=True)
class ModelTimings:
    """What a request of one model costs: Liu 2025, section 6.5, T_CS, T_I, T_P and T_N. Seconds."""

    load_s: float
    infer_s: float
    postprocess_s: float = 0.0
    network_s: float = 0.0
    """To another pod, beside what a few bytes take there and back."""


def model_of(
    name: str, times: ModelTimings, routing: RoutingPolicy = RoutingPolicy.AUTO
) -> ModelPlan:
    """A model that takes these times; every request is inferred alone, as in the thesis."""
    return ModelPlan(
        spec=ModelSpec(
            ModelName(TENANT, name),
            f"s3://simulated/{name}",
            policy=ModelPolicy(
                routing=routing, max_batch_size=1, queue_depth=10_000, queue_timeout_s=PATIENCE_S
            ),
        ),
        size_bytes=MODEL_BYTES,
        memory_bytes=MODEL_BYTES,
        infer=(ProfilePoint(1, times.infer_s),),
        preprocess_s=0.0,
        postprocess_s=times.postprocess_s,
        assets_s=0.0,
        load_s=dict.fromkeys((Tier.HOST, Tier.DISK, Tier.REMOTE), times.load_s),
        network_s=times.network_s,
    )


def cluster_of(models: Sequence[ModelPlan], *, models_per_pod: int = 10) -> ClusterPlan:
    """Eight machines with a pod each that serves one request at a time."""
    memory_bytes = models_per_pod * MODEL_BYTES
    nodes = tuple(
        NodePlan(f"pod-{number}", (PodPlan(f"pod-{number}", memory_bytes=memory_bytes),))
        for number in range(PODS)
    )
    return ClusterPlan(nodes, tuple(models), gateway_hop_s=0.0, pod_hop_s=FAST_NETWORK_S)


def tell_times(run: Simulation, known: Mapping[str, ModelTimings]) -> None:
    """Have the registry know the models' times (by name), as after some time in service."""
    specs = [record.spec for record in run.registry.state.models.values()]
    run.set_measured_times({spec.key: _measures(known[spec.name.name]) for spec in specs})


def _measures(times: ModelTimings) -> dict[str, float]:
    return {
        "infer": times.infer_s, "share": times.infer_s, "preprocess": 0.0,
        "postprocess": times.postprocess_s, "network": FAST_NETWORK_S + times.network_s,
        "load:remote": times.load_s,
    }  # fmt: skip


def trace_of(at_s: Sequence[float], models: Sequence[str]) -> list[pa.RecordBatch]:
    """A trace of one item per request."""
    names = NameColumn()
    codes = np.array([names.code(model) for model in models], np.int32)
    return [arrival_batch(np.asarray(at_s, np.float64), model=names.column(codes))]


def answers_of(run: Simulation) -> list[TimedAnswer]:
    """Run it; its answers in the order of their arrival."""
    rows = [row for batch in run for row in batch.to_pylist()]
    rows.sort(key=lambda row: (row["scheduled_s"], int(row["request_id"].rpartition("-")[2])))
    return [
        TimedAnswer(
            latency_s=row["finished_s"] - row["scheduled_s"],
            start=row["start"] or "",
            pod=row["entry_pod"] or "",
            predict_pod=row["predict_pod"] or "",
            reason=row["reason"] or "",
            request_id=row["request_id"],
            stages_s={stage: row[f"{stage}_ms"] / 1000 for stage in STAGES},
            body=None,
        )
        for row in rows
    ]


def latencies_s(run: Simulation) -> NDArray[np.float64]:
    """Run it; the latencies in the order in which requests ended."""
    batches = [
        pc.subtract(batch.column("finished_s"), batch.column("scheduled_s")) for batch in run
    ]
    return np.concatenate([each.to_numpy(zero_copy_only=False) for each in batches])


def sequential(
    name: str, times: ModelTimings, policy: str, seed: int, *, requests: int
) -> Simulation:
    """One request after the other, the model cold everywhere: spaced so that none overlap."""
    spacing_s = 2 * (times.load_s + times.infer_s)
    plan = cluster_of([model_of(name, times)])
    trace = trace_of([spacing_s * number for number in range(requests)], [name] * requests)
    return Simulation(plan, trace, RoutingPolicy(policy), seed)


def simple_run(
    name: str, times: ModelTimings, policy: str, seed: int, *, requests: int
) -> SimpleRun:
    """Section 6.2."""
    run = sequential(name, times, policy, seed, requests=requests)
    return SimpleRun(policy, seed, tuple(answers_of(run)))


def times_of(
    scenario: WinScenario, base: ModelTimings, sleep_s: float = THESIS_SLEEP_S
) -> ModelTimings:
    """A workload's times: the thesis's 5 s in post-processing, on the network, or on both."""
    return replace(
        base,
        postprocess_s=sleep_s if scenario.has_postprocessing else base.postprocess_s,
        network_s=sleep_s if scenario.has_slow_network else base.network_s,
    )


def win_run(
    scenario: WinScenario, times: ModelTimings, policy: str, seed: int, *, sleep_s: float
) -> WinRun:
    """Section 6.4: two concurrent requests, after a warming one where the scenario says so."""
    name = scenario.model
    at_s = [0.0, 0.0]
    if scenario.is_prewarmed:
        pause_s = 10 * (times.load_s + times.infer_s + times.postprocess_s + times.network_s)
        at_s = [0.0, pause_s, pause_s]
    plan = cluster_of([model_of(name, times)])
    run = Simulation(plan, trace_of(at_s, [name] * len(at_s)), RoutingPolicy(policy), seed)
    tell_times(run, {name: times})
    *warming, first, second = answers_of(run)
    return WinRun(
        scenario,
        policy,
        sleep_s,
        warming_s=sum(answer.latency_s for answer in warming),
        concurrent_s=max(first.latency_s, second.latency_s),
        answers=(first, second),
    )
