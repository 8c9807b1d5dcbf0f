"""A burst at a pool without pods, and a load that grows at once, on a running platform.

Latencies are those of a plain HTTP client; pods and loads are read from the platform's copy of the
registry as it changes.
"""

from __future__ import annotations

import asyncio
import time
from math import inf
from typing import TYPE_CHECKING, Final

import numpy as np

from load.experiments.elastic.live_burst import LiveBurst
from load.experiments.elastic.scenario import spike_arrivals
from load.experiments.elastic.spiking import spiked
from pilotlight.demo.calls import call, together
from pilotlight.demo.workloads import until_idle
from pilotlight.errors import RequestFailed
from registry.domain.model import ModelName, ModelPolicy, ModelSpec, RoutingPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence

    import httpx

    from load.experiments.elastic.scenario import Scenario
    from load.experiments.elastic.spiking import Spiked
    from load.experiments.liu.runs import TimedAnswer
    from pilotlight.platform.platform import Platform

PATIENCE_S: Final = 280.0
"""Of a request; all wait in the gateway together."""
_TO_ZERO_S: Final = 180.0
_LOOK_S: Final = 0.1
_WARM_REQUESTS: Final = 5
_SENTENCE: Final = "quick brown fox jumps over"


def burst_models(count: int, storage_uri: str) -> list[ModelSpec]:
    """Models that differ by name only."""
    return [
        ModelSpec(
            ModelName("default", f"burst-{number:03d}"),
            storage_uri,
            policy=ModelPolicy(queue_timeout_s=PATIENCE_S),
        )
        for number in range(count)
    ]


def spike_model(storage_uri: str) -> ModelSpec:
    """The model of the spike: as in the simulation, who finds no free pod waits."""
    policy = ModelPolicy(
        routing=RoutingPolicy.COLOCATION_QUEUEING,
        max_batch_size=1,
        queue_depth=100_000,
        queue_timeout_s=PATIENCE_S,
    )
    return ModelSpec(ModelName("default", "spike"), storage_uri, policy=policy)


class _ClusterObserver:
    """Pods and copies that were there at any time since it looks."""

    def __init__(self, platform: Platform) -> None:
        self._state = platform.watch.state
        self._began_s = time.perf_counter()
        self.pods: set[tuple[str, int]] = set()
        self.copies: set[tuple[str, str]] = set()
        self.first_pod_s = inf

    def look(self) -> None:
        """Note what is there now."""
        for name, pod in self._state.pods.items():
            if pod.is_accepting:
                self.first_pod_s = min(self.first_pod_s, time.perf_counter() - self._began_s)
            self.pods.add((name, pod.epoch))
        for key, held in self._state.residency.items():
            self.copies |= {
                (key, pod) for pod, each in held.items() if each.is_warm or each.is_warming
            }


async def run_burst(
    platform: Platform, client: httpx.AsyncClient, specs: Sequence[ModelSpec], *, is_known: bool
) -> LiveBurst:
    """Wait until there are no pods, then ask for every model once, all at the same moment."""
    await platform.until(
        lambda: not platform.watch.state.pods, timeout_s=_TO_ZERO_S, what="no pods"
    )
    witness = _ClusterObserver(platform)
    platform.watch.subscribe(witness.look)
    answers = await together(*(_ask(client, spec) for spec in specs))
    await until_idle(platform)
    await platform.until(
        lambda: (
            not any(
                each.is_warming
                for held in platform.watch.state.residency.values()
                for each in held.values()
            )
        ),
        timeout_s=_TO_ZERO_S,
        what="no load under way",
    )
    witness.look()
    return LiveBurst(
        is_known=is_known,
        took_s=tuple(sorted(each.latency_s for each in answers)),
        loads=len(witness.copies),
        pods=len(witness.pods),
        first_pod_s=witness.first_pod_s,
    )


async def run_spike(
    platform: Platform, client: httpx.AsyncClient, spec: ModelSpec, scenario: Scenario, seed: int
) -> Spiked:
    """Send the scenario's arrivals at their times to a pool of its first pods, the model warm."""
    headers = {"x-pilotlight-simulate": f"preprocess={scenario.infer_s:g}"}
    for _ in range(_WARM_REQUESTS):
        await _ask(client, spec, headers)
    await platform.until(
        lambda: len(platform.watch.state.pods) == scenario.first_pods and _is_warm(platform, spec),
        timeout_s=_TO_ZERO_S,
        what=f"{scenario.first_pods} pods, with the model",
    )
    at_s = spike_arrivals(scenario, seed)
    began_s = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        looking = group.create_task(_count_pods(platform, began_s, scenario.length_s))
        asked = []
        for each in at_s:
            await asyncio.sleep(began_s + float(each) - time.perf_counter())
            asked.append(group.create_task(_took_s(client, spec, headers)))
    took_s = np.array([task.result() for task in asked])
    return spiked(scenario, at_s, took_s, looking.result())


def _is_warm(platform: Platform, spec: ModelSpec) -> bool:
    return any(each.is_warm for each in platform.watch.state.holders(spec.key).values())


async def _count_pods(
    platform: Platform, began_s: float, length_s: float
) -> list[tuple[float, int]]:
    """Pods that take requests, by looking every tenth of a second."""
    found = []
    for look in range(int(length_s / _LOOK_S)):
        await asyncio.sleep(began_s + look * _LOOK_S - time.perf_counter())
        pods = platform.watch.state.pods.values()
        found.append((look * _LOOK_S, sum(pod.is_accepting for pod in pods)))
    return found


async def _took_s(client: httpx.AsyncClient, spec: ModelSpec, headers: dict[str, str]) -> float:
    try:
        return (await _ask(client, spec, headers)).latency_s
    except RequestFailed:
        return inf


async def _ask(
    client: httpx.AsyncClient, spec: ModelSpec, headers: dict[str, str] | None = None
) -> TimedAnswer:
    path = f"/v1/models/{spec.name.name}:predict"
    return await call(client, path, {"instances": [_SENTENCE]}, headers)
