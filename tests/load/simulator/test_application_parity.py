"""One trace of an application's requests, live and simulated: same windows, same plans."""

import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
import pytest

from load.simulator.simulation import Simulation
from registry.domain.application import AccuracyProfile, ApplicationSpec, SelectionPolicy
from registry.domain.model import ModelName
from registry.domain.pod import PodReport, Samples
from registry.redis.client import Registry
from tests.gateway.gateway_harness import GatewayHarness
from tests.load.simulator.parity import live_gateway
from tests.load.simulator.small_cluster import cluster, records
from tests.load.simulator.test_parity import PACES
from tests.load.simulator.traces import trace
from variants.planning.window import SelectionPlan, Window

CONFUSIONS = {"app-fast": ((6, 4), (4, 6)), "app-slow": ((9, 1), (1, 9))}
INFER_S = {"app-fast": 0.01, "app-slow": 0.2}
WINDOW_S = 0.4
ARRIVALS = ((0.0, 3.0), (0.05, 0.45), (0.1, 1.2), (0.15, 3.0), (1.5, 0.5), (1.55, 3.0), (1.6, 0.42))
"""Time and deadline in seconds: two windows, each with requests that have time and others.

These times, and the others here, are multiplied by a pace of `PACES`.
"""


def _live(folder: Path, pace: float) -> list[tuple[str, int]]:
    """Variant, and requests in the window, of each request."""
    with live_gateway(folder) as harness:
        _declare(harness, pace)
        started_s, sent = time.monotonic(), []
        for at, (at_s, deadline_s) in enumerate(ARRIVALS):
            time.sleep(max(0.0, started_s + pace * at_s - time.monotonic()))
            sent.append(harness.threads.submit(_ask, harness, at, pace * deadline_s))
        return [_planned(harness, each) for each in sent]


def _declare(harness: GatewayHarness, pace: float) -> None:
    specs = [harness.declare(name, application="app") for name in CONFUSIONS]
    harness.start_pods("n", slots=4, warm=tuple(specs))

    async def profile(registry: Registry) -> None:
        await registry.put_applications(
            [
                ApplicationSpec(
                    ModelName("default", "app"),
                    ("no", "yes"),
                    window_s=pace * WINDOW_S,
                    is_window_fixed=True,
                    policy=SelectionPolicy.LO_EDF,
                )
            ]
        )
        for spec in specs:
            accuracy = AccuracyProfile(spec.key, ("no", "yes"), CONFUSIONS[spec.name.name])
            assert await registry.put_accuracy(accuracy)
        samples = tuple(
            Samples(spec.key, measure, (seconds,) * 4)
            for spec in specs
            for measure, seconds in (
                ("infer", pace * INFER_S[spec.name.name]),
                ("preprocess", pace * 0.001),
                ("postprocess", pace * 0.001),
            )
        )
        epoch = (await registry.cluster()).pods["n"].epoch
        await registry.heartbeat("n", epoch, PodReport(samples=samples))

    harness.run(profile)
    harness.wait_synced()


def _ask(harness: GatewayHarness, at: int, deadline_s: float) -> httpx.Response:
    return harness.client.post(
        f"{harness.gateway.url}/v1/models/app:predict",
        content=b"{}",
        headers={"x-request-id": f"r{at}", "x-pilotlight-deadline-ms": f"{deadline_s * 1000:g}"},
    )


def _planned(harness: GatewayHarness, sent: Future[httpx.Response]) -> tuple[str, int]:
    response = sent.result()
    if response.status_code != 200:
        return response.text, 0
    explained: dict[str, Any] = harness.explain(response.headers["x-request-id"])["selection"]
    return response.headers["x-pilotlight-variant"], explained["requests_in_window"]


def _simulated(pace: float) -> list[tuple[str, int]]:
    plan = cluster(
        {"pods": [{"slots": 4}]},
        *(
            {
                "name": name,
                "infer": {1: f"{pace * INFER_S[name]}s"},
                "preprocess": f"{pace}ms",
                "postprocess": f"{pace}ms",
                "assets": "0s",
                "size": "1MB",
                "batching": False,
                "annotations": {"application": "app"},
                "at": {"n": "device"},
            }
            for name in CONFUSIONS
        ),
        applications=[
            {
                "name": "app",
                "spec": {
                    "classes": ["no", "yes"],
                    "policy": "lo-edf",
                    "window": {"length": f"{pace * WINDOW_S}s", "fixed": True},
                },
                "profile": {name: list(map(list, rows)) for name, rows in CONFUSIONS.items()},
            }
        ],
    )
    rows = [(pace * at_s, "app") for at_s, _ in ARRIVALS]
    run = Simulation(
        plan, trace(rows, deadline_s=[pace * deadline_s for _, deadline_s in ARRIVALS])
    )
    assert run.applications is not None
    windows: list[tuple[Window, SelectionPlan | None]] = []
    run.applications.planned = windows
    variants = [each["variant"] for each in records(run)]
    sizes = [len(window.requests) for window, _ in windows for _ in window.requests]
    return list(zip(variants, sizes, strict=True))


@pytest.mark.slow
def test_live_and_simulated_windows_and_plans_are_the_same(tmp_path: Path) -> None:
    for pace in PACES:  # delays of a busy machine matter less in a slower trace
        simulated = _simulated(pace)
        assert len({variant for variant, _ in simulated}) == 2
        live = _live(tmp_path / f"{pace}", pace)
        if live == simulated:
            return
    assert live == simulated
