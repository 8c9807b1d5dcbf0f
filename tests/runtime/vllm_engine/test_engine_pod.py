"""A pod whose models run in processes of a small real engine, which speaks vLLM's routes."""

import os
import signal
from pathlib import Path

import httpx
import pytest
import torch
from safetensors.torch import save_file

from registry.domain.model import EngineChoice, ModelName, ModelSpec
from runtime.engines.vllm_adapter import VllmAdapter
from tests import servers
from tests.runtime.conftest import Cluster
from tests.runtime.http import get, infer_texts, post, predict, wait_idle
from tests.runtime.vllm_engine.conftest import with_fault, write_python

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pod(small_python: str, shared_cluster: Cluster) -> servers.Pod:
    return shared_cluster.pod(engine_python=small_python, memory_bytes=8 << 30)


def test_an_engine_serves_the_openai_routes(
    pod: servers.Pod, shared_cluster: Cluster, texts: Path
) -> None:
    shared_cluster.declare("llama", texts / "llama")
    body = {"model": "llama", "prompt": "x", "max_tokens": 3, "of_tomorrow": {"a": 1}}
    found = post(f"{pod.url}/openai/v1/completions", body)
    assert found.status_code == 200, found.text
    document = found.json()
    assert document["choices"][0]["text"] == "llama says more"
    assert document["seen"] == body
    assert found.headers["x-pilotlight-start"] == "remote"
    assert get(f"{pod.url}/v2/models/llama").json()["answers_openai"]  # by OpenAI's list of models


