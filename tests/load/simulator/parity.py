"""Decisions for one trace, live and simulated.

The live platform has a real gateway, a real Redis, and stub pods with known times. The simulated
cluster has the same pods and times. Both use the same random numbers.
"""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from load.simulator.cluster.cluster_file import cluster_of
from load.simulator.simulation import Simulation
from registry.domain.model import ModelSpec, RoutingPolicy
from registry.redis.client import Registry
from tests import servers
from tests.gateway.gateway_harness import GatewayHarness, running_harness
from tests.load.simulator.traces import Row, trace

PODS = ("n-0", "n-1", "n-2", "n-3")
_pools = itertools.count(1)


@dataclass(frozen=True)
class Times:
    """Times of the stub pods in seconds, and the measurements in the registry."""

    load_s: float
    infer_s: float
    around_s: float
    measured: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Decision:
    """A decision as the client reads it from the response."""

    model: str
    status: int
    policy: str | None
    reason: str | None
    entry: str | None
    predict: str | None
    start: str | None


def simulated(
    rows: Sequence[Row], times: Times, policies: Mapping[str, RoutingPolicy]
) -> list[Decision]:
    run = simulation(rows, times, policies)
    found = [row for batch in run for row in batch.to_pylist()]
    found.sort(key=lambda row: int(row["request_id"].rpartition("-")[2]))
    return [
        Decision(
            row["model"],
            row["status"],
            row["policy"],
            row["reason"],
            row["entry_pod"],
            row["predict_pod"],
            row["start"],
        )
        for row in found
    ]


def simulation(
    rows: Sequence[Row], times: Times, policies: Mapping[str, RoutingPolicy]
) -> Simulation:
    document = {
        "nodes": [{"name": "n", "count": len(PODS), "pods": [{"slots": 1}]}],
        "models": [
            {
                "name": model,
                "annotations": {"policy": policy.value},
                "infer": {1: f"{times.infer_s}s"},
                "preprocess": "0s",
                "postprocess": f"{times.around_s}s",
                "assets": "0s",
                "load": {"remote": f"{times.load_s}s", "disk": f"{times.load_s}s"},
                "batching": False,
            }
            for model, policy in policies.items()
        ],
        "network": {"gateway_hop": "0s", "pod_hop": "0s"},
        "heartbeat": "24h",  # stub pods report nothing either
    }
    run = Simulation(cluster_of(document, source="parity"), trace(rows))
    run.set_measured_times(
        {record.spec.key: times.measured for record in run.registry.state.models.values()}
    )
    return run


class Live:
    """A new gateway, whose random numbers start anew, with stub pods."""

    def __init__(
        self, harness: GatewayHarness, times: Times, policies: Mapping[str, RoutingPolicy]
    ) -> None:
        self._harness = harness
        self._specs: dict[str, ModelSpec] = {
            model: harness.declare(model, routing=policy) for model, policy in policies.items()
        }
        pods = harness.start_pods(*PODS, load_s=times.load_s)
        samples = [
            [spec.key, measure, [seconds]]
            for spec in self._specs.values()
            for measure, seconds in times.measured.items()
        ]
        if samples:
            pods.control(PODS[0], "samples", json.dumps(samples))
            servers.wait_until(lambda: self._are_known(times), what="samples known")
            harness.wait_synced()
        self._stub_times = f"delay={times.infer_s},around={times.around_s}"

    def _are_known(self, times: Times) -> bool:
        async def check(registry: Registry) -> bool:
            state = await registry.cluster()
            return all(
                state.measured(spec.key).get(measure) is not None
                for spec in self._specs.values()
                for measure in times.measured
            )

        return bool(self._harness.run(check))

    def settle(self) -> None:
        """Return when the gateway has received all published changes."""
        self._harness.wait_synced()

    def ask_soon(self, model: str) -> Future[Decision]:
        """Send one request in a thread."""
        return self._harness.threads.submit(self.ask, model)

    def ask(self, model: str) -> Decision:
        """Send one request."""
        answer = self._harness.predict(self._specs[model], x_test=self._stub_times)
        headers = answer.headers
        return Decision(
            model,
            answer.status_code,
            headers.get("x-pilotlight-policy"),
            headers.get("x-pilotlight-reason"),
            headers.get("x-pilotlight-pod"),
            headers.get("x-pilotlight-predict-pod"),
            headers.get("x-pilotlight-start"),
        )


@contextmanager
def live(folder: Path, times: Times, policies: Mapping[str, RoutingPolicy]) -> Iterator[Live]:
    """A platform with a new gateway, and its pods."""
    with live_gateway(folder) as harness:
        yield Live(harness, times, policies)


@contextmanager
def live_gateway(folder: Path) -> Iterator[GatewayHarness]:
    """A platform with a new gateway."""
    pool = f"parity-{next(_pools)}"
    with (
        servers.redis_server(folder / "redis") as redis,
        httpx.Client(trust_env=False, timeout=120) as client,
        running_harness(folder / "gateway", redis.url, pool, client) as harness,
    ):
        yield harness
