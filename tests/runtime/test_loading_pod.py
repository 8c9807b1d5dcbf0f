"""Loads in real pods: shared, bounded by memory, failing cleanly, fenced, surviving restarts."""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx
import pytest

from registry.domain.model import PERMANENT_STATUSES, ModelSpec, Tier
from registry.redis.client import Registry
from runtime.loading.load_queue import BACKOFF
from tests import servers
from tests.runtime.conftest import Cluster
from tests.runtime.http import get, metric, post, predict, unanswered

TINY_BYTES = 170_000
"""A little more than the weights of tiny-bert."""


def epoch_of(cluster: Cluster, pod: str) -> int:
    async def look(registry: Registry) -> int:
        state = await registry.cluster()
        return state.pods[pod].epoch

    return cluster.do(look)


@pytest.mark.slow
def test_concurrent_first_requests_share_one_load(cluster: Cluster, models: Path) -> None:
    cluster.declare("m", models / "tiny-bert")
    pod = cluster.pod(slots=20, link_rate=50_000)  # 3 s, for all of them to come
    with ThreadPoolExecutor(20) as clients:
        answers = list(clients.map(lambda _: predict(pod.url, "m", "x"), range(20)))
    assert [answer.status_code for answer in answers] == [200] * 20
    assert {answer.headers["x-pilotlight-start"] for answer in answers} == {"remote"}
    assert metric(pod.url, "pilotlight_loads_total") == 1


def test_slots_are_the_pods_own_limit(cluster: Cluster, models: Path) -> None:
    cluster.declare("m", models / "tiny-bert")
    pod = cluster.pod(slots=2, allow_simulated_work=True)
    url, long = f"{pod.url}/v1/models/m:predict", "postprocess=600"
    with ExitStack() as held:
        for _ in range(2):
            held.enter_context(unanswered(url, {"instances": ["x"]}, x_pilotlight_simulate=long))
        servers.wait_until(lambda: metric(pod.url, "pilotlight_pod_slots_used") == 2)
        refused = predict(pod.url, "m", "x")
    assert refused.status_code == 429
    assert refused.headers["x-pilotlight-not-executed"] == "slots"
    assert "retry-after" in refused.headers


def test_least_recently_used_model_makes_room(cluster: Cluster, models: Path) -> None:
    specs = {name: cluster.declare(name, models / "tiny-bert") for name in ("a", "b")}
    specs["c"] = cluster.declare("c", models / "tiny-bert")
    pod = cluster.pod(memory_bytes=2 * TINY_BYTES)
    for name in ("a", "b", "a", "c"):
        assert predict(pod.url, name, "x").status_code == 200
    starts = [predict(pod.url, name, "x").headers["x-pilotlight-start"] for name in ("a", "c")]
    assert starts == ["warm", "warm"]
    servers.wait_until(lambda: cluster.tiers(specs["b"]) == {"pod-a": "host"})
    assert metric(pod.url, "pilotlight_evictions_total") == 1


@pytest.mark.slow
def test_model_in_use_is_never_evicted(cluster: Cluster, models: Path) -> None:
    cluster.declare("busy", models / "tiny-bert")
    cluster.declare("other", models / "tiny-bert")
    pod = cluster.pod(slots=2, memory_bytes=TINY_BYTES, allow_simulated_work=True)
    predict(pod.url, "busy", "x")
    with ThreadPoolExecutor(2) as clients:
        started_s = time.monotonic()
        long = clients.submit(predict, pod.url, "busy", "x", simulate="preprocess=2.0")
        servers.wait_until(lambda: metric(pod.url, "pilotlight_pod_slots_used") == 1)
        other = predict(pod.url, "other", "x")
        ended_s = time.monotonic()
    assert long.result().status_code == 200
    assert long.result().headers["x-pilotlight-start"] == "warm"
    assert other.status_code == 200
    assert ended_s - started_s > 1.9  # it had to wait for the model in use