def test_v1_and_v2_texts_are_the_engines(
    pod: servers.Pod, shared_cluster: Cluster, texts: Path
) -> None:
    shared_cluster.declare("llama", texts / "llama")
    found = predict(pod.url, "llama", "x", "y")
    assert found.status_code == 200, found.text
    assert found.json() == {"predictions": ["llama says" + " more" * 6] * 2}
    (output,) = infer_texts(pod.url, "llama", "x").json()["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("text", "BYTES", [1])


def test_a_stream_is_passed_on_unchanged(
    pod: servers.Pod, shared_cluster: Cluster, texts: Path
) -> None:
    shared_cluster.declare("llama", texts / "llama")
    body = {"model": "default/llama", "messages": [], "max_tokens": 3, "stream": True}
    found = post(f"{pod.url}/openai/v1/chat/completions", body)
    events = [
        f'data: {{"choices": [{{"index": 0, "text": "{word}", "delta": {{"content": "{word}"}}}}]}}'
        for word in ("default/llama", "says", "more")
    ]
    assert found.text == "\n\n".join([*events, "data: [DONE]", ""])
    assert found.headers["content-type"].startswith("text/event-stream")


def test_times_of_generations_are_by_the_tokens_they_may_have(
    pod: servers.Pod, shared_cluster: Cluster, texts: Path
) -> None:
    spec = shared_cluster.declare("llama", texts / "llama")
    for tokens in (2, 900):
        assert _ask(pod, max_tokens=tokens).status_code == 200

    def measured(measure: str) -> bool:
        pods = shared_cluster.do(lambda registry: registry.cluster()).pods
        return pods["pod-a"].estimates[spec.key].median_s(measure) is not None

    servers.wait_until(lambda: measured("infer:3"))
    assert not measured("infer:2")


def test_a_client_that_leaves_ends_its_request_in_the_engine(
    pod: servers.Pod, shared_cluster: Cluster, texts: Path
) -> None:
    shared_cluster.declare("llama", texts / "llama")
    url = f"{pod.url}/openai/v1/completions"
    post(url, {"model": "llama", "prompt": "x"})
    body = {"model": "llama", "prompt": "x", "stream": True, "small_pause_s": 30}
    with httpx.stream("POST", url, json=body, trust_env=False) as response:
        next(response.iter_bytes())
    wait_idle(pod)
    aborted = {"model": "llama", "prompt": "x"}
    servers.wait_until(lambda: post(url, aborted).json()["counts"].get("aborted", 0) > 0)


def test_a_passed_deadline_ends_its_request_in_the_engine(
    pod: servers.Pod, shared_cluster: Cluster, texts: Path
) -> None:
    shared_cluster.declare("llama", texts / "llama")
    before = _ask(pod).json()["counts"].get("aborted", 0)
    body = {"model": "llama", "prompt": "x", "small_pause_s": 30}
    found = post(f"{pod.url}/openai/v1/completions", body, x_pilotlight_deadline_ms="300")
    assert found.status_code == 504
    servers.wait_until(lambda: _ask(pod).json()["counts"].get("aborted", 0) == before + 1)


def test_an_engine_that_ends_is_started_again_for_the_request(
    pod: servers.Pod, shared_cluster: Cluster, texts: Path
) -> None:
    shared_cluster.declare("llama", texts / "llama")
    url, body = f"{pod.url}/openai/v1/completions", {"model": "llama", "prompt": "x"}
    first = post(url, body).json()["pid"]
    os.kill(first, signal.SIGKILL)
    found = post(url, body)
    assert (found.status_code, found.json().get("pid") != first) == (200, True), found.text


def test_a_launcher_that_ends_is_waited_for_by_loads(
    pod: servers.Pod, shared_cluster: Cluster, texts: Path
) -> None:
    shared_cluster.declare("llama", texts / "llama")
    first = _ask(pod).json()["pid"]
    family = session_of(first)
    stat = Path(f"/proc/{first}/stat").read_text()
    os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
    servers.wait_until(lambda: _ask(pod).json()["pid"] != first)
    servers.wait_until(lambda: not any(Path(f"/proc/{each}").exists() for each in family))


def test_an_engine_that_ends_each_time_is_answered_with_the_reason(
    pod: servers.Pod, shared_cluster: Cluster, texts: Path
) -> None:
    shared_cluster.declare("llama", texts / "llama")
    url = f"{pod.url}/openai/v1/completions"
    found = post(url, {"model": "llama", "prompt": "x", "small_ends": True})
    assert (found.status_code, "ended in this request" in found.text) == (503, True), found.text
    assert post(url, {"model": "llama", "prompt": "x"}).status_code == 200


@pytest.mark.parametrize(
    ("fault", "status", "message"),
    [
        pytest.param({"start": "out-of-memory"}, 503, "CUDA out of memory", id="out-of-memory"),
        pytest.param({"start": "hangs"}, 503, "within 2 s", id="hangs"),
    ],
)
def test_a_start_that_fails_is_answered_with_the_reason(
    small_python: str, cluster: Cluster, texts: Path, tmp_path: Path,
    fault: dict[str, str], status: int, message: str,
) -> None:  # fmt: skip
    model = with_fault(texts / "llama", tmp_path / "model", **fault)
    pod = cluster.pod(
        "pod-b", engine_python=small_python, memory_bytes=8 << 30, engine_load_timeout=2
    )
    cluster.declare("broken", model)
    found = post(f"{pod.url}/openai/v1/completions", {"model": "broken", "prompt": "x"})
    assert (found.status_code, message in found.text) == (status, True), found.text
    assert get(f"{pod.url}/v2/health/live").status_code == 200


def test_a_killed_pod_leaves_no_engine(small_python: str, cluster: Cluster, texts: Path) -> None:
    pod = cluster.pod("pod-b", engine_python=small_python, memory_bytes=8 << 30)
    cluster.declare("llama", texts / "llama")
    body = {"model": "llama", "prompt": "x"}
    engine = post(f"{pod.url}/openai/v1/completions", body).json()["pid"]
    family = session_of(engine)
    assert len(family) > 1
    os.kill(pod.pid, signal.SIGKILL)
    servers.wait_until(lambda: not any(Path(f"/proc/{each}").exists() for each in family))


def test_a_python_without_vllm_is_answered_with_the_reason(cluster: Cluster, texts: Path) -> None:
    pod = cluster.pod("pod-b", engine_python="/usr/bin/python3", memory_bytes=8 << 30)
    cluster.declare("llama", texts / "llama")
    found = post(f"{pod.url}/openai/v1/completions", {"model": "llama", "prompt": "x"})
    assert (found.status_code, "cannot run vLLM" in found.text) == (501, True), found.text


def session_of(leader: int) -> list[int]:
    ids = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdecimal()]
    return [each for each in ids if os.getsid(each) == os.getsid(leader)]


# Sleep


def _ask(pod: servers.Pod, name: str = "llama", **fields: object) -> httpx.Response:
    body = {"model": name, "prompt": "x", **fields}
    return post(f"{pod.url}/openai/v1/completions", body)


def _unload(pod: servers.Pod, name: str = "llama") -> None:
    assert post(f"{pod.url}/v2/repository/models/default~{name}/unload").status_code == 200


def _sleeper(
    cluster: Cluster, python: str, model: Path, tier: str = "host", **settings: object
) -> servers.Pod:
    """A pod whose model was unloaded, and is in the tier."""
    sizes = {"memory_bytes": 8 << 30, "host_bytes": 8 << 30}
    pod = cluster.pod("pod-b", engine_python=python, **{**sizes, **settings})
    spec = cluster.declare("llama", model)
    assert _ask(pod).status_code == 200
    _unload(pod)
    servers.wait_until(lambda: cluster.tiers(spec) == {"pod-b": tier})
    return pod


