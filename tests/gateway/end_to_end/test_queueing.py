"""Queueing, deadlines and shared loads through a real gateway process."""

import json
from collections import Counter

import pytest

from registry.domain.model import RoutingPolicy
from tests.gateway.gateway_harness import GatewayHarness, wait_counts
from tests.servers import wait_until

pytestmark = pytest.mark.slow

QUEUEING = RoutingPolicy.COLOCATION_QUEUEING
HOLD = "delay=hold"


def test_a_full_queue_is_429(harness: GatewayHarness) -> None:
    spec, pods = harness.start_warm_pod(routing=QUEUEING, queue_depth=2)
    held = [harness.predict_in_background(spec, x_test=HOLD)]
    wait_counts(pods, "pod-a", busy=1)
    held += [harness.predict_in_background(spec), harness.predict_in_background(spec)]
    harness.wait_queued(2)
    refused = harness.predict(spec)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.headers["x-pilotlight-reason"] == "queue-full"
    assert "queue-depth is 2" in refused.json()["error"]
    pods.control("pod-a", "release")
    assert [response.result().status_code for response in held] == [200] * 3


def test_a_queue_timeout_is_504(harness: GatewayHarness) -> None:
    spec, pods = harness.start_warm_pod(routing=QUEUEING, queue_timeout_s=0.1)
    held = harness.hold_pod(pods, spec, x_test=HOLD)
    refused = harness.predict(spec)
    assert refused.status_code == 504
    assert refused.headers["x-pilotlight-reason"] == "queue-timeout"
    assert "0.1 s" in refused.json()["error"]
    pods.control("pod-a", "release")
    assert held.result().status_code == 200
    harness.wait_idle(pods)


@pytest.mark.parametrize("by", ["header", "annotation"])
def test_a_deadline_in_the_queue_is_504(harness: GatewayHarness, by: str) -> None:
    spec, pods = harness.start_warm_pod(
        routing=QUEUEING, deadline_s=0.1 if by == "annotation" else None
    )
    held = harness.hold_pod(pods, spec, x_test=HOLD, x_pilotlight_deadline_ms="20000")
    headers = {"x_pilotlight_deadline_ms": "100"} if by == "header" else {}
    refused = harness.predict(spec, **headers)
    assert refused.status_code == 504
    assert refused.headers["x-pilotlight-reason"] == "deadline"
    pods.control("pod-a", "release")
    assert held.result().status_code == 200


def test_a_deadline_at_the_pod_is_504_and_frees_the_slot(harness: GatewayHarness) -> None:
    spec, pods = harness.start_warm_pod()
    refused = harness.predict(spec, x_test=HOLD, x_pilotlight_deadline_ms="2000")
    assert refused.status_code == 504
    assert "deadline passed" in refused.json()["error"]
    wait_counts(pods, "pod-a", disconnected=1, busy=0)
    harness.wait_idle(pods)
    assert harness.predict(spec).status_code == 200


def test_a_deadline_that_cannot_be_met_is_rejected_at_once(harness: GatewayHarness) -> None:
    spec, pods = harness.start_warm_pod()
    measures = ("infer", "preprocess", "postprocess")
    pods.control("pod-a", "samples", json.dumps([[spec.key, m, [5.0]] for m in measures]))

    def asked() -> int:
        refused = harness.predict(spec, x_pilotlight_deadline_ms="1000")
        return refused.status_code == 504 and "15000 ms" in refused.json()["error"]

    wait_until(asked, what="measurement published")
    before = pods.counts("pod-a")["asked"]
    assert asked()
    assert pods.counts("pod-a")["asked"] == before


def test_tenants_take_turns_at_a_saturated_pod(harness: GatewayHarness) -> None:
    loud = harness.declare(namespace="loud", routing=QUEUEING)
    quiet = harness.declare(namespace="quiet", routing=QUEUEING)
    pods = harness.start_pods("pod-a", warm=(loud, quiet))
    responses = [harness.predict_in_background(loud, x_test=HOLD, x_request_id="first")]
    wait_counts(pods, "pod-a", busy=1)
    for n in range(6):
        spec, name = (loud, "loud") if n < 4 else (quiet, "quiet")
        responses.append(harness.predict_in_background(spec, x_request_id=f"{name}-{n}"))
        harness.wait_queued(n + 1)
    pods.control("pod-a", "release")
    assert [response.result().status_code for response in responses] == [200] * 7
    assert pods.counts("pod-a")["order"] == [
        "first",
        "loud-0",
        "quiet-4",
        "loud-1",
        "quiet-5",
        "loud-2",
        "loud-3",
    ]


def test_priority_goes_first_inside_a_tenant(harness: GatewayHarness) -> None:
    low = harness.declare(routing=QUEUEING)
    high = harness.declare(routing=QUEUEING, priority=5)
    pods = harness.start_pods("pod-a", warm=(low, high))
    responses = [harness.predict_in_background(low, x_test=HOLD, x_request_id="first")]
    wait_counts(pods, "pod-a", busy=1)
    for n, spec in enumerate((low, high)):
        responses.append(harness.predict_in_background(spec, x_request_id=("low", "high")[n]))
        harness.wait_queued(n + 1)
    pods.control("pod-a", "release")
    for response in responses:
        response.result()
    assert pods.counts("pod-a")["order"] == ["first", "high", "low"]