def test_model_larger_than_the_budget_is_refused(cluster: Cluster, models: Path) -> None:
    cluster.declare("large", models / "tiny-t5")
    cluster.declare("small", models / "tiny-bert")
    pod = cluster.pod(memory_bytes=TINY_BYTES)
    assert predict(pod.url, "small", "x").status_code == 200
    for _ in range(2):  # by the load, and by what is known of it
        answer = predict(pod.url, "large", "x")
        assert answer.status_code == 507
        assert answer.headers["x-pilotlight-not-executed"] == "no-memory"
        assert answer.headers["x-pilotlight-error"] == "model-too-large"
        assert "retry-after" not in answer.headers
        assert answer.json()["error"].startswith("default/large needs ")
        assert "memory budget" in answer.json()["error"]
        assert "--pod-memory of `pilotlight up`" in answer.json()["error"]
    failure = cluster.record("large").failure
    assert failure is not None
    assert failure.http_status == 507
    assert predict(pod.url, "small", "x").headers["x-pilotlight-start"] == "warm"


def test_only_a_disk_that_may_get_room_is_asked_again(cluster: Cluster, models: Path) -> None:
    cluster.declare("small", models / "tiny-bert")
    cluster.declare("next", models / "tiny-bert")
    cluster.declare("large", models / "tiny-t5")
    pod = cluster.pod(disk_bytes=250_000, slots=2, allow_simulated_work=True)
    predict(pod.url, "small", "x")
    url, long = f"{pod.url}/v1/models/small:predict", "preprocess=600"
    with unanswered(url, {"instances": ["x"]}, x_pilotlight_simulate=long):
        servers.wait_until(lambda: metric(pod.url, "pilotlight_pod_slots_used") == 1)
        for name, is_asked_again in (("next", True), ("large", False)) * 2:
            answer = predict(pod.url, name, "x")
            assert answer.status_code == 507, answer.text
            assert ("retry-after" in answer.headers) is is_asked_again
            error = "disk-full" if is_asked_again else "model-too-large"
            assert answer.headers["x-pilotlight-error"] == error


def spoiled(change: Callable[[Path], object]) -> Callable[[Path, Path], Path]:
    def make(source: Path, target: Path) -> Path:
        change(servers.copy_model(source, target))
        return target

    return make


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def only_pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def unknown_architecture(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config.update(model_type="mine", auto_map={"AutoModel": "code.Mine"})
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        pytest.param(truncate, "truncated", id="truncated"),
        pytest.param(
            lambda folder: (folder / "model.safetensors").write_bytes(b"\xff" * 5000),
            "corrupt",
            id="garbage",
        ),
        pytest.param(only_pickle, "convert the model to safetensors", id="only-pickle"),
        pytest.param(unknown_architecture, "auto_map", id="unknown-architecture"),
        pytest.param(
            lambda folder: (folder / "config.json").unlink(), "no config.json", id="no-config"
        ),
        pytest.param(
            lambda folder: (folder / "config.json").write_text("{"), "valid JSON", id="bad-config"
        ),
        pytest.param(
            lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer", id="no-tokenizer"
        ),
    ],
)
def test_spoiled_model_fails_with_a_reason_and_harms_nobody(
    cluster: Cluster, models: Path, tmp_path: Path, spoil: Callable[[Path], object], message: str
) -> None:
    folder = spoiled(spoil)(models / "tiny-bert", tmp_path / "spoiled")
    cluster.declare("spoiled", folder)
    cluster.declare("good", models / "tiny-bert")
    pod = cluster.pod()
    for _ in range(2):  # by the load, and by what is known of it
        answer = predict(pod.url, "spoiled", "x")
        assert answer.status_code in PERMANENT_STATUSES, answer.text
        assert message in answer.json()["error"]
        assert answer.headers["x-pilotlight-not-executed"] == "load-failed"
        assert "retry-after" not in answer.headers
    failure = cluster.record("spoiled").failure
    assert failure is not None
    assert message in failure.message
    assert failure.reason == "Unreadable"
    assert predict(pod.url, "good", "x").status_code == 200


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        pytest.param("file:///does/not/exist", "does not exist", id="no-folder"),
        pytest.param("s3://no-such-bucket/model", "NoSuchBucket", id="no-bucket"),
        pytest.param("ftp://bucket/model", "must begin with one of", id="scheme"),
    ],
)
def test_missing_storage_fails_with_a_reason(cluster: Cluster, uri: str, message: str) -> None:
    cluster.declare("m", uri)
    answer = predict(cluster.pod().url, "m", "x")
    assert answer.status_code == 503
    assert message in answer.json()["error"]