def test_an_unloaded_model_sleeps_and_wakes_in_its_process(
    small_python: str, cluster: Cluster, texts: Path
) -> None:
    pod = cluster.pod("pod-b", engine_python=small_python, memory_bytes=8 << 30, host_bytes=8 << 30)
    spec = cluster.declare("llama", texts / "llama")
    first = _ask(pod).json()["pid"]
    _unload(pod)
    servers.wait_until(lambda: cluster.tiers(spec) == {"pod-b": "host"})
    found = _ask(pod)
    assert (found.status_code, found.json()["pid"]) == (200, first)
    assert found.headers["x-pilotlight-start"] == "host"


def test_a_preload_to_tier_host_is_an_engine_asleep(
    small_python: str, cluster: Cluster, texts: Path
) -> None:
    pod = cluster.pod(
        "pod-b", engine_python=small_python, memory_bytes=400 << 20, host_bytes=8 << 30
    )
    spec = cluster.declare("llama", texts / "llama")
    url = f"{pod.url}/v2/repository/models/default~llama/load"
    found = post(url, {"parameters": {"tier": "host"}})
    assert found.status_code == 200, found.text
    servers.wait_until(lambda: cluster.tiers(spec) == {"pod-b": "host"})
    assert _ask(pod).headers["x-pilotlight-start"] == "host"
    cluster.declare("other", texts / "llama")
    refused = post(url.replace("llama/load", "other/load"), {"parameters": {"tier": "host"}})
    assert refused.is_error
    assert "bytes are free" in refused.text


@pytest.mark.parametrize(
    ("settings", "variables", "fault"),
    [
        pytest.param({}, {}, {"sleep": "refused"}, id="sleep-refused"),
        pytest.param({"host_bytes": 1 << 20}, {}, {}, id="no-room"),
        pytest.param({}, {"SMALL_SLEEPLESS": "1"}, {}, id="version-without-sleep"),
    ],
)
def test_an_engine_that_cannot_sleep_is_stopped_and_started(
    cluster: Cluster, texts: Path, tmp_path: Path,
    settings: dict[str, int], variables: dict[str, str], fault: dict[str, str],
) -> None:  # fmt: skip
    python = write_python(tmp_path / "python", **variables)
    model = with_fault(texts / "llama", tmp_path / "model", **fault)
    pod = _sleeper(cluster, python, model, "disk", **settings)
    found = _ask(pod)
    assert (found.status_code, found.headers["x-pilotlight-start"]) == (200, "disk")


def test_a_wake_that_fails_starts_a_new_engine(
    small_python: str, cluster: Cluster, texts: Path, tmp_path: Path
) -> None:
    model = with_fault(texts / "llama", tmp_path / "model", wake="fails")
    found = _ask(_sleeper(cluster, small_python, model))
    assert found.status_code == 200, found.text


def test_a_deleted_model_leaves_no_sleeper(
    small_python: str, cluster: Cluster, texts: Path
) -> None:
    pod = cluster.pod(
        "pod-b", engine_python=small_python, memory_bytes=8 << 30, host_bytes=8 << 30,
        retire_grace=0.1,
    )  # fmt: skip
    cluster.declare("llama", texts / "llama")
    engine = _ask(pod).json()["pid"]
    cluster.withdraw("llama")
    servers.wait_until(lambda: not Path(f"/proc/{engine}").exists())


def test_two_models_in_a_budget_for_one_wake_in_turns(
    small_python: str, cluster: Cluster, texts: Path
) -> None:
    pod = cluster.pod(
        "pod-b", engine_python=small_python, memory_bytes=400 << 20, host_bytes=8 << 30
    )
    for name in ("one", "two"):
        cluster.declare(name, texts / "llama")
    starts = [_ask(pod, name).headers["x-pilotlight-start"] for name in ("one", "two") * 2]
    assert starts == ["remote", "remote", "host", "host"]


def test_an_engine_that_hangs_is_killed_and_started_again(
    small_python: str, cluster: Cluster, texts: Path
) -> None:
    pod = cluster.pod(
        "pod-b", engine_python=small_python, memory_bytes=8 << 30, inference_timeout=2
    )
    cluster.declare("llama", texts / "llama")
    first = _ask(pod).json()["pid"]
    os.kill(first, signal.SIGSTOP)
    found = _ask(pod)
    assert (found.status_code, found.json()["pid"] != first) == (200, True), found.text


