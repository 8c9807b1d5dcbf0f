"""Elasticity experiments on a running platform: a burst to a pool without pods, and a load spike.

Latencies are measured by a plain HTTP client; pods and loads are read from the watched state of
the cluster.
"""

import asyncio
import time
from collections.abc import Sequence
from math import inf
from typing import Final

import numpy as np

from pilotlight.errors import RequestFailed
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName, ModelPolicy, ModelSpec, RoutingPolicy
from research.demo.session import LiveSession, gather_requests
from research.experiments.elastic.burst_run import LiveBurst
from research.experiments.elastic.spike_run import SpikeResult, measure_spike
from research.experiments.elastic.spike_scenario import SpikeScenario, spike_arrivals

_QUEUE_TIMEOUT_S: Final = 280.0
"""Long enough for all requests of a burst, which wait in the gateway at the same time."""
_SCALING_TIMEOUT_S: Final = 180.0
_POLL_INTERVAL_S: Final = 0.1
_WARM_REQUESTS: Final = 5
_SENTENCE: Final = "quick brown fox jumps over"


def burst_models(count: int, storage_uri: str) -> list[ModelSpec]:
    """Models that differ only in their names."""
    return [
        ModelSpec(
            ModelName("default", f"burst-{number:03d}"),
            storage_uri,
            policy=ModelPolicy(queue_timeout_s=_QUEUE_TIMEOUT_S),
        )
        for number in range(count)
    ]


def spike_model(storage_uri: str) -> ModelSpec:
    """The model of the spike; requests queue when no pod is free, as in the simulation."""
    policy = ModelPolicy(
        routing=RoutingPolicy.COLOCATION_QUEUEING,
        max_batch_size=1,
        queue_depth=100_000,
        queue_timeout_s=_QUEUE_TIMEOUT_S,
    )
    return ModelSpec(ModelName("default", "spike"), storage_uri, policy=policy)


class _ClusterObserver:
    """Collects all pods and warm copies that exist at any time during an experiment."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._started_s = time.perf_counter()
        self.pods: set[tuple[str, int]] = set()
        self.copies: set[tuple[str, str]] = set()
        self.first_pod_s = inf

    def observe(self) -> None:
        for name, pod in self._state.pods.items():
            if pod.is_accepting:
                self.first_pod_s = min(self.first_pod_s, time.perf_counter() - self._started_s)
            self.pods.add((name, pod.epoch))
        for key, held in self._state.residency.items():
            self.copies |= {
                (key, pod) for pod, each in held.items() if each.is_warm or each.is_warming
            }


async def run_burst(
    session: LiveSession, specs: Sequence[ModelSpec], *, is_known: bool
) -> LiveBurst:
    """Wait until no pod runs, then send one request per model, all at the same time."""
    cluster = session.platform.cluster
    await cluster.wait_until(
        lambda: not cluster.state.pods, timeout_s=_SCALING_TIMEOUT_S, what="no pods"
    )
    observer = _ClusterObserver(cluster.state)
    cluster.watch.subscribe(observer.observe)
    responses = await gather_requests(*(session.predict(spec, _SENTENCE) for spec in specs))
    await session.wait_idle()
    await cluster.wait_until(
        lambda: (
            not any(
                each.is_warming
                for held in cluster.state.residency.values()
                for each in held.values()
            )
        ),
        timeout_s=_SCALING_TIMEOUT_S,
        what="no model is loading",
    )
    observer.observe()
    return LiveBurst(
        is_known=is_known,
        took_s=tuple(sorted(each.latency_s for each in responses)),
        loads=len(observer.copies),
        pods=len(observer.pods),
        first_pod_s=observer.first_pod_s,
    )


async def run_spike(
    session: LiveSession, spec: ModelSpec, scenario: SpikeScenario, seed: int
) -> SpikeResult:
    """Send the scenario's arrivals at their times, to a pool of `first_pods` with a warm model."""
    await session.create_models([spec])
    cluster = session.platform.cluster
    headers = {"x-pilotlight-simulate": f"preprocess={scenario.infer_s:g}"}
    for _ in range(_WARM_REQUESTS):
        await session.predict(spec, _SENTENCE, headers)
    await cluster.wait_until(
        lambda: len(cluster.state.pods) == scenario.first_pods and _is_warm(cluster.state, spec),
        timeout_s=_SCALING_TIMEOUT_S,
        what=f"{scenario.first_pods} pods and a warm model",
    )
    at_s = spike_arrivals(scenario, seed)
    started_s = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        pod_counts = group.create_task(_count_pods(cluster.state, started_s, scenario.length_s))
        requests = []
        for each in at_s:
            await asyncio.sleep(started_s + float(each) - time.perf_counter())
            requests.append(group.create_task(_latency_s(session, spec, headers)))
    latency_s = np.array([task.result() for task in requests])
    return measure_spike(scenario, at_s, latency_s, pod_counts.result())


def _is_warm(state: ClusterState, spec: ModelSpec) -> bool:
    return any(each.is_warm for each in state.holders(spec.key).values())


async def _count_pods(
    state: ClusterState, started_s: float, length_s: float
) -> list[tuple[float, int]]:
    """Times and numbers of accepting pods, polled every tenth of a second."""
    counts = []
    for index in range(int(length_s / _POLL_INTERVAL_S)):
        await asyncio.sleep(started_s + index * _POLL_INTERVAL_S - time.perf_counter())
        accepting = sum(pod.is_accepting for pod in state.pods.values())
        counts.append((index * _POLL_INTERVAL_S, accepting))
    return counts


async def _latency_s(session: LiveSession, spec: ModelSpec, headers: dict[str, str]) -> float:
    """Infinite for a failed request."""
    try:
        return (await session.predict(spec, _SENTENCE, headers)).latency_s
    except RequestFailed:
        return inf
