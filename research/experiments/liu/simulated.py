"""Liu's cluster and workloads in the simulator: eight machines with a pod of one slot each.

Requests take the times of `ModelTimings`; policies and everything else are those of production.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from load.simulator.cluster.plan import ClusterPlan, ModelPlan, NodePlan, PodPlan
from load.simulator.simulation import Simulation
from load.traces.batches import NameColumn, arrival_batch
from registry.domain.model import ModelName, ModelPolicy, ModelSpec, RoutingPolicy, Tier
from registry.domain.pod import STAGES, ProfilePoint
from research.demo import THESIS_SLEEP_S, SimpleRun, TimedResponse, WinRun, WinScenario

PODS: Final = 8
_FAST_NETWORK_S: Final = 0.002
"""A few bytes to another pod and back."""
_QUEUE_TIMEOUT_S: Final = 86_400.0
"""No request times out, so all policies serve the same requests."""
_MODEL_BYTES: Final = 10**9
"""Any size: loads take the time in `ModelTimings`."""


@dataclass(frozen=True, slots=True)
class ModelTimings:
    """Times of one model: Liu 2025, section 6.5, T_CS, T_I, T_P and T_N. Seconds."""

    load_s: float
    infer_s: float
    postprocess_s: float = 0.0
    network_s: float = 0.0
    """Network time to another pod, in addition to `_FAST_NETWORK_S`."""

    @property
    def settled_s(self) -> float:
        """A pause after a request that is certain to end before it."""
        return 10 * (self.load_s + self.infer_s + self.postprocess_s + self.network_s)


def simulation_of(
    requests: Sequence[tuple[float, str]],
    timings: Mapping[str, ModelTimings],
    policy: RoutingPolicy | None,
    seed: int,
    *,
    models_per_pod: int = 10,
    is_known: bool = True,
    routing: Mapping[str, RoutingPolicy] | None = None,
) -> Simulation:
    """A run of requests (time and model) for models by name.

    `is_known`: the models' times are measured, as after some time in service. `routing` is each
    model's own policy, for runs without a `policy`.
    """
    models = tuple(
        _model(name, times, (routing or {}).get(name, RoutingPolicy.AUTO))
        for name, times in timings.items()
    )
    nodes = tuple(
        NodePlan(name, (PodPlan(name, slots=1, memory_bytes=models_per_pod * _MODEL_BYTES),))
        for name in (f"pod-{number}" for number in range(PODS))
    )
    plan = ClusterPlan(nodes, models, gateway_hop_s=0.0, pod_hop_s=_FAST_NETWORK_S)
    names = NameColumn()
    codes = np.array([names.code(model) for _, model in requests], np.int32)
    at_s = np.array([at for at, _ in requests])
    trace = [arrival_batch(at_s, model=names.column(codes))]
    run = Simulation(plan, trace, policy, seed)
    if is_known:
        run.set_measured_times(
            {each.spec.key: _measures(timings[each.spec.name.name]) for each in models}
        )
    return run


def _model(name: str, times: ModelTimings, routing: RoutingPolicy) -> ModelPlan:
    """Every request is inferred alone, as in the thesis."""
    policy = ModelPolicy(
        routing=routing, max_batch_size=1, queue_depth=10_000, queue_timeout_s=_QUEUE_TIMEOUT_S
    )
    return ModelPlan(
        ModelSpec(ModelName("default", name), f"s3://simulated/{name}", policy=policy),
        size_bytes=_MODEL_BYTES,
        memory_bytes=_MODEL_BYTES,
        infer=(ProfilePoint(1, times.infer_s),),
        preprocess_s=0.0,
        postprocess_s=times.postprocess_s,
        assets_s=0.0,
        load_s=dict.fromkeys((Tier.HOST, Tier.DISK, Tier.REMOTE), times.load_s),
        network_s=times.network_s,
    )


def _measures(times: ModelTimings) -> dict[str, float]:
    return {
        "infer": times.infer_s,
        "share": times.infer_s,
        "preprocess": 0.0,
        "postprocess": times.postprocess_s,
        "network": _FAST_NETWORK_S + times.network_s,
        "load:remote": times.load_s,
    }


def run_responses(run: Simulation) -> list[TimedResponse]:
    """Runs the simulation; responses in the order of arrival."""
    rows = [row for batch in run for row in batch.to_pylist()]
    rows.sort(key=lambda row: (row["scheduled_s"], int(row["request_id"].rpartition("-")[2])))
    return [
        TimedResponse(
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


def run_latencies_s(run: Simulation) -> NDArray[np.float64]:
    """Runs the simulation; latencies in the order in which requests ended."""
    batches = [
        pc.subtract(batch.column("finished_s"), batch.column("scheduled_s")) for batch in run
    ]
    return np.concatenate([each.to_numpy(zero_copy_only=False) for each in batches])


def sequential(
    name: str, times: ModelTimings, policy: str, seed: int, *, requests: int
) -> Simulation:
    """Requests far enough apart that none overlap, the model cold on all pods at the start."""
    spacing_s = 2 * (times.load_s + times.infer_s)
    trace = [(spacing_s * number, name) for number in range(requests)]
    return simulation_of(trace, {name: times}, RoutingPolicy(policy), seed, is_known=False)


def simple_run(
    name: str, times: ModelTimings, policy: str, seed: int, *, requests: int
) -> SimpleRun:
    """Section 6.2."""
    run = sequential(name, times, policy, seed, requests=requests)
    return SimpleRun(policy, seed, tuple(run_responses(run)))


def scenario_timings(
    scenario: WinScenario, base: ModelTimings, sleep_s: float = THESIS_SLEEP_S
) -> ModelTimings:
    """A workload's times: the thesis's 5 s in postprocessing, on the network, or in both."""
    return replace(
        base,
        postprocess_s=sleep_s if scenario.has_postprocessing else base.postprocess_s,
        network_s=sleep_s if scenario.has_slow_network else base.network_s,
    )


def win_run(
    scenario: WinScenario, times: ModelTimings, policy: str, seed: int, *, sleep_s: float
) -> WinRun:
    """Section 6.4: two concurrent requests, after a warming one if the scenario has it."""
    name, pause_s = scenario.model, times.settled_s
    at_s = [0.0, pause_s, pause_s] if scenario.is_prewarmed else [0.0, 0.0]
    requests = [(each, name) for each in at_s]
    run = simulation_of(requests, {name: times}, RoutingPolicy(policy), seed)
    *warming, first, second = run_responses(run)
    return WinRun(
        scenario,
        policy,
        sleep_s,
        warming=warming[0] if warming else None,
        concurrent_s=max(first.latency_s, second.latency_s),
        answers=(first, second),
    )