def test_failed_load_is_not_tried_again_before_its_time(cluster: Cluster, tmp_path: Path) -> None:
    cluster.declare("m", tmp_path / "none")
    pod = cluster.pod(slots=8)
    started_s = time.monotonic()
    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda _: predict(pod.url, "m", "x"), range(40)))
    took_s = time.monotonic() - started_s
    assert {answer.status_code for answer in answers} <= {503, 429}
    tries = metric(pod.url, "pilotlight_loads_total", outcome="failed")
    assert (
        BACKOFF.initial_s * (2 ** (tries - 2) - 1) <= took_s
    )  # two at once, then one after each pause


@pytest.mark.slow
def test_failed_model_recovers_when_it_is_mended(
    cluster: Cluster, models: Path, tmp_path: Path
) -> None:
    folder = servers.copy_model(models / "tiny-bert", tmp_path / "mended")
    truncate(folder)
    cluster.declare("m", folder)
    pod = cluster.pod()
    assert predict(pod.url, "m", "x").status_code == 422
    whole = (models / "tiny-bert" / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole)
    servers.wait_until(lambda: predict(pod.url, "m", "x").status_code == 200)
    assert cluster.record("m").failure is None


def test_unloaded_model_stays_on_disk(cluster: Cluster, models: Path) -> None:
    spec = cluster.declare("m", models / "tiny-bert")
    pod = cluster.pod()
    predict(pod.url, "m", "x")
    assert cluster.tiers(spec) == {"pod-a": "device"}
    assert post(f"{pod.url}/v2/repository/models/default~m/unload").json()["unload"] is True
    servers.wait_until(lambda: cluster.tiers(spec) == {"pod-a": "disk"})
    assert predict(pod.url, "m", "x").headers["x-pilotlight-start"] == "disk"


def test_repository_load_makes_a_model_warm(cluster: Cluster, models: Path) -> None:
    cluster.declare("m", models / "tiny-bert")
    pod = cluster.pod()
    ready = f"{pod.url}/v2/models/default~m/ready"
    servers.wait_until(
        lambda: get(ready).status_code == 503, what="the pod has read the declaration"
    )
    assert post(f"{pod.url}/v2/repository/models/default~m/load").json()["load"] is True
    assert get(f"{pod.url}/v2/models/default~m/ready").json()["ready"] is True
    assert predict(pod.url, "m", "x").headers["x-pilotlight-start"] == "warm"
    assert post(f"{pod.url}/v2/repository/models/default~none/load").status_code == 404
    assert post(f"{pod.url}/v2/repository/models/default~none/unload").status_code == 404


def load(pod: servers.Pod, model: str, **parameters: object) -> httpx.Response:
    url = f"{pod.url}/v2/repository/models/default~{model}/load"
    return httpx.post(url, json={"parameters": parameters}, timeout=60)


def are_at(cluster: Cluster, spec: ModelSpec, tier: str) -> bool:
    return cluster.tiers(spec) == {"pod-a": tier}


def test_repository_load_brings_a_model_as_near_as_it_is_told(
    cluster: Cluster, models: Path
) -> None:
    specs = {name: cluster.declare(name, models / "tiny-bert") for name in ("disk", "host")}
    pod = cluster.pod()
    for name, spec in specs.items():
        assert load(pod, name, tier=name).json() == {"name": f"default~{name}", "load": True}
        servers.wait_until(partial(are_at, cluster, spec, name))
        assert get(f"{pod.url}/v2/models/default~{name}/ready").status_code == 503
        assert predict(pod.url, name, "x").headers["x-pilotlight-start"] == name
    for wrong in ({"tier": "remote"}, {"tier": ["disk"]}, {"tier": None}, {"config": "{}"}):
        answer = load(pod, "disk", **wrong)
        assert answer.status_code == 400
        assert "disk, host, device" in answer.json()["error"]
    assert load(pod, "none", tier="disk").status_code == 404


