"""Models in all tiers of a real pod, as its responses and the registry show them."""

import os
from pathlib import Path

import pytest

from registry.domain.model import ModelSpec
from registry.redis.client import Registry
from runtime.tiers.host_tier import enter_host_tier
from tests import servers
from tests.pilotlight.conftest import run_cli
from tests.runtime.conftest import Cluster
from tests.runtime.http import metric, post, predict
from tests.runtime.test_loading_pod import TINY_BYTES


def start_of(pod: servers.Pod, model: str) -> str:
    answer = predict(pod.url, model, "x")
    assert answer.status_code == 200, answer.text
    return answer.headers["x-pilotlight-start"]


def wait_tier(cluster: Cluster, spec: ModelSpec, tier: str | None, pod: str = "pod-a") -> None:
    servers.wait_until(lambda: cluster.tiers(spec).get(pod) == tier, what=f"{spec.key} in {tier}")


def used_bytes(cluster: Cluster, pod: str = "pod-a") -> dict[str, int]:
    async def read(registry: Registry) -> dict[str, int]:
        state = await registry.cluster()
        return dict(state.pods[pod].used_bytes)

    return cluster.do(read)


def image_of(folder: Path, spec: ModelSpec) -> Path:
    (path,) = (folder / "host").glob(f"{spec.key.replace('/', '~')}.*.slab")
    return path


@pytest.mark.slow
def test_model_passes_through_all_tiers(cluster: Cluster, models: Path) -> None:
    spec = cluster.declare("walker", models / "tiny-bert")
    others = [cluster.declare(name, models / "tiny-bert") for name in ("x", "y")]
    pod = cluster.pod(memory_bytes=TINY_BYTES, host_bytes=TINY_BYTES + 8192)
    assert start_of(pod, "walker") == "remote"
    wait_tier(cluster, spec, "device")
    assert start_of(pod, "walker") == "warm"

    assert start_of(pod, "x") == "remote"  # evicts the walker
    wait_tier(cluster, spec, "host")
    assert start_of(pod, "walker") == "host"
    wait_tier(cluster, others[0], "disk")  # the host tier fits one, which is mapped

    assert start_of(pod, "y") == "remote"
    wait_tier(cluster, spec, "host")
    assert start_of(pod, "x") == "disk"
    wait_tier(cluster, others[1], "host")  # which evicts the unmapped walker
    wait_tier(cluster, spec, "disk")
    assert start_of(pod, "walker") == "disk"

    cluster.withdraw("walker")
    wait_tier(cluster, spec, None)
    cluster.declare("walker", models / "tiny-bert")
    servers.wait_until(lambda: predict(pod.url, "walker", "x").status_code == 200)
    assert metric(pod.url, "pilotlight_loads_total", tier="host", outcome="ok") == 1
    assert metric(pod.url, "pilotlight_loads_total", tier="remote", outcome="ok") == 4


@pytest.mark.slow
def test_bytes_per_tier_and_load_times_reach_the_registry(cluster: Cluster, models: Path) -> None:
    spec = cluster.declare("a", models / "tiny-bert")
    cluster.declare("b", models / "tiny-bert")
    pod = cluster.pod(memory_bytes=TINY_BYTES)
    for name in ("a", "b"):
        start_of(pod, name)
    wait_tier(cluster, spec, "host")
    size = image_of(pod.folder, spec).stat().st_size

    def is_reported() -> bool:
        # between two loads a report has the host's bytes and none of the device
        used = used_bytes(cluster)
        return used.get("host") == size and used["device"] > 0

    servers.wait_until(is_reported)
    used = used_bytes(cluster)
    assert used["device"] <= TINY_BYTES
    assert used["disk"] > used["device"]
    assert metric(pod.url, "pilotlight_tier_bytes", tier="host") == size
    where = ("--redis-url", cluster.redis_url, "--pool", cluster.pool)
    (shown,) = run_cli("get", "pods", "--json", *where).document
    assert shown["used_bytes"] == used
    assert start_of(pod, "a") == "host"

    async def measured(registry: Registry) -> bool:
        state = await registry.cluster()
        return state.measured(spec.key).get("load:host") is not None

    servers.wait_until(lambda: cluster.do(measured))


def test_eviction_is_logged_with_its_reason(cluster: Cluster, models: Path) -> None:
    specs = [cluster.declare(name, models / "tiny-bert") for name in ("a", "b")]
    pod = cluster.pod(memory_bytes=TINY_BYTES)
    for name in ("a", "b"):
        start_of(pod, name)
    wait_tier(cluster, specs[0], "host")
    (line,) = [line for line in pod.log.splitlines() if "model removed from the device" in line]
    assert f"key={specs[0].key}" in line
    assert f"evicted_for={specs[1].key}" in line
    assert "reason=memory" in line
    assert "freed_bytes=" in line
    assert "reload_s=" in line
    for labels, count in (({"tier": "device", "reason": "memory"}, 1), ({"tier": "host"}, 0)):
        assert metric(pod.url, "pilotlight_evictions_total", **labels) == count
    assert metric(pod.url, "pilotlight_demotions_total", outcome="done") == 1


