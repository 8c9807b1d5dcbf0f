"""Bodies of OpenAI's protocol that are small to send and long to check."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.runtime.http import get, post_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from tests import servers
    from tests.runtime.conftest import Cluster

MIB = 1 << 20
EMPTY = b'"",' * (2 * MIB // 3) + b'""'
LONGEST_STOP_S = 1.0
"""Longest time without a response of the pod's liveness, on a busy machine."""


@pytest.fixture(scope="module")
def attacked(shared_cluster: Cluster, models: Path) -> servers.Pod:
    shared_cluster.declare("chat", models / "tiny-gpt2")
    shared_cluster.declare("embedder", models / "tiny-bert", task="text-embedding")
    return shared_cluster.pod("pod-a", slots=8, lease_ttl=1.5, heartbeat=0.2)


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
            began_s = time.monotonic()
            assert get(f"{attacked.url}/v2/health/live").status_code == 200
            longest_s = max(longest_s, time.monotonic() - began_s)
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
