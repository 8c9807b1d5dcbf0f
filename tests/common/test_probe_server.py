"""Health and metrics of a process, by real requests while its loop stands still."""

import socket
import time
from functools import partial

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter

from common import probe_server
from common.probe_server import exposition, serving_probes
from tests import servers

REGISTRY = CollectorRegistry()
Counter("served", "Requests.", registry=REGISTRY)
probe = partial(httpx.request, trust_env=False, verify=False)


@pytest.mark.slow
async def test_probes_are_answered_while_the_loop_is_busy() -> None:
    port, is_well = servers.free_port(), True
    url = f"http://127.0.0.1:{port}"
    metrics = partial(exposition, REGISTRY)
    # The loop is busy with these blocking requests, as with any other work.
    with serving_probes("127.0.0.1", port, is_ready=lambda: is_well, metrics=metrics):
        with socket.create_connection(("127.0.0.1", port)):  # a client that sends nothing
            assert probe("GET", f"{url}/readyz").status_code == 200
        time.sleep(1.0)  # noqa: ASYNC251 - the blocked loop is the test
        answer = probe("GET", f"{url}/readyz")
        assert answer.status_code == 200
        assert answer.json()["loop_age_seconds"] >= 1.0
        is_well = False
        assert probe("GET", f"{url}/readyz").status_code == 503
        assert probe("GET", f"{url}/healthz").status_code == 200
        assert probe("GET", f"{url}/other").status_code == 404
    with pytest.raises(httpx.ConnectError):
        probe("GET", url)


async def test_a_loop_that_is_stuck_for_long_is_unhealthy(monkeypatch: pytest.MonkeyPatch) -> None:
    port = servers.free_port()
    monkeypatch.setattr(probe_server, "STUCK_S", 0.0)
    with serving_probes(
        "127.0.0.1", port, is_ready=lambda: True, metrics=partial(exposition, REGISTRY)
    ):
        assert probe("GET", f"http://127.0.0.1:{port}/healthz").status_code == 503


async def test_metrics_are_in_the_form_that_the_client_accepts() -> None:
    port = servers.free_port()
    url, openmetrics = f"http://127.0.0.1:{port}/metrics", "application/openmetrics-text"
    with serving_probes(
        "127.0.0.1", port, is_ready=lambda: True, metrics=partial(exposition, REGISTRY)
    ):
        plain = probe("GET", url)
        assert plain.headers["content-type"].startswith("text/plain")
        assert "served_total 0.0" in plain.text
        accepted = probe("GET", url, headers={"accept": openmetrics})
        assert accepted.headers["content-type"].startswith(openmetrics)
        refused = probe("POST", url)
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET")


@pytest.mark.parametrize("fault", ["header", "collector"])
async def test_a_request_that_fails_does_not_end_the_server(fault: str) -> None:
    port = servers.free_port()
    url, accept = f"http://127.0.0.1:{port}", {"accept": "text/plain; version=other"}

    def metrics(accept: str) -> tuple[bytes, str]:
        if fault == "collector":
            raise RuntimeError("dictionary changed size during iteration")
        return exposition(REGISTRY, accept)

    with serving_probes("127.0.0.1", port, is_ready=lambda: True, metrics=metrics):
        with pytest.raises(httpx.RemoteProtocolError):
            probe("GET", f"{url}/metrics", headers=accept)
        assert probe("GET", f"{url}/healthz").status_code == 200
