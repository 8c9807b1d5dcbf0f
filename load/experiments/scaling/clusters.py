"""A simulated cluster of any size under its load: cold starts, fairness, time of a decision.

Every pod has room for twice its share of the models; at the start each model is warm at one pod, in
turn, whatever its popularity, which is Zipf's. Models are dealt to ten tenants in turn. What is
timed is this thread's CPU time.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from gateway.routing.route_request import IncomingRequest, route_request
from load.report.summary import jain
from load.simulator.cluster.plan import ClusterPlan, ModelPlan, NodePlan, PodPlan
from load.simulator.simulation import Simulation
from load.traces.batches import arrival_batch
from load.traces.name_columns import NameColumn
from registry.domain.model import ModelName, ModelSpec, Tier
from registry.domain.profile import ProfilePoint

if TYPE_CHECKING:
    import pyarrow as pa

    from registry.domain.model import RoutingPolicy

TENANTS: Final = 10
INFER_S: Final = 0.02
_BUSY_SHARE: Final = 0.5
_SLOTS: Final = 4
_MODEL_BYTES: Final = 250 * 10**6
_SKEW: Final = 0.9
_DEADLINE_S: Final = 1.0
_ROWS: Final = 2_000


@dataclass(frozen=True, slots=True)
class ClusterSizeTask:
    """One run."""

    pods: int
    models: int
    requests: int
    policy: RoutingPolicy
    seed: int


@dataclass(frozen=True, slots=True)
class Sized:
    """What it came to."""

    cold_starts: int
    p50_s: float
    p99_s: float
    in_time: float
    """Share of requests answered within the deadline."""
    fairness: float
    """Jain's index of the tenants' shares of requests answered in time."""
    decision_p50_us: float
    decision_p95_us: float
    request_us: float
    """CPU time of the whole simulation per request."""


def play_size(task: ClusterSizeTask) -> Sized:
    """Simulate one size under one policy."""
    run = Simulation(_cluster(task), _trace(task), task.policy, task.seed)
    tenants: Counter[str] = Counter()
    good: Counter[str] = Counter()
    decisions_us: list[float] = []
    seen, began_s, apart_s = 0, time.thread_time(), 0.0
    for batch in run:
        seen += batch.num_rows
        pause_s = time.thread_time()
        _count(batch, tenants, good)
        if not decisions_us and seen >= task.requests / 2:
            decisions_us = _decisions_us(run, task)
        apart_s += time.thread_time() - pause_s
    took_s = time.thread_time() - began_s - apart_s
    summary = run.summary
    p50_us, p95_us = np.percentile(decisions_us, (50, 95))
    return Sized(
        cold_starts=summary.cold_starts,
        p50_s=summary.quantile_s(0.5),
        p99_s=summary.quantile_s(0.99),
        in_time=good.total() / max(1, tenants.total()),
        fairness=jain([good[tenant] / tenants[tenant] for tenant in tenants]) or 0.0,
        decision_p50_us=float(p50_us),
        decision_p95_us=float(p95_us),
        request_us=1e6 * took_s / task.requests,
    )


def _count(batch: pa.RecordBatch, tenants: Counter[str], good: Counter[str]) -> None:
    names = batch.column("tenant").to_pylist()
    tenants.update(names)
    good.update(
        name
        for name, status in zip(names, batch.column("status").to_pylist(), strict=True)
        if status == 200
    )


def _decisions_us(run: Simulation, task: ClusterSizeTask) -> list[float]:
    """CPU time of decisions about random models, on the cluster as it is amid the run."""
    rng = random.Random(f"{task.seed}:decisions")
    state, now_s = run.registry.state, run.events.now_s
    names = list(state.models)
    times_us = []
    for sequence in range(min(1000, task.requests)):
        name, draw = rng.choice(names), rng.random()
        began_ns = time.thread_time_ns()
        arrival = IncomingRequest(
            "d", name, now_s, draw, sequence, task.policy, now_s + _DEADLINE_S
        )
        route_request(arrival, state.models, state, now_s=now_s)
        times_us.append((time.thread_time_ns() - began_ns) / 1000)
    return times_us


def _cluster(task: ClusterSizeTask) -> ClusterPlan:
    places = max(2, -(-2 * task.models // task.pods))
    width = len(str(task.pods - 1))
    nodes = tuple(
        NodePlan(name, (PodPlan(name, slots=_SLOTS, memory_bytes=places * _MODEL_BYTES),))
        for name in (f"pod-{number:0{width}d}" for number in range(task.pods))
    )
    points = (ProfilePoint(1, INFER_S), ProfilePoint(8, 3 * INFER_S))
    models = tuple(
        ModelPlan(
            ModelSpec(ModelName(_tenant(number), _model(number)), f"s3://simulated/{number}"),
            size_bytes=_MODEL_BYTES,
            memory_bytes=_MODEL_BYTES,
            infer=points,
            at={nodes[number % task.pods].name: Tier.DEVICE},
        )
        for number in range(task.models)
    )
    return ClusterPlan(nodes, models)


def _trace(task: ClusterSizeTask) -> list[pa.RecordBatch]:
    rng = np.random.default_rng(task.seed)
    weights = 1.0 / np.arange(1, task.models + 1) ** _SKEW
    chosen = rng.choice(task.models, task.requests, p=weights / weights.sum())
    at_s = np.cumsum(rng.exponential(INFER_S / _BUSY_SHARE / task.pods, task.requests))
    tenants = NameColumn(_tenant(number) for number in range(min(TENANTS, task.models)))
    models = NameColumn(_model(number) for number in range(task.models))
    whole = arrival_batch(
        at_s,
        model=models.column(chosen.astype(np.int32)),
        tenant=tenants.column((chosen % TENANTS).astype(np.int32)),
        deadline_s=np.full(task.requests, _DEADLINE_S),
    )
    return [whole.slice(offset, _ROWS) for offset in range(0, task.requests, _ROWS)]


def _tenant(number: int) -> str:
    return f"tenant-{number % TENANTS}"


def _model(number: int) -> str:
    return f"model-{number}"
