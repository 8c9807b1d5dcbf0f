"""A predict pod behind Knative's queue-proxy, which responds in its place once it has ended."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.http_server import Handler, http_server
from tests.runtime.conftest import Cluster
from tests.runtime.http import post, predict
from tests.servers import wait_until

STATES = [
    pytest.param(502, "dial tcp 127.0.0.1:8080: connect: connection refused", "unreachable", 503,
                 id="nobody-listens"),
    pytest.param(502, "EOF", None, 503, id="broke-off"),
    pytest.param(503, "pending request queue full", "slots", 503, id="full"),
]  # fmt: skip


@contextlib.contextmanager
def queue_proxy(status: int, detail: str) -> Iterator[int]:
    """A server at `port` that sends this response to every request."""

    class Refusing(Handler):
        def do_POST(self) -> None:
            self.body()
            headers = {"content-type": "text/plain; charset=utf-8"}
            self.answer(status, f"{detail}\n".encode(), headers)

    with http_server(Refusing) as address:
        yield int(address.rpartition(":")[2])


@pytest.mark.slow
@pytest.mark.parametrize(("status", "detail", "refusal", "expected"), STATES)
def test_inference_error_of_the_queue_proxy(
    cluster: Cluster, models: Path, status: int, detail: str, refusal: str | None, expected: int
) -> None:
    cluster.declare("m", models / "tiny-bert")
    with queue_proxy(status, detail) as port:
        entry, other = cluster.pod("entry"), cluster.pod("other", advertise_port=port)
        assert other.port != port
        address = f"127.0.0.1:{port}"
        wait_until(lambda: detail in predict(entry.url, "m", "x", predict=address).text)
        response = predict(entry.url, "m", "x", predict=address)
    assert response.status_code == expected
    assert detail in response.json()["error"]
    assert response.headers.get("x-pilotlight-not-executed") == refusal
    assert response.headers["x-pilotlight-pod"] == "entry"


@pytest.mark.slow
@pytest.mark.parametrize(("status", "detail", "refusal", "expected"), STATES)
def test_generation_error_of_the_queue_proxy(
    cluster: Cluster, models: Path, status: int, detail: str, refusal: str | None, expected: int
) -> None:
    cluster.declare("chat", models / "tiny-gpt2")
    with queue_proxy(status, detail) as port:
        entry = cluster.pod("entry")
        cluster.pod("other", advertise_port=port)
        url = f"{entry.url}/openai/v1/completions"
        body = {"model": "chat", "prompt": "babe", "max_tokens": 2, "stream": True}

        def ask() -> Any:
            return post(url, body, x_pilotlight_predict=f"127.0.0.1:{port}")

        wait_until(lambda: detail in ask().text)
        response = ask()
    assert response.status_code == expected
    assert detail in response.json()["error"]["message"]
    assert response.headers.get("x-pilotlight-not-executed") == refusal
