"""Published clients of OpenAI's API, through gateway and pod, at models that an engine runs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import InferenceClient

from tests import servers
from tests.runtime.conftest import Cluster
from tests.runtime.http import post

openai = pytest.importorskip("openai")

USER: list[Any] = [{"role": "user", "content": "hi"}]
TOOL: Any = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}
JSON_OBJECT: dict[str, Any] = {"type": "json_object"}


@pytest.fixture(scope="module")
def base_url(
    small_python: str, shared_cluster: Cluster, gateway: servers.Gateway, texts: Path
) -> str:
    """Of a gateway, before a pod whose engine responds with what it was sent."""
    shared_cluster.declare("llama", texts / "llama")
    shared_cluster.pod(engine_python=small_python, memory_bytes=8 << 30)
    return f"{gateway.url}/openai/v1"


@pytest.fixture(scope="module")
def client(base_url: str) -> Iterator[Any]:
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


CHAT: dict[str, Any] = {
    "model": "llama", "messages": USER, "tools": [TOOL], "tool_choice": "auto",
    "response_format": JSON_OBJECT, "logprobs": True, "top_logprobs": 2, "seed": 7,
}  # fmt: skip
UNKNOWN: dict[str, Any] = {"of_tomorrow": {"a": [1, 2.5, None]}, "guided_json": {"type": "object"}}


def test_chat_fields_arrive_at_the_engine_unchanged(client: Any) -> None:
    found = client.chat.completions.create(**CHAT, extra_body=UNKNOWN)
    assert found.choices[0].message.content.startswith("llama says")
    assert found.seen == {**CHAT, **UNKNOWN}


def test_completion_fields_arrive_at_the_engine_unchanged(client: Any) -> None:
    body: dict[str, Any] = {"model": "llama", "prompt": ["x", "y"], "logprobs": 2, "echo": True}
    found = client.completions.create(**body, extra_body=UNKNOWN)
    assert [choice.text for choice in found.choices] == ["llama says" + " more" * 14] * 2
    assert found.seen == {**body, **UNKNOWN}


def test_a_stream_ends_with_its_usage(client: Any) -> None:
    options = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(
            model="llama", messages=USER, max_tokens=5, stream=True, stream_options=options
        )
    )
    text = [each.choices[0].delta.content for each in chunks[:-1]]
    assert text == ["llama", "says", "more", "more", "more"]
    assert chunks[-1].usage.completion_tokens == 5
    assert chunks[-1].seen["stream_options"] == options


def test_images_of_a_message_arrive_at_the_engine(client: Any) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "what?"}, part]}]
    found = client.chat.completions.create(model="llama", messages=messages)
    assert found.seen["messages"] == messages


def test_responses(client: Any) -> None:
    body: dict[str, Any] = {"model": "llama", "input": "hi", "instructions": "be short"}
    found = client.responses.create(**body, max_output_tokens=9, tools=[{"type": "of_tomorrow"}])
    assert found.output_text.startswith("llama says")
    assert found.seen == {**body, "max_output_tokens": 9, "tools": [{"type": "of_tomorrow"}]}


def test_embeddings(client: Any) -> None:
    found = client.embeddings.create(model="llama", input=["x"], dimensions=2)
    assert found.data[0].embedding == [0.5, 0.25]
    assert found.seen["input"] == ["x"]
    assert found.seen["dimensions"] == 2


def test_an_error_of_the_engine_is_the_clients_exception(client: Any) -> None:
    with pytest.raises(openai.InternalServerError, match="ended in this request"):
        client.completions.create(model="llama", prompt="x", extra_body={"small_ends": True})


def test_hugging_faces_client(base_url: str) -> None:
    client = InferenceClient(base_url=base_url, api_key="none")
    found: Any = client.chat_completion(
        USER, model="llama", max_tokens=4, tools=[TOOL], extra_body=UNKNOWN
    )
    assert found.choices[0].message.content == "llama says more more"
    assert found["seen"].items() >= {**UNKNOWN, "tools": [TOOL]}.items()
    chunks = client.chat_completion(USER, model="llama", max_tokens=3, stream=True)
    assert [each.choices[0].delta.content for each in chunks] == ["llama", "says", "more"]


def test_langchains_client(base_url: str) -> None:
    langchain = pytest.importorskip("langchain_openai")
    chat = langchain.ChatOpenAI(
        model="llama",
        base_url=base_url,
        api_key="none",
        max_retries=0,
        extra_body={"max_tokens": 3},
    )
    assert chat.invoke("hi").content == "llama says more"
    assert "".join(chunk.content for chunk in chat.stream("hi")) == "llamasaysmore"
    assert chat.bind_tools([TOOL]).invoke("hi").content == "llama says more"


def test_responses_of_our_own_engine_are_refused_with_the_reason(
    cluster: Cluster, models: Path
) -> None:
    pod = cluster.pod("pod-own")
    cluster.declare("own", models / "tiny-gpt2")
    found = post(f"{pod.url}/openai/v1/responses", {"model": "own", "input": "hi", "of": "x"})
    assert (found.status_code, "use chat/completions" in found.text) == (400, True), found.text