@pytest.mark.slow
def test_unloading_a_model_that_is_on_its_way_ends_its_load(cluster: Cluster, models: Path) -> None:
    spec = cluster.declare("m", models / "tiny-bert")

    async def is_nowhere(registry: Registry) -> bool:
        """Ended before the weights were asked for, a load leaves no entry; after, an empty one."""
        entries = (await registry.cluster()).holders(spec.key).values()
        return all(each.tier is Tier.REMOTE and each.loading_from is None for each in entries)

    pod = cluster.pod(link_rate=5_000)
    with ThreadPoolExecutor(1) as clients:
        waiting = clients.submit(predict, pod.url, "m", "x")
        servers.wait_until(lambda: metric(pod.url, "pilotlight_downloaded_bytes_total") > 10_000)
        assert post(f"{pod.url}/v2/repository/models/default~m/unload").json()["unload"] is True
        answer = waiting.result()
    assert answer.status_code == 503
    assert "m was unloaded" in answer.json()["error"]
    assert answer.headers["x-pilotlight-not-executed"] == "load-failed"
    assert metric(pod.url, "pilotlight_loads_total", outcome="cancelled") == 1
    servers.wait_until(lambda: cluster.do(is_nowhere), what="the load is taken back")
    assert not list(pod.folder.rglob("*.part"))
    assert cluster.record("m").failure is None


@pytest.mark.slow
def test_restarted_pod_adopts_what_is_on_disk(
    cluster: Cluster, models: Path, s3: servers.S3Server
) -> None:
    s3.put_folder(models / "tiny-t5", "s3://adopted/tiny-t5")
    spec = cluster.declare("m", "s3://adopted/tiny-t5")
    with cluster.pod_context("pod-a") as pod:
        assert predict(pod.url, "m", "x").headers["x-pilotlight-start"] == "remote"
    assert cluster.tiers(spec) == {}
    with cluster.pod_context("pod-a") as pod:
        assert cluster.tiers(spec) == {"pod-a": "disk"}
        assert predict(pod.url, "m", "x").headers["x-pilotlight-start"] == "disk"


@pytest.mark.slow
def test_load_that_lost_its_claim_is_dropped(cluster: Cluster, models: Path) -> None:
    spec = cluster.declare("m", models / "tiny-bert")
    pod = cluster.pod(link_rate=20_000)
    epoch = epoch_of(cluster, pod.name)
    with ThreadPoolExecutor(1) as clients:
        waiting = clients.submit(predict, pod.url, "m", "x")
        # The tokenizer is here and the 163 KB of weights, which count when they are, are not:
        # the load has begun, so the pod cannot claim it again.
        servers.wait_until(lambda: metric(pod.url, "pilotlight_downloaded_bytes_total") > 10_000)
        cluster.do(lambda r: r.set_tier(pod.name, epoch, spec.key, Tier.REMOTE, 0))
    assert waiting.result().status_code == 503
    assert waiting.result().headers["x-pilotlight-not-executed"] == "load-refused"
    assert metric(pod.url, "pilotlight_loads_total", outcome="fenced") == 1
    assert get(f"{pod.url}/v2/models/default~m/ready").status_code == 503
    assert predict(pod.url, "m", "x").headers["x-pilotlight-start"] == "disk"


def test_load_uses_the_gateways_claim(cluster: Cluster, models: Path) -> None:
    spec = cluster.declare("m", models / "tiny-bert")
    pod = cluster.pod()
    epoch = epoch_of(cluster, pod.name)
    token = cluster.do(lambda r: r.claim_load(pod.name, epoch, spec.key, 0))
    answer = predict(pod.url, "m", "x", load_token=str(token), generation=spec.generation)
    assert answer.status_code == 200
    assert cluster.tiers(spec) == {"pod-a": "device"}