def test_slots_follow_what_the_engine_holds(
    small_python: str, cluster: Cluster, texts: Path, tmp_path: Path
) -> None:
    """By its metrics: while requests wait there, the gateway sends others elsewhere, or queues."""
    pod = cluster.pod("pod-b", engine_python=small_python, memory_bytes=8 << 30, retire_grace=0.1)
    own = _slots(cluster)
    cluster.declare("llama", texts / "llama")
    _ask(pod)
    servers.wait_until(lambda: _slots(cluster) == own + VllmAdapter.sequences)
    cluster.declare("full", with_fault(texts / "llama", tmp_path / "model", waiting=9))
    _unload(pod)
    _ask(pod, "full")
    servers.wait_until(lambda: _slots(cluster) == own + 1)


def _slots(cluster: Cluster) -> int:
    return cluster.do(lambda registry: registry.cluster()).pods["pod-b"].slots


# Adapters


def _adapter(cluster: Cluster, name: str, folder: Path) -> ModelSpec:
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    save_file({"a": torch.ones(2)}, folder / "adapter_model.safetensors")
    spec = ModelSpec(ModelName("default", name), folder.as_uri(), base="llama")
    cluster.do(lambda registry: registry.put_models([spec]))
    return spec


def test_adapters_share_the_engine_of_their_base(
    small_python: str, cluster: Cluster, texts: Path, tmp_path: Path
) -> None:
    pod = cluster.pod("pod-b", engine_python=small_python, memory_bytes=8 << 30)
    cluster.declare("llama", texts / "llama")
    for name in ("one", "two"):
        _adapter(cluster, name, tmp_path / name)
    found = [_ask(pod, name).json() for name in ("one", "two", "llama")]
    assert [each["choices"][0]["text"].split()[0] for each in found] == ["one", "two", "llama"]
    assert len({each["pid"] for each in found}) == 1
    assert predict(pod.url, "one", "x").json()["predictions"][0].startswith("one says")


def test_a_new_generation_of_an_adapter_replaces_the_one_before(
    small_python: str, cluster: Cluster, texts: Path, tmp_path: Path
) -> None:
    """The engine knows both by one name, so the end of the one before must not unload it."""
    pod = cluster.pod("pod-b", engine_python=small_python, memory_bytes=8 << 30)
    cluster.declare("llama", texts / "llama")
    before = _adapter(cluster, "one", tmp_path / "one")
    assert _ask(pod, "one").status_code == 200
    _adapter(cluster, "one", tmp_path / "other")
    assert _ask(pod, "one").status_code == 200
    servers.wait_until(lambda: cluster.tiers(before) == {})
    assert _ask(pod, "one").status_code == 200


def test_a_base_that_was_loaded_before_its_adapters_starts_again(
    small_python: str, cluster: Cluster, texts: Path, tmp_path: Path
) -> None:
    pod = cluster.pod("pod-b", engine_python=small_python, memory_bytes=8 << 30)
    cluster.declare("llama", texts / "llama")
    assert _ask(pod).status_code == 200
    _adapter(cluster, "one", tmp_path / "one")
    servers.wait_until(lambda: _ask(pod, "one").status_code == 200)


def test_an_adapter_that_the_engine_refuses_fails_its_load_alone(
    small_python: str, cluster: Cluster, texts: Path, tmp_path: Path
) -> None:
    pod = cluster.pod("pod-b", engine_python=small_python, memory_bytes=8 << 30)
    model = with_fault(texts / "llama", tmp_path / "model", adapter="has a rank of 512")
    cluster.declare("llama", model)
    _adapter(cluster, "one", tmp_path / "one")
    found = _ask(pod, "one")
    assert (found.status_code, "has a rank of 512" in found.text) == (503, True), found.text
    assert _ask(pod).status_code == 200


def test_a_pod_without_vllm_says_so(cluster: Cluster, texts: Path) -> None:
    pod = cluster.pod("pod-b")
    spec = ModelSpec(
        ModelName("default", "llama"), (texts / "llama").as_uri(), engine=EngineChoice.VLLM
    )
    cluster.do(lambda registry: registry.put_models([spec]))
    found = _ask(pod)
    assert (found.status_code, "--engine-python" in found.text) == (501, True), found.text


@pytest.mark.parametrize(("engine", "status"), [(EngineChoice.AUTO, 200), (EngineChoice.VLLM, 501)])
def test_an_architecture_that_vllm_does_not_know_is_the_pods_own_unless_vllm_is_asked_for(
    small_python: str, cluster: Cluster, texts: Path, engine: EngineChoice, status: int
) -> None:
    pod = cluster.pod("pod-b", engine_python=small_python, memory_bytes=2 << 30)
    spec = ModelSpec(ModelName("default", "llama"), (texts / "qwen2").as_uri(), engine=engine)
    cluster.do(lambda registry: registry.put_models([spec]))
    found = _ask(pod)
    assert found.status_code == status, found.text
    assert ("does not know the architecture" in found.text) is (status == 501)
