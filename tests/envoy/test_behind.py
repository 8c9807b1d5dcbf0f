"""Pilotlight's gateway behind a plain Envoy, as `manifests/gateways/behind.yaml` says."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests import servers
from tests.envoy.envoy_proxy import Envoy, envoy
from tests.gateway.gateway_harness import GatewayHarness, wait_counts


@pytest.fixture
def before(harness: GatewayHarness, tmp_path: Path) -> Iterator[Envoy]:
    """An Envoy whose upstream is the gateway."""
    port = urlsplit(harness.gateway.url).port
    assert port is not None
    with envoy(tmp_path, None, [port]) as started:
        yield started


def test_requests_pass_as_they_are(harness: GatewayHarness, before: Envoy) -> None:
    spec, _ = harness.start_warm_pod(namespace="team")
    path = f"{before.url}/v2/models/{spec.name.name}/infer"
    sent = {"host": f"{spec.name.name}.team.example.com", "x-test": "response=headers"}
    response = harness.client.post(path, content=b"x" * 300_000, headers=sent)
    assert response.status_code == 200
    assert response.headers["x-pilotlight-pod"] == "pod-a"
    assert response.json()["headers"]["x-envoy-expected-rq-timeout-ms"] == "310000"


def test_a_stream_arrives_piece_by_piece(harness: GatewayHarness, before: Envoy) -> None:
    spec, pods = harness.start_warm_pod()
    url = f"{before.url}/v1/models/{spec.name.name}:predict"
    wish = {"x-test": "pieces=2,gap=hold"}
    with harness.client.stream("POST", url, content=b"{}", headers=wish) as response:
        pieces = response.iter_raw()
        assert next(pieces)  # before the others were sent
        for _ in range(2):
            pods.control("pod-a", "release")
        assert b"".join(pieces)
    harness.wait_idle(pods)


def test_what_the_gateway_refuses_is_not_sent_again(harness: GatewayHarness, before: Envoy) -> None:
    spec = harness.declare(queue_timeout_s=0.3)
    response = harness.client.post(f"{before.url}/v1/models/{spec.name.name}:predict", content=b"")
    assert response.status_code == 504
    assert response.headers["x-pilotlight-reason"] == "queue-timeout"
    assert before.statistic("cluster.pods.upstream_rq_total") == 1
    assert before.statistic("cluster.pods.upstream_rq_retry$") == 0


def test_a_client_that_leaves_frees_its_slot(harness: GatewayHarness, before: Envoy) -> None:
    spec, pods = harness.start_warm_pod()
    url = f"{before.url}/v1/models/{spec.name.name}:predict"
    wish = {"x-test": "delay=hold"}
    with httpx.Client(trust_env=False, timeout=1.0) as impatient, pytest.raises(httpx.ReadTimeout):
        impatient.post(url, content=b"{}", headers=wish)
    wait_counts(pods, "pod-a", disconnected=1)
    servers.wait_until(
        lambda: harness.metric("pilotlight_gateway_reservations") == 0, what="slot freed"
    )