def test_deadline_ends_the_wait_for_a_load(cluster: Cluster, models: Path) -> None:
    cluster.declare("m", models / "tiny-bert")
    pod = cluster.pod(link_rate=200_000)
    answer = predict(pod.url, "m", "x", deadline_ms="100")
    assert answer.status_code == 504
    assert answer.headers["x-pilotlight-not-executed"] == "deadline"
    servers.wait_until(lambda: predict(pod.url, "m", "x").status_code == 200)
    assert metric(pod.url, "pilotlight_loads_total", outcome="ok") == 1


def test_deadline_that_is_over_is_refused(cluster: Cluster, models: Path) -> None:
    cluster.declare("m", models / "tiny-bert")
    answer = predict(cluster.pod().url, "m", "x", deadline_ms="-5")
    assert answer.status_code == 504
    assert answer.headers["x-pilotlight-not-executed"] == "deadline"


def test_link_rate_bounds_a_download(cluster: Cluster, models: Path) -> None:
    cluster.declare("m", models / "tiny-bert")
    pod = cluster.pod(link_rate=200_000)
    started_s = time.monotonic()
    predict(pod.url, "m", "x")
    assert time.monotonic() - started_s > 0.7  # 163 kB of weights and 14 kB beside them


def test_new_generation_takes_over_when_it_is_warm(
    cluster: Cluster, models: Path, tmp_path: Path
) -> None:
    old = cluster.declare("m", models / "tiny-bert")
    pod = cluster.pod()
    predict(pod.url, "m", "x")
    new = cluster.declare("m", servers.copy_model(models / "tiny-bert", tmp_path / "new"))
    assert new.key != old.key
    servers.wait_until(lambda: cluster.tiers(new) == {"pod-a": "device"})
    servers.wait_until(lambda: cluster.tiers(old) == {})
    servers.wait_until(lambda: cluster.record("m").previous is None)
    answer = predict(pod.url, "m", "x", generation=new.generation)
    assert answer.headers["x-pilotlight-start"] == "warm"
    files = pod.folder / "cache" / old.key.replace("/", "~")
    servers.wait_until(lambda: not files.exists(), what="its files are gone")


def test_old_generation_serves_while_the_new_one_cannot(
    cluster: Cluster, models: Path, tmp_path: Path
) -> None:
    old = cluster.declare("m", models / "tiny-bert")
    pod = cluster.pod()
    predict(pod.url, "m", "x")
    cluster.declare("m", tmp_path / "none")
    servers.wait_until(lambda: cluster.record("m").failure is not None)
    answer = predict(pod.url, "m", "x")
    assert answer.status_code == 200
    assert cluster.tiers(old) == {"pod-a": "device"}


def test_withdrawn_model_leaves_with_its_files(cluster: Cluster, models: Path) -> None:
    spec = cluster.declare("m", models / "tiny-bert")
    pod = cluster.pod()
    predict(pod.url, "m", "x")
    cluster.withdraw("m")
    servers.wait_until(lambda: cluster.tiers(spec) == {})
    assert predict(pod.url, "m", "x").status_code == 404
    folder = pod.folder / "cache"
    servers.wait_until(lambda: all(path.name[0] == "." for path in folder.iterdir()), what="empty")


def test_withdrawn_model_leaves_with_its_series_of_metrics(cluster: Cluster, models: Path) -> None:
    for name in ("kept", "withdrawn"):
        cluster.declare(name, models / "tiny-bert")
    pod = cluster.pod()

    def of_models() -> dict[str, int]:
        """Number of series by model."""
        text = httpx.get(f"{pod.url}/metrics", trust_env=False, timeout=60).text
        lines = [line for line in text.splitlines() if 'model="' in line or 'model_name="' in line]
        return {name: sum(name in line for line in lines) for name in ("kept", "withdrawn")}

    for name in ("kept", "withdrawn"):
        predict(pod.url, name, "x")
    before = of_models()
    assert before["withdrawn"] == before["kept"] > 50
    cluster.withdraw("withdrawn")
    servers.wait_until(lambda: of_models() == {**before, "withdrawn": 0}, what="series dropped")
