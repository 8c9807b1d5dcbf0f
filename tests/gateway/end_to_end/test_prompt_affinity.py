"""A conversation through a real gateway: its turns go to the pod that has its beginning."""

from typing import Any

import httpx
import orjson
import pytest

from registry.domain.model import ModelSpec
from tests.gateway.gateway_harness import GatewayHarness

SYSTEM = {"role": "system", "content": "You answer in the words of the question. " * 40}
TALK = [SYSTEM, {"role": "user", "content": "What is a cat? " * 20}]
ANSWER = {"role": "assistant", "content": "An animal. " * 20}


def ask(
    harness: GatewayHarness, spec: ModelSpec, messages: list[Any], *, prefix: str
) -> httpx.Response:
    path = f"{prefix.format(spec.name.name)}/openai/v1/chat/completions"
    body = orjson.dumps({"model": spec.name.name, "messages": messages})
    response = harness.client.post(f"{harness.gateway.url}{path}", content=body)
    assert response.status_code == 200, response.text
    return response


@pytest.mark.parametrize(
    ("policy", "prefix"),
    [
        pytest.param("auto", "/serving/default/{}", id="auto"),
        pytest.param("colocation", "/serving/default/{}", id="colocation"),
        pytest.param("auto", "", id="named-by-the-body"),
    ],
)
def test_turns_go_where_their_conversation_was(
    harness: GatewayHarness, policy: str, prefix: str
) -> None:
    spec = harness.declare(routing=policy)
    pods = harness.start_pods("pod-a", "pod-b", warm=spec, slots=4)
    held = harness.hold_pod(pods, spec, x_test="delay=hold")
    first = ask(harness, spec, TALK, prefix=prefix)
    assert first.headers["x-pilotlight-pod"] == "pod-b"  # pod-a is busy
    pods.control("pod-a", "release")
    held.result()
    second = ask(harness, spec, [*TALK, ANSWER], prefix=prefix)
    assert second.headers["x-pilotlight-pod"] == "pod-b"
    other = ask(
        harness, spec, [{"role": "user", "content": "Something else. " * 100}], prefix=prefix
    )
    assert other.headers["x-pilotlight-pod"] == "pod-a"
    assert harness.explain(first.headers["x-request-id"])["cached"] == {}
    [(pod, share)] = harness.explain(second.headers["x-request-id"])["cached"].items()
    assert pod == "pod-b"
    assert 0.8 < share < 1.0
    tokens = harness.metric("pilotlight_gateway_prefix_cache_queries_total", model=str(spec.name))
    cached = harness.metric("pilotlight_gateway_prefix_cache_hits_total", model=str(spec.name))
    assert 0.3 < cached / tokens < 0.5
