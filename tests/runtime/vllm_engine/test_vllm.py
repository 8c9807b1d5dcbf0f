"""A pod with the real vLLM, on tiny models with random weights (`make test-vllm`)."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from transformers import LlamaForCausalLM

from registry.domain.model import EngineChoice, ModelName, ModelSpec, Task
from tests import servers
from tests.runtime.adapters import write_adapter
from tests.runtime.conftest import Cluster
from tests.runtime.http import post, predict

pytestmark = pytest.mark.slow

REAL: dict[str, Any] = {"memory_bytes": 16 << 30, "engine_load_timeout": 600}
"""A start of vLLM takes minutes on busy cores."""


@pytest.fixture(scope="module")
def pod(vllm_python: str, shared_cluster: Cluster) -> servers.Pod:
    return shared_cluster.pod(engine_python=vllm_python, **REAL)


def test_vllm_serves_text_generation(
    pod: servers.Pod, shared_cluster: Cluster, texts: Path
) -> None:
    shared_cluster.declare("llama", texts / "llama")
    body = {"model": "llama", "prompt": "hello", "max_tokens": 4, "temperature": 0}
    found = complete(pod, body)
    assert found.status_code == 200, found.text
    assert found.json()["usage"]["completion_tokens"] == 4
    chat = {"model": "llama", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    answer = post(f"{pod.url}/openai/v1/chat/completions", chat)
    assert answer.json()["choices"][0]["message"]["role"] == "assistant", answer.text


def test_v1_gives_the_texts_of_our_own_engine(
    pod: servers.Pod, shared_cluster: Cluster, texts: Path
) -> None:
    shared_cluster.declare("llama", texts / "llama")
    (text,) = predict(pod.url, "llama", "hello").json()["predictions"]
    assert len(text.split()) > 3


def test_an_adapter_changes_the_texts_of_its_base(
    pod: servers.Pod, shared_cluster: Cluster, texts: Path, tmp_path: Path
) -> None:
    folder, network = tmp_path / "adapter", LlamaForCausalLM.from_pretrained(texts / "llama")
    paths = [f"model.layers.{layer}.self_attn.q_proj" for layer in range(2)]
    write_adapter(folder, network, paths)
    config = json.loads((folder / "adapter_config.json").read_text())
    config["target_modules"] = ["q_proj"]
    (folder / "adapter_config.json").write_text(json.dumps(config))
    shared_cluster.declare("llama", texts / "llama")
    spec = ModelSpec(ModelName("default", "adapter"), folder.as_uri(), base="llama")
    shared_cluster.do(lambda registry: registry.put_models([spec]))
    body = {"prompt": "hello", "max_tokens": 8, "temperature": 0}

    def text(model: str) -> str:
        found = complete(pod, {**body, "model": model})
        return str(found.json()["choices"][0]["text"]) if found.status_code == 200 else ""

    servers.wait_until(lambda: bool(text("adapter")), timeout_s=170)
    assert text("adapter") != text("llama")


def test_vllm_embeds_texts(pod: servers.Pod, shared_cluster: Cluster, texts: Path) -> None:
    name, uri = ModelName("default", "embedder"), (texts / "qwen2").as_uri()
    spec = ModelSpec(name, uri, task=Task.TEXT_EMBEDDING, engine=EngineChoice.VLLM)
    shared_cluster.do(lambda registry: registry.put_models([spec]))
    body = {"model": "embedder", "input": ["hello", "world"]}
    found = httpx.post(f"{pod.url}/openai/v1/embeddings", json=body, timeout=600, trust_env=False)
    assert found.status_code == 200, found.text
    first, second = (each["embedding"] for each in found.json()["data"])
    assert len(first) == len(second) > 1
    assert first != second


def test_a_killed_pod_leaves_no_engine(vllm_python: str, cluster: Cluster, texts: Path) -> None:
    pod = cluster.pod("pod-b", engine_python=vllm_python, **REAL)
    cluster.declare("qwen2", texts / "qwen2")
    body = {"model": "qwen2", "prompt": "x", "max_tokens": 1}
    assert complete(pod, body).status_code == 200
    family = descendants(pod.pid)
    assert len(family) >= 4  # launcher, server, its engine, its worker
    os.kill(pod.pid, signal.SIGKILL)
    servers.wait_until(lambda: not any(Path(f"/proc/{each}").exists() for each in family))


def complete(pod: servers.Pod, body: object) -> httpx.Response:
    url = f"{pod.url}/openai/v1/completions"
    return httpx.post(url, json=body, timeout=600, trust_env=False)


def descendants(pid: int) -> list[int]:
    parents = {}
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found[1:]
