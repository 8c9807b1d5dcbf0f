"""Profiles: measured by a pod on request, refined in service, stored, used for batches."""

import os
from pathlib import Path

import pytest

from autoscaler.placement.problem import AcceleratorView, ModelFits, PlanParams, Profiles, Workload
from registry.domain.model import ModelSpec
from registry.domain.pod import Profile, ProfilePoint
from registry.redis.client import Registry
from research.placement.igniter import plan_igniter
from runtime.device.accelerator import PeakMemory, available_bytes
from tests import servers
from tests.pilotlight.conftest import run_cli
from tests.runtime.conftest import Cluster
from tests.runtime.http import post, predict
from tests.servers import wait_until
from tests.tabular_models import MAKERS

pytestmark = pytest.mark.slow


def stored(cluster: Cluster, spec: ModelSpec) -> Profile | None:
    async def look(registry: Registry) -> Profile | None:
        return next(iter((await registry.cluster()).profiles_of(spec.key)), None)

    return cluster.do(look)


def product_of(cluster: Cluster) -> str:
    """The product of the accelerator of the only pod."""

    async def look(registry: Registry) -> str:
        return (await registry.cluster()).pods["pod-a"].info.accelerator.product

    return cluster.do(look)


def profile_url(pod: servers.Pod, model: str) -> str:
    return f"{pod.url}/v2/models/default~{model}/profile"


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "sklearn"])
def test_profiles_the_formats_of_the_demo(cluster: Cluster, tmp_path: Path, name: str) -> None:
    cluster.declare("m", MAKERS[name](tmp_path))
    pod = cluster.pod()
    response = post(profile_url(pod, "m"), {"most_rows": 2, "tokens": 8, "repeats": 2})
    assert response.status_code == 200, response.text
    assert [point["rows"] for point in response.json()["points"]] == [1, 2]


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-t5", "tiny-vit"])
def test_profiles_a_model_and_stores_the_profile(cluster: Cluster, models: Path, name: str) -> None:
    spec = cluster.declare("m", models / name)
    pod = cluster.pod()
    response = post(profile_url(pod, "m"), {"most_rows": 4, "tokens": 8, "repeats": 2})
    assert response.status_code == 200, response.text
    document = response.json()
    assert [point["rows"] for point in document["points"]] == [1, 2, 4]
    assert all(point["latency_s"] > 0 for point in document["points"])
    assert document["limited_by"] in {"size", "throughput"}
    profile = stored(cluster, spec)
    assert profile is not None
    assert [point.rows for point in profile.points] == [1, 2, 4]
    assert profile.best_rows == document["best_rows"]
    for point in profile.points:  # of one core, which one thread keeps busy
        assert point.sm_utilization_pct is not None
        assert 0 < point.sm_utilization_pct <= (point.occupancy_pct or 0) <= 100
    assert profile.product == document["device"] == product_of(cluster)
    assert profile.source == document["source"] == "measured"


def test_live_batches_refine_the_profile(cluster: Cluster, models: Path) -> None:
    spec = cluster.declare("m", models / "tiny-bert")
    pod = cluster.pod()
    for _ in range(3):
        assert predict(pod.url, "m", "x", "y").status_code == 200
    wait_until(lambda: stored(cluster, spec), what="the live profile is stored")
    profile = stored(cluster, spec)
    assert profile is not None
    assert [point.rows for point in profile.points] == [2]


def test_a_withdrawn_model_has_no_profile(cluster: Cluster, models: Path) -> None:
    spec = cluster.declare("m", models / "tiny-bert")
    profile = Profile(spec.key, "cpu", (ProfilePoint(1, 0.1),))
    assert cluster.do(lambda registry: registry.put_profile(profile))
    assert stored(cluster, spec) == profile
    cluster.withdraw("m")
    assert stored(cluster, spec) is None
    assert not cluster.do(lambda registry: registry.put_profile(profile))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param({"rows": 1}, "held 'rows'", id="unknown"),
        pytest.param({"most_rows": 0}, "1 to 1024, was 0", id="zero"),
        pytest.param({"tokens": "8"}, "was '8'", id="a-string"),
        pytest.param([1], "must be a JSON object", id="not-an-object"),
    ],
)
def test_refuses_an_invalid_plan(
    cluster: Cluster, models: Path, body: object, message: str
) -> None:
    cluster.declare("m", models / "tiny-bert")
    response = post(profile_url(cluster.pod(), "m"), body)
    assert response.status_code == 400
    assert message in response.json()["error"]


def test_an_unknown_model_cannot_be_profiled(cluster: Cluster) -> None:
    assert post(profile_url(cluster.pod(), "nobody"), {}).status_code == 404


