"""Requests with many rows beside small ones, requests sent again, bodies of OpenAI's routes."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest

from common.inference_protocol import BodyTooLarge
from common.inference_protocol.bodies import MAX_JSON_COMMAS, parse_object
from registry.domain.model import ModelPolicy
from tests import servers
from tests.runtime.conftest import Cluster
from tests.runtime.http import get, metric, post, post_bytes, predict
from tests.servers import cpu_s

pytestmark = pytest.mark.slow

WORDS = "quick brown fox over the lazy dog"


def batches(pod: servers.Pod) -> float:
    return metric(pod.url, "pilotlight_batches_total", model="default/m", outcome="ok")


def test_a_request_of_many_rows_runs_in_parts(cluster: Cluster, models: Path) -> None:
    policy = ModelPolicy(max_batch_size=4)
    cluster.declare("m", models / "tiny-bert", task="text-embedding", policy=policy)
    pod = cluster.pod(slots=4)
    texts = [" ".join([WORDS] * (n % 5)) + f" {n}" for n in range(30)]
    alone: list[Any] = []
    for text in texts:
        alone += predict(pod.url, "m", text).json()["predictions"]
    before = batches(pod)
    together = predict(pod.url, "m", *texts).json()["predictions"]
    assert batches(pod) == before + 8
    for one, other in zip(alone, together, strict=True):
        assert max(abs(a - b) for a, b in zip(one, other, strict=True)) < 1e-4


def test_rows_of_generated_text_are_joined(cluster: Cluster, models: Path) -> None:
    cluster.declare("m", models / "tiny-t5", policy=ModelPolicy(max_batch_size=2))
    pod = cluster.pod()
    texts = ["a", WORDS, "dog", WORDS * 3, "fox"]
    alone = [predict(pod.url, "m", text).json()["predictions"][0] for text in texts]
    assert predict(pod.url, "m", *texts).json()["predictions"] == alone


def test_a_large_valid_request_does_not_shut_its_model_for_others(
    cluster: Cluster, models: Path
) -> None:
    cluster.declare("m", models / "tiny-bert", task="text-embedding")
    pod = cluster.pod(slots=4)
    limit_s = 16 * min(_time(pod, 8) for _ in range(3))  # of 128 such parts
    cluster.declare(
        "m", models / "tiny-bert", task="text-embedding", policy=ModelPolicy(max_infer_s=limit_s)
    )
    texts = [" ".join([WORDS] * 60)] * 1024
    url = f"{pod.url}/v1/models/default~m:predict"
    response = post(url, orjson.loads(orjson.dumps({"instances": texts})))
    assert response.status_code == 200, response.text
    assert len(response.json()["predictions"]) == 1024
    assert predict(pod.url, "m", "x").status_code == 200


def _time(pod: servers.Pod, rows: int) -> float:
    texts = [" ".join([WORDS] * 60)] * rows
    assert predict(pod.url, "m", *texts).status_code == 200
    began_s = time.monotonic()
    predict(pod.url, "m", *texts)
    return time.monotonic() - began_s


def test_json_of_very_many_values_is_refused_before_it_is_parsed() -> None:
    few = b'{"data":[' + b",".join([b"1"] * MAX_JSON_COMMAS) + b"]}"
    assert len(parse_object(few)["data"]) == MAX_JSON_COMMAS
    with pytest.raises(BodyTooLarge, match="send large tensors in binary"):
        parse_object(few[:-2] + b",1,1]}")


def test_a_begun_request_is_not_executed_again(cluster: Cluster, models: Path) -> None:
    cluster.declare("m", models / "tiny-bert")
    pod = cluster.pod()
    url, body = f"{pod.url}/v1/models/default~m:predict", {"instances": ["x"]}
    ids = {"x_request_id": "r1"}
    assert predict(pod.url, "m", "x").status_code == 200
    assert post(url, body, **ids, x_pilotlight_resent="1").status_code == 200
    again = post(url, body, **ids, x_pilotlight_resent="1")
    assert again.status_code == 502
    assert "had begun" in again.json()["error"]
    assert "x-pilotlight-not-executed" not in again.headers
    assert post(url, body, **ids).status_code == 200


def test_requests_of_one_id_are_told_apart_by_their_attempt(cluster: Cluster, models: Path) -> None:
    cluster.declare("m", models / "tiny-bert")
    pod = cluster.pod()
    url, body = f"{pod.url}/v1/models/default~m:predict", {"instances": ["x"]}
    ids = {"x_request_id": "r1", "x_pilotlight_resent": "1"}
    assert post(url, body, **ids, x_pilotlight_attempt="a1").status_code == 200
    assert post(url, body, **ids, x_pilotlight_attempt="a2").status_code == 200
    assert post(url, body, **ids, x_pilotlight_attempt="a2").status_code == 502


MIB = 1 << 20
EMPTY = b'"",' * (2 * MIB // 3) + b'""'
LONGEST_STOP_S = 1.0
"""Longest work of the pod without a response of its liveness."""


@pytest.fixture(scope="module")
def attacked(shared_cluster: Cluster, models: Path) -> servers.Pod:
    shared_cluster.declare("chat", models / "tiny-gpt2")
    shared_cluster.declare("embedder", models / "tiny-bert", task="text-embedding")
    return shared_cluster.pod("pod-a", slots=8, lease_ttl=6.0)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        pytest.param(
            "completions", b'{"model": "chat", "prompt": [%b]}' % EMPTY, "prompt", id="prompt"
        ),
        pytest.param(
            "completions",
            b'{"model": "chat", "prompt": [%b1]}' % (b"1," * MIB),
            "prompt may have 1048576 items, has 1048577",
            id="too-many-tokens",
        ),
        pytest.param(
            "completions",
            b'{"model": "chat", "prompt": "x", "stop": [%b]}' % EMPTY,
            "stop may have 16 items, has 699051",
            id="stop",
        ),
        pytest.param(
            "chat/completions",
            b'{"model": "chat", "messages": [%b]}' % EMPTY,
            "messages may have 4096 items",
            id="messages",
        ),
        pytest.param(
            "chat/completions",
            b'{"model": "chat", "messages": [{"role": "user", "content": [%b]}]}' % EMPTY,
            "parts",
            id="parts",
        ),
        pytest.param(
            "embeddings",
            b'{"model": "embedder", "input": [%b]}' % EMPTY,
            "input may have 1024 items",
            id="input",
        ),
        pytest.param(
            "completions", b'{"model": "chat", "prompt": %b}' % (b"[" * MIB), "JSON", id="depth"
        ),
    ],
)
def test_an_invalid_body_does_not_stop_the_pod(
    attacked: servers.Pod, path: str, body: bytes, message: str
) -> None:
    with ThreadPoolExecutor(4) as attackers:
        url = f"{attacked.url}/openai/v1/{path}"
        attacks = [attackers.submit(post_bytes, url, body) for _ in range(4)]
        longest_s = 0.0
        while not all(attack.done() for attack in attacks):
            began_s = cpu_s(attacked.pid)
            assert get(f"{attacked.url}/v2/health/live").status_code == 200
            longest_s = max(longest_s, cpu_s(attacked.pid) - began_s)
        for attack in attacks:
            response = attack.result()
            assert response.status_code == 400, response.text
            assert message in response.json()["error"]["message"]
    assert longest_s < LONGEST_STOP_S
    assert "lease lost" not in attacked.log


def test_a_body_over_the_limit_of_openai_bodies_is_413(attacked: servers.Pod) -> None:
    body = b'{"model": "chat", "prompt": "%b"}' % (b"x" * 5 * MIB)
    response = post_bytes(f"{attacked.url}/openai/v1/completions", body)
    assert response.status_code == 413
    assert "may have 4194304 bytes" in response.json()["error"]["message"]
