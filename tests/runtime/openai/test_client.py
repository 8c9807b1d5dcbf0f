"""The `openai` package from PyPI, at a pod and through the gateway."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import servers
from tests.runtime.conftest import Cluster
from tests.runtime.http import metric, wait_idle

pytestmark = pytest.mark.slow

openai = pytest.importorskip("openai")

LONG: dict[str, Any] = {"model": "chat", "max_tokens": 900, "n": 16, "seed": 1, "stream": True}
"""A streamed response that takes seconds."""
LONG_TOKENS = 900 * 16
USER: list[Any] = [{"role": "user", "content": "babe dida"}]


@pytest.fixture(scope="module")
def pod(shared_cluster: Cluster, models: Path) -> servers.Pod:
    shared_cluster.declare("chat", models / "tiny-gpt2")
    shared_cluster.declare("embedder", models / "tiny-bert", task="text-embedding")
    shared_cluster.declare("pictures", models / "tiny-vit")
    return shared_cluster.pod("pod-o", slots=4)


@pytest.fixture(params=["pod", "gateway", "gateway-prefix"])
def base_url(request: pytest.FixtureRequest, pod: servers.Pod, gateway: servers.Gateway) -> str:
    """The client's base URL; with a prefix it serves the generating model only."""
    return {
        "pod": f"{pod.url}/openai/v1",
        "gateway": f"{gateway.url}/openai/v1",
        "gateway-prefix": f"{gateway.url}/serving/default/chat/openai/v1",
    }[request.param]


@pytest.fixture
def client(base_url: str) -> Iterator[Any]:
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=600) as client:
        yield client


def test_completions(client: Any) -> None:
    response = client.completions.create(
        model="chat", prompt="babe dida", max_tokens=5, temperature=0
    )
    assert response.choices[0].finish_reason == "length"
    assert response.usage.completion_tokens == 5


def test_chat_whole_and_streamed_agree(client: Any) -> None:
    request = {"model": "chat", "messages": USER, "max_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(**request)
    stream = client.chat.completions.create(
        **request, stream=True, stream_options={"include_usage": True}
    )
    text = ""
    usage = None
    for chunk in stream:
        usage = chunk.usage or usage
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
    assert text == whole.choices[0].message.content
    assert usage == whole.usage


def test_models(client: Any, pod: servers.Pod) -> None:
    """The gateway lists those that an endpoint is for, a pod all that it may load."""
    is_own_address = "/serving/" in str(client.base_url)
    listed = ["chat"] if is_own_address else ["chat", "embedder"]
    if str(client.base_url).startswith(pod.url):
        listed.append("pictures")
    assert [model.id for model in client.models.list()] == listed
    assert client.models.retrieve("chat").id == "chat"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody")


@pytest.mark.parametrize("kind", ["float", "base64"])
def test_embeddings(pod: servers.Pod, gateway: servers.Gateway, kind: str) -> None:
    vectors = []
    for url in (pod.url, gateway.url):
        with openai.OpenAI(base_url=f"{url}/openai/v1", api_key="none", max_retries=0) as client:
            response = client.embeddings.create(
                model="embedder", input=["one", "two"], encoding_format=kind
            )
            assert response.usage.prompt_tokens > 0
            vectors.append([list(_floats(each.embedding)) for each in response.data])
            default = client.embeddings.create(model="embedder", input=["one", "two"])
            assert default.data[0].embedding == pytest.approx(vectors[-1][0], abs=1e-6)
    for at_pod, at_gateway in zip(*vectors, strict=True):
        assert at_pod == pytest.approx(at_gateway, abs=1e-6)


def _floats(embedding: Any) -> list[float]:
    if isinstance(embedding, str):
        return [float(each) for each in np.frombuffer(base64.b64decode(embedding), "<f4")]
    return list(embedding)


def test_errors_raise_the_clients_exceptions(client: Any) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="nobody", prompt="x")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.completions.create(model="chat", prompt="x", temperature=9)
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="chat", prompt="zu " * 900, max_tokens=900)
    assert long.value.code == "context_length_exceeded"


def test_first_token_arrives_before_the_last_is_generated(client: Any, pod: servers.Pod) -> None:
    before = metric(pod.url, "pilotlight_generated_tokens_total")
    stream = client.completions.create(prompt="zuzu", **LONG)
    next(iter(stream))
    generated = metric(pod.url, "pilotlight_generated_tokens_total") - before
    assert generated < LONG_TOKENS
    assert metric(pod.url, "pilotlight_generations") == 1
    stream.close()
    wait_idle(pod)


def test_disconnected_client_frees_its_slot(client: Any, pod: servers.Pod) -> None:
    before = metric(pod.url, "pilotlight_generated_tokens_total")
    stream = client.chat.completions.create(messages=USER, **LONG)
    next(iter(stream))
    stream.close()
    wait_idle(pod)
    generated = metric(pod.url, "pilotlight_generated_tokens_total") - before
    assert generated < LONG_TOKENS
