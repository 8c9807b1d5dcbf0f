"""Pods behind Knative's queue-proxy, which responds in their place when they are gone."""

import pytest

from common.pod_responses import QueueProxyFailure, classify_failure
from registry.domain.model import RoutingPolicy
from tests.gateway.gateway_harness import GatewayHarness

MIB = 1 << 20


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        pytest.param(
            502,
            b"dial tcp 127.0.0.1:8080: connect: connection refused\n",
            QueueProxyFailure.NOT_REACHED,
            id="nobody-listens",
        ),
        pytest.param(502, b"EOF\n", QueueProxyFailure.BROKEN, id="closed"),
        pytest.param(
            502,
            b"read tcp 127.0.0.1:4->127.0.0.1:8080: read: connection reset by peer\n",
            QueueProxyFailure.BROKEN,
            id="reset",
        ),
        pytest.param(503, b"pending request queue full\n", QueueProxyFailure.FULL, id="full"),
        pytest.param(503, b"context deadline exceeded\n", QueueProxyFailure.FULL, id="timed-out"),
    ],
)
def test_classifies_responses_of_the_queue_proxy(
    status: int, body: bytes, expected: QueueProxyFailure
) -> None:
    assert classify_failure(status, body) is expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "reason"), [("gone", "pod-died"), ("crash", "pod-died"), ("full", "slots")]
)
def test_a_request_that_the_pod_did_not_execute_is_retried_elsewhere(
    harness: GatewayHarness, state: str, reason: str
) -> None:
    spec, pods = harness.start_warm_pod(routing=RoutingPolicy.COLOCATION)
    harness.start_pods("pod-b")
    pods.control("pod-a", "queue-proxy", state)
    before = harness.metric("pilotlight_gateway_retries_total", reason=reason)
    response = harness.predict(spec, b"abc")
    assert (response.status_code, response.content) == (200, b"abc")
    assert response.headers["x-pilotlight-pod"] == "pod-b"
    assert pods.counts("pod-a")["executed"] == 0
    assert harness.metric("pilotlight_gateway_retries_total", reason=reason) > before
    harness.wait_idle(pods)


def test_a_request_that_a_live_pod_may_have_executed_is_not_retried(
    harness: GatewayHarness,
) -> None:
    spec, pods = harness.start_warm_pod(routing=RoutingPolicy.COLOCATION)
    others = harness.start_pods("pod-b")
    pods.control("pod-a", "queue-proxy", "broken")
    response = harness.predict(spec)
    assert response.status_code == 502
    assert "may have executed" in response.json()["error"]
    assert others.counts("pod-b")["asked"] == 0
    harness.wait_idle(pods)


@pytest.mark.slow
@pytest.mark.parametrize("state", ["gone", "full"])
def test_a_long_body_is_resent(harness: GatewayHarness, state: str) -> None:
    spec, pods = harness.start_warm_pod(routing=RoutingPolicy.COLOCATION)
    harness.start_pods("pod-b")
    pods.control("pod-a", "queue-proxy", state)
    response = harness.predict(spec, b"b" * 3 * MIB)
    assert (response.status_code, response.content) == (200, b"b" * 3 * MIB)
    assert response.headers["x-pilotlight-pod"] == "pod-b"
    harness.wait_idle(pods)