def test_50_concurrent_first_requests_load_once_and_report_the_tier(
    harness: GatewayHarness,
) -> None:
    spec = harness.declare(routing=QUEUEING)
    pods = harness.start_pods("pod-a", "pod-b", "pod-c", "pod-d")
    asked = [harness.predict_in_background(spec, x_test="load=hold") for _ in range(50)]
    harness.wait_queued(49)
    wait_until(lambda: pods.total("busy") == 1, what="load started")
    for name in pods.ports:
        pods.control(name, "release")
    responses = [response.result() for response in asked]
    assert Counter(response.status_code for response in responses) == {200: 50}
    assert pods.total("loads") == 1
    assert Counter(response.headers["x-pilotlight-start"] for response in responses) == {
        "remote": 50
    }
    assert harness.predict(spec).headers["x-pilotlight-start"] == "warm"


def test_50_concurrent_first_requests_under_auto_load_once_per_pod(harness: GatewayHarness) -> None:
    spec = harness.declare(routing=RoutingPolicy.AUTO)
    pods = harness.start_pods("pod-a", "pod-b", "pod-c", "pod-d", slots=2)
    asked = [harness.predict_in_background(spec) for _ in range(50)]
    assert Counter(response.result().status_code for response in asked) == {200: 50}
    assert all(pods.counts(name)["loads"] <= 1 for name in pods.ports)


def test_10_successive_requests_start_cold_once(harness: GatewayHarness) -> None:
    spec = harness.declare(routing=RoutingPolicy.COLOCATION)
    pods = harness.start_pods("pod-a", "pod-b", "pod-c", "pod-d")
    starts = [harness.predict(spec).headers["x-pilotlight-start"] for _ in range(10)]
    assert starts == ["remote"] + ["warm"] * 9
    assert pods.total("loads") == 1


def test_many_successive_requests_stay_at_the_warm_pod(harness: GatewayHarness) -> None:
    spec, _ = harness.start_warm_pod(routing=RoutingPolicy.COLOCATION)
    others = harness.start_pods("pod-b", "pod-c")
    for _ in range(200):
        assert harness.predict(spec).headers["x-pilotlight-pod"] == "pod-a"
    assert others.total("asked") == 0


def test_colocation_starts_another_copy_while_the_warm_pod_is_busy(harness: GatewayHarness) -> None:
    spec, pods = harness.start_warm_pod(routing=RoutingPolicy.COLOCATION)
    others = harness.start_pods("pod-b")
    held = harness.hold_pod(pods, spec, x_test=HOLD)
    response = harness.predict(spec)
    assert response.headers["x-pilotlight-pod"] == "pod-b"
    assert response.headers["x-pilotlight-reason"] == "cold-warm-busy"
    assert response.headers["x-pilotlight-start"] == "remote"
    assert others.counts("pod-b")["loads"] == 1
    pods.control("pod-a", "release")
    assert held.result().headers["x-pilotlight-start"] == "warm"


def test_remote_proxying_infers_at_the_warm_pod(harness: GatewayHarness) -> None:
    spec, pods = harness.start_warm_pod(routing=RoutingPolicy.REMOTE_PROXY)
    held = harness.hold_pod(pods, spec, x_test="around=hold,at=pod-a")
    others = harness.start_pods("pod-b")
    response = harness.predict(spec)
    assert response.headers["x-pilotlight-pod"] == "pod-b"
    assert response.headers["x-pilotlight-predict-pod"] == "pod-a"
    assert response.headers["x-pilotlight-reason"] == "warm-remote"
    assert response.headers["x-pilotlight-start"] == "warm"
    assert others.counts("pod-b")["loads"] == 0
    pods.control("pod-a", "release")
    assert held.result().status_code == 200
    harness.wait_idle(pods)


def test_remote_proxying_respects_the_target(harness: GatewayHarness) -> None:
    spec, pods = harness.start_warm_pod(
        routing=RoutingPolicy.REMOTE_PROXY, target_ongoing_requests=1
    )
    held = harness.hold_pod(pods, spec, x_test="delay=hold,at=pod-a")
    others = harness.start_pods("pod-b")
    response = harness.predict(spec)
    assert response.headers["x-pilotlight-predict-pod"] == "pod-b"
    assert others.counts("pod-b")["loads"] == 1
    pods.control("pod-a", "release")
    assert held.result().status_code == 200


def test_random_follows_the_seed(harness: GatewayHarness) -> None:
    spec = harness.declare(routing=RoutingPolicy.RANDOM)
    harness.start_pods("pod-a", "pod-b", "pod-c", "pod-d", warm=spec)
    runs = [
        [
            harness.predict(spec, x_pilotlight_seed=str(seed)).headers["x-pilotlight-pod"]
            for seed in range(12)
        ]
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert len(set(runs[0])) > 1