def test_command_line_shows_a_profile(cluster: Cluster, models: Path) -> None:
    spec = cluster.declare("m", models / "tiny-bert")
    cluster.pod()
    where = ("--redis-url", cluster.redis_url, "--pool", cluster.pool)
    plan = ("--max-batch-size", "2", "--tokens", "4", "--repeats", "1")
    table = run_cli("profile", "m", *plan, *where)
    assert table.status == 0, table.err
    assert [line.split()[0] for line in table.out.splitlines()[:3]] == ["BATCH", "1", "2"]
    document = run_cli("profile", "m", "--json", *plan, *where).document
    assert (document["pod"], document["key"]) == ("pod-a", spec.key)
    assert [point["rows"] for point in document["points"]] == [1, 2]
    absent = run_cli("profile", "nobody", *where)
    assert absent.status == 1
    assert "there are: default/m" in absent.err


def test_measures_temporary_memory() -> None:
    peak = PeakMemory("cpu")
    block = bytearray(64 * 1024**2)
    block[::4096] = b"x" * len(block[::4096])
    del block
    taken = peak.used_bytes()
    if taken is None:
        pytest.skip("this system does not let a process reset its peak memory")
    assert 48 * 1024**2 < taken < 512 * 1024**2
    assert available_bytes("cpu") > 0


def test_shares_and_pairs_are_measured_on_cores_and_stored(cluster: Cluster, models: Path) -> None:
    spec = cluster.declare("m", models / "tiny-bert")
    other = cluster.declare("other", models / "tiny-bert")
    pod = cluster.pod()
    cluster.pod("pod-b")
    size = {"most_rows": 64, "tokens": 64, "repeats": 3}
    assert post(profile_url(pod, "other"), size).status_code == 200
    refused = post(profile_url(pod, "m"), {**size, "share_pct": 101})
    assert (refused.status_code, "'share_pct' must be 0 to 100" in refused.text) == (400, True)
    assert post(profile_url(pod, "m"), {**size, "is_stored": 0}).status_code == 200
    assert stored(cluster, spec) is None
    target = ["--redis-url", cluster.redis_url, "--pool", cluster.pool, "--json"]
    ran = run_cli(
        "profile-sharing",
        "m",
        "--pod",
        "pod-a",
        "--max-batch-size",
        "64",
        "--tokens",
        "64",
        "--repeats",
        "10",
        "--shares",
        "100",
        "--pairs",
        *target,
    )
    assert ran.status == 0, ran.err
    profile = stored(cluster, spec)
    assert profile is not None
    [pair] = profile.pairs
    assert pair.neighbour == str(other.name)
    assert 0.5 < pair.factor < 10  # about 2 on idle cores, 1 where others have them meanwhile
    assert os.sched_getaffinity(pod.pid) == os.sched_getaffinity(0)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a share needs two cores")
def test_coefficients_of_igniter_are_fitted_to_shares_and_pairs(
    cluster: Cluster, models: Path
) -> None:
    spec = cluster.declare("m", models / "tiny-bert")
    cluster.declare("other", models / "tiny-bert")
    pod = cluster.pod(threads=2)
    cluster.pod("pod-b", threads=2)
    plan = {"most_rows": 16, "tokens": 32, "repeats": 3}
    assert post(profile_url(pod, "other"), plan).status_code == 200
    target = ["--redis-url", cluster.redis_url, "--pool", cluster.pool, "--json"]
    ran = run_cli(
        "profile-sharing",
        "m",
        "--pod",
        "pod-a",
        "--max-batch-size",
        "16",
        "--tokens",
        "32",
        "--repeats",
        "5",
        "--shares",
        "10,50,100",
        "--pairs",
        *target,
    )
    assert ran.status == 0, ran.err
    profile = stored(cluster, spec)
    assert profile is not None
    assert {each.share_pct for each in profile.shares} == {50.0}  # 10 % is one core of two as well
    fit = profile.fits["igniter"]
    assert fit["hardware"]["share_step_pct"] == 50.0
    assert fit["model"]["cache_slope"] >= 0
    assert ran.document["igniter"]["source"].startswith("fitted to")
    assert "and 1 pairs" in fit["source"]
    slo_s = 100 * profile.points[-1].latency_s
    planned = plan_igniter(
        [Workload("m", 1.0, slo_s)],
        [AcceleratorView("cpu-0", "cpu")],
        Profiles((), fits=(ModelFits("m", "cpu", profile.fits),)),
        (),
        PlanParams(),
    )
    assert not any(each.reason for each in planned.models)
    assert [each.share_pct for each in planned.replicas] == [50.0]


def test_pairs_need_a_second_pod_and_a_profiled_neighbour(cluster: Cluster, models: Path) -> None:
    cluster.declare("m", models / "tiny-bert")
    cluster.pod()
    target = ["--redis-url", cluster.redis_url, "--pool", cluster.pool]
    ran = run_cli("profile-sharing", "m", "--pairs", *target)
    assert ran.status == 1
    assert "no other model has a profile on" in ran.err
