"""A pod with the real vLLM, on tiny models with random weights (`make test-vllm`)."""

from pathlib import Path

import pytest

from tests import servers
from tests.runtime.conftest import Cluster
from tests.runtime.http import post, predict

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pod(vllm_python: str, shared_cluster: Cluster) -> servers.Pod:
    return shared_cluster.pod(engine_python=vllm_python, memory_bytes=16 << 30)


def test_vllm_serves_text_generation(
    pod: servers.Pod, shared_cluster: Cluster, texts: Path
) -> None:
    shared_cluster.declare("llama", texts / "llama")
    body = {"model": "llama", "prompt": "hello", "max_tokens": 4, "temperature": 0}
    found = post(f"{pod.url}/openai/v1/completions", body)
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
