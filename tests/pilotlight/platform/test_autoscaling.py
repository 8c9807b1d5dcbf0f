"""The autoscaler on a whole platform: scaling to zero and back, preloading."""

import asyncio
import os
import shutil
import signal
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import httpx
import pyarrow.parquet as pq
import pytest

from common.pod_secret import PodSecret
from registry.domain.cluster import ClusterState
from registry.domain.records import AutoscalerRecords, LeaderLease
from registry.redis.client import Registry
from registry.redis.reports import AutoscalerLog
from tests import servers
from tests.gateway.gateway_harness import metric
from tests.pilotlight.conftest import run_cli
from tests.pilotlight.platform.running import RunningPlatform, command_of, pids_of

pytestmark = pytest.mark.slow

T = TypeVar("T")

PERIOD_S = 20
BURST = 4
LIMIT_S = 180.0


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    """At most two pods, none without requests; one tiny model."""
    folder = tmp_path_factory.mktemp("platform")
    assert run_cli("make-model", "tiny-t5", str(folder / "tiny-t5")).status == 0
    ran = run_cli(
        "up",
        "--detach",
        "--json",
        "--port",
        "0",
        "--home",
        str(folder / "home"),
        "--no-s3",
        "--pods",
        "2",
        "--min-pods",
        "0",
        "--pod-idle",
        "8",
        "--pod-stable",
        "3",
    )
    assert ran.status == 0, ran.err
    running = RunningPlatform(folder / "home", ran.document)
    try:
        running.apply(folder, "tiny", policy="auto", uri=f"file://{folder / 'tiny-t5'}")
        yield running
    finally:
        assert running.cli("down").status == 0


def _read(platform: RunningPlatform, read_from: Callable[[Registry], Awaitable[T]]) -> T:
    async def read() -> T:
        registry = await Registry.connect(platform.facts["redis_url"])
        try:
            return await read_from(registry)
        finally:
            await registry.close()

    return asyncio.run(read())


def _cluster(platform: RunningPlatform) -> ClusterState:
    return _read(platform, lambda registry: registry.cluster())


def _wait_for_no_pods(platform: RunningPlatform) -> None:
    """Records and processes: a pod whose former process still runs is started last."""

    def none_left() -> bool:
        processes = [pid for pid in pids_of(platform) if "pilotlight: pod-" in command_of(pid)]
        return not _cluster(platform).pods and not processes

    servers.wait_until(none_left, timeout_s=LIMIT_S, what="no pods")


def _plans(platform: RunningPlatform) -> AutoscalerRecords:
    return _read(platform, lambda registry: AutoscalerLog(registry).records())


def _warm_on(platform: RunningPlatform) -> list[str]:
    state = _cluster(platform)
    [record] = state.models.values()
    return [pod for pod, each in state.holders(record.spec.key).items() if each.is_warm]


def _predict(platform: RunningPlatform) -> httpx.Response:
    with platform.client() as client:
        return client.post("/v1/models/tiny:predict", json={"instances": ["hello"]})


def test_scales_to_zero_and_back_with_one_pod_and_one_load(platform: RunningPlatform) -> None:
    _wait_for_no_pods(platform)
    with ThreadPoolExecutor(4) as threads:
        answered = list(threads.map(lambda _: _predict(platform), range(4)))
    assert [answer.status_code for answer in answered] == [200] * 4
    servers.wait_until(lambda: _loads(platform), timeout_s=LIMIT_S, what="the load is counted")
    assert _loads(platform) == 1
    assert len({answer.headers["x-pilotlight-pod"] for answer in answered}) == 1
    woken = [each for each in _plans(platform).history if each.reason == "waiting"]
    assert len(woken) == 1
    assert woken[0].detail.startswith("1 pods")


def test_from_zero_the_pod_starts_whose_node_has_the_model(platform: RunningPlatform) -> None:
    """Only the cache of the other node is left, whose pod would be the last to start."""
    served = _predict(platform)
    assert served.status_code == 200
    _wait_for_no_pods(platform)
    nodes = platform.home / "nodes"
    node = served.headers["x-pilotlight-pod"].replace("pod", "node")
    [cached] = nodes.glob(f"{node}/default~tiny@*")
    other = nodes / "node-1" / cached.name
    if cached == other:
        shutil.rmtree(nodes / "node-0" / cached.name, ignore_errors=True)
    else:  # the other pod may have begun to load it, too
        shutil.rmtree(other, ignore_errors=True)
        other.parent.mkdir(exist_ok=True)
        cached.rename(other)
    answer = _predict(platform)
    assert answer.headers["x-pilotlight-pod"] == "pod-1"
    assert answer.headers["x-pilotlight-start"] == "disk"


