"""`simulate --cluster live`: the running platform as a cluster file."""

from pathlib import Path

import httpx
import pytest
import yaml

from load.simulator.cluster.cluster_file import cluster_of
from pilotlight.commands.live_cluster import live_cluster_file
from pilotlight.commands.load_play import RunStart
from pilotlight.commands.target import PlatformTarget
from pilotlight.output import Output
from pilotlight.platform.machine import Machine
from pilotlight.state_dir import StateDir
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName, ModelRecord, ModelSpec, Tier
from registry.domain.pod import IN_SERVICE, Accelerator, PodInfo, Profile, ProfilePoint
from registry.domain.pod_index import Residency
from registry.domain.pod_state import PodState
from tests import servers
from tests.gateway.gateway_harness import running_pods
from tests.pilotlight.conftest import Cli
from tests.registry.redis.clients import act


def test_measured_times_and_tiers_become_those_of_the_simulated_cluster() -> None:
    state = ClusterState()
    for name, node in (("pod-0", "one"), ("pod-1", "two"), ("pod-2", "two")):
        info = PodInfo(name, "127.0.0.1:1", node, slots=4, memory_bytes=10**9)
        state.pods[name] = PodState(info)
    spec = ModelSpec(
        ModelName("team", "embed"),
        "s3://models/embed",
        annotations=(("pilotlight.io/policy", "colocation"), ("other", "x")),
    )
    state.models[spec.name] = ModelRecord(spec)
    state.residency.put(spec.key, "pod-1", Residency(Tier.DEVICE, None, 0.0, 5 * 10**6))
    points = (ProfilePoint(1, 0.01), ProfilePoint(8, 0.04))
    state.profiles[spec.name] = {"": Profile(spec.key, "", points)}
    measured = state.measurements.at(state.pods["pod-1"].kind)
    measured.add(spec.key, "load:remote", [1.5, 1.5])
    plan = cluster_of(yaml.safe_load(live_cluster_file(state)), source="live")
    assert [[pod.name for pod in node.pods] for node in plan.nodes] == [
        ["pod-0"],
        ["two-0", "two-1"],
    ]
    (model,) = plan.models
    assert model.size_bytes == 5 * 10**6
    assert [(point.rows, point.latency_s) for point in model.infer] == [(1, 0.01), (8, 0.04)]
    assert model.load_s == {Tier.REMOTE: 1.5}
    assert model.at == {"two-0": Tier.DEVICE}
    assert model.spec.policy.routing == "colocation"


def test_simulates_the_running_platform(cli: Cli, redis: servers.RedisServer) -> None:
    spec = ModelSpec(ModelName("default", "embed"), "file:///embed")
    act(redis.url, "default", lambda registry: registry.put_models([spec]))
    trace = "poisson:rate=5,duration=2s,names=embed"
    arguments = ("simulate", "--cluster", "live", "--trace", trace, "--redis-url", redis.url)
    assert "no pod that accepts requests" in cli(*arguments).err
    with (
        httpx.Client(trust_env=False, timeout=60) as client,
        running_pods("pod-a", redis_url=redis.url, pool="default", client=client),
    ):
        ran = cli(*arguments, "--processes", "1", "--json")
        none_left = cli(*arguments, "--more-pods", "-1")
    assert ran.status == 0, ran.err
    assert none_left.status == 2
    assert "--more-pods -1 leaves none of 1" in none_left.err
    assert (cli.home / "live-cluster.yaml").exists()


def test_local_pods_share_the_machine_and_its_times_are_those_of_idle_cores() -> None:
    state = ClusterState()
    for name in ("pod-0", "pod-1"):
        info = PodInfo(
            name,
            "127.0.0.1:1",
            f"node-{name}",
            link_bytes_per_s=1e6,
            accelerator=Accelerator(cores=4),
        )
        state.pods[name] = PodState(info)
    spec = ModelSpec(ModelName("default", "m"), "s3://models/m")
    state.models[spec.name] = ModelRecord(spec)
    state.residency.put(spec.key, "pod-1", Residency(Tier.DEVICE, None, 0.0, 2 * 10**6))
    busy = ProfilePoint(1, 0.05, cpu_s=0.02)
    threads = ProfilePoint(8, 0.04, cpu_s=0.08)
    state.profiles[spec.name] = {"": Profile(spec.key, "", (busy, threads), source=IN_SERVICE)}
    measured = state.measurements.at(state.pods["pod-1"].kind)
    measured.add(spec.key, "load:remote", [1.6, 1.8, 5.0])
    measured.add(spec.key, "load:host", [0.02])
    measured.add(spec.key, "preprocess", [0.001, 0.001, 0.001, 0.009, 0.02])
    machine = Machine(4, 0.9, 1e8)
    text = live_cluster_file(state, hop_s=0.002, machine=machine)
    plan = cluster_of(yaml.safe_load(text), source="live")
    assert {node.machine for node in plan.nodes} == {"local"}
    assert {(node.cores, node.all_cores_speed) for node in plan.nodes} == {(4.0, 0.9)}
    assert {node.object_storage_bytes_per_s for node in plan.nodes} == {2e6 / 1.6}
    assert plan.gateway_hop_s == 0.002
    (model,) = plan.models
    assert [(each.rows, each.latency_s) for each in model.infer] == [(1, 0.02), (8, 0.04)]
    assert [model.cores(rows) for rows in (1, 8)] == [1.0, 2.0]
    assert model.preprocess_s == 0.001
    assert Tier.REMOTE not in model.load_s  # its downloads share the link
    assert model.load_s[Tier.DISK] == pytest.approx(0.02 + 2e6 / 1e8)
    assert model.load_cpu_s[Tier.REMOTE] < 0.1


def test_a_run_ends_well_although_its_platform_has_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run.parquet"
    start = RunStart(PlatformTarget(StateDir(tmp_path / "home")))
    start.write_cluster(run, Output())
    assert f"{tmp_path}/run.cluster.yaml is not written: " in capsys.readouterr().err
