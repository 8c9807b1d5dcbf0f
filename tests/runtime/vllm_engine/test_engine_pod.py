"""A pod whose models run in processes of a small real engine, which speaks vLLM's routes."""

import os
import signal
from pathlib import Path

import httpx
import pytest

from tests import servers
from tests.runtime.conftest import Cluster
from tests.runtime.http import get, infer_texts, post, predict, wait_idle
from tests.runtime.vllm_engine.conftest import with_fault


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
    servers.wait_until(lambda: post(url, aborted).json()["counts"].get("aborted") == 1)


def test_an_engine_that_ends_is_started_again_for_the_request(
    pod: servers.Pod, shared_cluster: Cluster, texts: Path
) -> None:
    shared_cluster.declare("llama", texts / "llama")
    url, body = f"{pod.url}/openai/v1/completions", {"model": "llama", "prompt": "x"}
    first = post(url, body).json()["pid"]
    os.kill(first, signal.SIGKILL)
    found = post(url, body)
    assert (found.status_code, found.json().get("pid") != first) == (200, True), found.text


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
    assert (found.status_code, "cannot import vLLM" in found.text) == (501, True), found.text


def session_of(leader: int) -> list[int]:
    ids = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdecimal()]
    return [each for each in ids if os.getsid(each) == os.getsid(leader)]