def test_a_killed_autoscaler_is_restarted_and_leads_again(platform: RunningPlatform) -> None:
    [before] = _autoscaler_pids(platform)
    leader = _plans(platform).leader
    os.kill(before, signal.SIGKILL)
    servers.wait_until(
        lambda: _leads_after(platform, leader), timeout_s=LIMIT_S, what="another autoscaler leads"
    )
    [after] = _autoscaler_pids(platform)
    assert after != before
    _wait_for_no_pods(platform)
    assert _predict(platform).status_code == 200
    servers.wait_until(lambda: _loads(platform), timeout_s=LIMIT_S, what="the load is counted")
    assert _loads(platform) == 1


def test_metrics_are_served_at_the_printed_address(platform: RunningPlatform) -> None:
    url = platform.facts["autoscaler_metrics"]

    def answer() -> str:
        return httpx.get(url, trust_env=False, timeout=60).text

    servers.wait_until(
        lambda: metric(answer(), "pilotlight_autoscaler_forecast_seconds_count"),
        timeout_s=LIMIT_S,
        what="a forecast counted",
    )
    names = {line.split()[2] for line in answer().splitlines() if line.startswith("# TYPE ")}
    documented = (
        "actions_total",
        "skipped_actions_total",
        "failures_total",
        "plan_seconds",
        "forecast_seconds",
        "is_leader",
        "wanted_pods",
        "pods_left_alone",
        "pods",
    )
    assert {f"pilotlight_autoscaler_{name}" for name in documented} <= names
    assert metric(answer(), "pilotlight_autoscaler_is_leader") == 1


def _autoscaler_pids(platform: RunningPlatform) -> list[int]:
    return [pid for pid in pids_of(platform) if "pilotlight: autoscaler" in command_of(pid)]


def _leads_after(platform: RunningPlatform, former: LeaderLease | None) -> bool:
    leader = _plans(platform).leader
    return leader is not None and (former is None or leader.token > former.token)


def _loads(platform: RunningPlatform) -> int:
    """Loads completed by all pods, as of their last heartbeats."""
    return sum(pod.loads_total for pod in _cluster(platform).pods.values())


def _answered(platform: RunningPlatform) -> int:
    text = httpx.get(f"{platform.url}/metrics", trust_env=False, timeout=60).text
    return int(metric(text, "pilotlight_gateway_requests_total", code="200"))


def test_after_two_periods_the_third_has_no_cold_start(
    platform: RunningPlatform, tmp_path: Path
) -> None:
    trace, record = tmp_path / "trace.csv", tmp_path / "run.parquet"
    rows = [
        f"{PERIOD_S * period + 0.4 * place:.1f},tiny"
        for period in range(3)
        for place in range(BURST)
    ]
    trace.write_text("at_s,model\n" + "\n".join(rows) + "\n")
    before = _answered(platform)
    with ThreadPoolExecutor(1) as threads:
        run = threads.submit(
            platform.cli, "load", "run", "--trace", str(trace), "-o", str(record), "--json"
        )
        servers.wait_until(
            lambda: _answered(platform) == before + 2 * BURST,
            timeout_s=2 * LIMIT_S,
            what="two periods answered",
        )
        _unload_everywhere(platform)
        servers.wait_until(lambda: _warm_on(platform), timeout_s=LIMIT_S, what="preloaded")
        assert _answered(platform) == before + 2 * BURST, "warm before the third period began"
        done = run.result()
        assert done.status == 0, done.err
    [document] = platform.get("models")
    loads = [each for each in _plans(platform).history if each.verb == "load"]
    assert document["autoscaler"]["words"]
    assert loads[0].reason == "forecast"
    assert "P(arrival" in loads[0].detail
    starts = pq.read_table(record, columns=["scheduled_s", "start", "status"]).to_pylist()
    third = [each for each in starts if each["scheduled_s"] >= 2 * PERIOD_S - 0.01]
    assert [(each["status"], each["start"]) for each in third] == [(200, "warm")] * BURST


def _unload_everywhere(platform: RunningPlatform) -> None:
    """Unload the model on all pods, as pods do to free memory."""
    for pod in _cluster(platform).pods.values():
        url = f"http://{pod.address}/v2/repository/models/default~tiny/unload"
        secret = PodSecret(str(platform.home / "pod-secret")).headers
        answer = httpx.post(url, json={}, headers=secret, trust_env=False, timeout=60)
        assert answer.status_code == 200
