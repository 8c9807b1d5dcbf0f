"""openai's client through gateway and pod at the real vLLM (`make test-vllm`)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import servers
from tests.runtime.conftest import Cluster
from tests.runtime.vllm_engine.test_vllm import REAL, complete

pytestmark = pytest.mark.slow

openai = pytest.importorskip("openai")

CHAT: dict[str, Any] = {
    "model": "llama", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8,
    "temperature": 0, "extra_body": {"ignore_eos": True},
}  # fmt: skip


@pytest.fixture(scope="module")
def client(
    vllm_python: str, shared_cluster: Cluster, gateway: servers.Gateway, texts: Path
) -> Iterator[Any]:
    shared_cluster.declare("llama", texts / "llama")
    pod = shared_cluster.pod(engine_python=vllm_python, **REAL)
    first = complete(pod, {"model": "llama", "prompt": "x", "max_tokens": 1})
    assert first.status_code == 200, first.text
    url = f"{gateway.url}/openai/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=300) as client:
        yield client


def test_a_stream_has_the_text_and_the_usage_of_the_whole(client: Any) -> None:
    whole = client.chat.completions.create(**CHAT)
    chunks = list(
        client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 8


def test_log_probabilities(client: Any) -> None:
    found = client.chat.completions.create(**CHAT, logprobs=True, top_logprobs=2)
    tokens = found.choices[0].logprobs.content
    assert [len(each.top_logprobs) for each in tokens] == [2] * 8


def test_a_response_format_is_kept(client: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    request = {**CHAT, "max_tokens": 200, "extra_body": {}}
    found = client.chat.completions.create(**request, response_format=form)
    text = "".join(found.choices[0].message.content.split())  # random weights like white space
    assert text.rstrip("}") in {'{"a":"x"', '{"a":"y"'}


def test_tools_reach_vllm_which_says_what_they_need(client: Any) -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    choice = {"type": "function", "function": {"name": "weather"}}
    with pytest.raises(openai.BadRequestError, match="requires --tool-call-parser"):
        client.chat.completions.create(**CHAT, tools=[tool], tool_choice=choice)


def test_responses(client: Any) -> None:
    found = client.responses.create(model="llama", input="hi", max_output_tokens=8)
    assert found.usage.output_tokens <= 8
    assert found.output_text


def test_vllms_own_error_is_the_clients_exception(client: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(**{**CHAT, "temperature": -1})