def test_unloaded_model_is_not_demoted(cluster: Cluster, models: Path) -> None:
    spec = cluster.declare("m", models / "tiny-bert")
    pod = cluster.pod()
    start_of(pod, "m")
    post(f"{pod.url}/v2/repository/models/default~m/unload")
    wait_tier(cluster, spec, "disk")
    assert metric(pod.url, "pilotlight_evictions_total", reason="memory") == 0


@pytest.mark.slow
def test_pods_of_a_node_share_one_image(cluster: Cluster, models: Path, tmp_path: Path) -> None:
    spec = cluster.declare("a", models / "tiny-bert")
    cluster.declare("b", models / "tiny-bert")
    shared = {"node": "node-1", "host_dir": str(tmp_path / "host"), "memory_bytes": TINY_BYTES}
    first, second = cluster.pod("pod-a", **shared), cluster.pod("pod-b", **shared)
    for name in ("a", "b"):
        start_of(first, name)
    wait_tier(cluster, spec, "host", "pod-a")
    wait_tier(cluster, spec, "host", "pod-b")  # never loaded it
    assert start_of(second, "a") == "host"
    assert start_of(first, "a") == "host"
    inode = f" {image_of(tmp_path, spec).stat().st_ino} "
    for pod in (first, second):
        with open(f"/proc/{pod.pid}/maps") as maps:
            assert inode in maps.read()


def test_damaged_image_falls_back_to_disk(cluster: Cluster, models: Path) -> None:
    spec = cluster.declare("a", models / "tiny-bert")
    cluster.declare("b", models / "tiny-bert")
    pod = cluster.pod(memory_bytes=TINY_BYTES)
    for name in ("a", "b"):
        start_of(pod, name)
    wait_tier(cluster, spec, "host")
    path = image_of(pod.folder, spec)
    path.chmod(0o600)
    os.truncate(path, path.stat().st_size // 2)
    assert start_of(pod, "a") == "disk"
    assert "host image damaged" in pod.log


def test_restarted_pod_uses_the_image(cluster: Cluster, models: Path, tmp_path: Path) -> None:
    spec = cluster.declare("a", models / "tiny-bert")
    cluster.declare("b", models / "tiny-bert")
    settings = {"host_dir": str(tmp_path / "host"), "memory_bytes": TINY_BYTES}
    holder = enter_host_tier(tmp_path / "host", 1 << 20)  # another pod of the node
    with cluster.pod_context("pod-a", **settings) as pod:
        for name in ("a", "b"):
            start_of(pod, name)
        wait_tier(cluster, spec, "host")
    with cluster.pod_context("pod-a", **settings) as pod:
        wait_tier(cluster, spec, "host")
        assert start_of(pod, "a") == "host"
    holder.close()


def test_greedy_dual_keeps_the_most_used_model(cluster: Cluster, models: Path) -> None:
    for name in ("often", "rarely", "new"):
        cluster.declare(name, models / "tiny-bert")
    pod = cluster.pod(memory_bytes=2 * TINY_BYTES)
    for name in ("often", "often", "often", "often", "rarely", "new"):
        start_of(pod, name)
    assert start_of(pod, "often") == "warm"


def test_without_the_host_tier_models_stay_on_disk(cluster: Cluster, models: Path) -> None:
    spec = cluster.declare("a", models / "tiny-bert")
    cluster.declare("b", models / "tiny-bert")
    pod = cluster.pod(memory_bytes=TINY_BYTES, host_bytes=1 << 60)
    assert "host tier is off" in pod.log
    for name in ("a", "b"):
        start_of(pod, name)
    wait_tier(cluster, spec, "disk")
    assert start_of(pod, "a") == "disk"


@pytest.mark.slow
def test_pod_reports_models_that_another_pod_fetched(
    cluster: Cluster, models: Path, tmp_path: Path
) -> None:
    spec = cluster.declare("m", models / "tiny-bert")
    first, second = (
        cluster.pod(name, node="node", cache_dir=str(tmp_path / "node"))
        for name in ("pod-a", "pod-b")
    )
    assert predict(first.url, "m", "x").headers["x-pilotlight-start"] == "remote"
    wanted = {"pod-a": "device", "pod-b": "disk"}
    servers.wait_until(lambda: cluster.tiers(spec) == wanted)
    assert predict(second.url, "m", "x").headers["x-pilotlight-start"] == "disk"
