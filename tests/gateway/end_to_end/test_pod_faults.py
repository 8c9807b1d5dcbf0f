"""Pods that refuse requests, break connections or die: requests are retried, no slot leaks."""

import threading
from collections import Counter

import httpx
import pytest

from registry.domain.model import RoutingPolicy
from registry.redis.client import Registry
from tests.gateway.gateway_harness import GatewayHarness, PodProcess
from tests.servers import wait_until

pytestmark = pytest.mark.slow

QUEUEING = RoutingPolicy.COLOCATION_QUEUEING
MIB = 1 << 20


@pytest.mark.parametrize("refusal", ["slots", "draining"])
def test_a_refused_request_is_retried_at_another_pod(harness: GatewayHarness, refusal: str) -> None:
    spec, pods = harness.start_warm_pod(routing=RoutingPolicy.COLOCATION)
    harness.start_pods("pod-b")
    before = harness.metric("pilotlight_gateway_retries_total", reason=refusal)
    response = harness.predict(spec, b"abc", x_test=f"refuse={refusal},at=pod-a")
    assert response.status_code == 200, response.text
    assert response.content == b"abc"
    assert response.headers["x-pilotlight-pod"] == "pod-b"
    assert pods.counts("pod-a")["executed"] == 0
    assert harness.metric("pilotlight_gateway_retries_total", reason=refusal) > before
    harness.wait_idle(pods)


def test_an_inference_without_device_memory_is_retried_once(harness: GatewayHarness) -> None:
    spec = harness.declare(routing=RoutingPolicy.COLOCATION)
    first = harness.start_pods("pod-a", warm=spec)
    second = harness.start_pods("pod-b")
    before = harness.metric("pilotlight_gateway_retries_total", reason="device-full")
    response = harness.predict(spec, b"abc", x_test="refuse=device-full,at=pod-a")
    assert response.status_code == 200, response.text
    assert response.headers["x-pilotlight-pod"] == "pod-b"
    too_large = harness.predict(spec, x_test="refuse=device-full")
    assert too_large.status_code == 503
    assert too_large.json()["error"] == "not executed"
    assert first.counts("pod-a")["refused"] + second.counts("pod-b")["refused"] == 3
    after = harness.metric("pilotlight_gateway_retries_total", reason="device-full")
    assert after == before + 2
    harness.wait_idle(first)


@pytest.mark.parametrize("refusal", ["load-failed", "no-memory"])
def test_a_request_whose_load_of_a_second_copy_fails_is_served_by_the_warm_pod(
    harness: GatewayHarness, refusal: str
) -> None:
    spec, pods = harness.start_warm_pod(routing=RoutingPolicy.COLOCATION)
    held = harness.hold_pod(pods, spec, x_test="delay=hold,at=pod-a")
    loading = harness.start_pods("pod-b")
    failing = harness.predict_in_background(spec, x_test=f"refuse={refusal},at=pod-b")
    wait_until(lambda: loading.counts("pod-b")["refused"] == 1, what="the load failed")
    pods.control("pod-a", "release")
    assert held.result().status_code == 200
    response = failing.result()
    assert response.status_code == 200, response.text
    assert response.headers["x-pilotlight-pod"] == "pod-a"
    assert loading.counts("pod-b")["asked"] == 1
    harness.wait_idle(pods)


def test_a_failed_load_is_the_response_where_no_other_pod_is_warm(harness: GatewayHarness) -> None:
    spec = harness.declare(routing=RoutingPolicy.COLOCATION)
    pods = harness.start_pods("pod-a")
    response = harness.predict(spec, x_test="refuse=load-failed")
    assert response.status_code == 503
    assert response.json()["error"] == "not executed"
    assert pods.counts("pod-a")["asked"] == 1


def test_only_the_full_device_is_avoided(harness: GatewayHarness) -> None:
    spec = harness.declare(routing=RoutingPolicy.REMOTE_PROXY)
    full = harness.start_pods("pod-a", warm=spec)
    held = harness.hold_pod(full, spec, x_test="around=hold")
    harness.start_pods("pod-b", warm=spec)
    response = harness.predict(spec, x_test="refuse-stage=device-full,at=pod-a")
    assert response.status_code == 200, response.text
    assert response.headers["x-pilotlight-pod"] == "pod-b"
    assert response.headers["x-pilotlight-predict-pod"] == "pod-b"
    assert full.counts("pod-a")["refused"] == 1
    full.control("pod-a", "release")
    assert held.result().status_code == 200
    harness.wait_idle(full)


def test_a_predict_pod_that_is_gone_is_avoided(harness: GatewayHarness) -> None:
    spec = harness.declare(routing=RoutingPolicy.REMOTE_PROXY)
    gone = harness.start_pods("pod-a", warm=spec)
    held = harness.hold_pod(gone, spec, x_test="around=hold")
    harness.start_pods("pod-b", warm=spec)
    response = harness.predict(spec, x_test="refuse-stage=unreachable,at=pod-a")
    assert response.status_code == 200, response.text
    assert response.headers["x-pilotlight-predict-pod"] == "pod-b"
    assert gone.counts("pod-a")["refused"] == 1
    gone.control("pod-a", "release")
    assert held.result().status_code == 200


def test_a_temporary_refusal_is_retried_with_backoff(harness: GatewayHarness) -> None:
    spec, pods = harness.start_warm_pod(routing=QUEUEING)
    response = harness.predict(spec, x_test="refuse=slots,times=4")
    assert response.status_code == 200, response.text
    assert pods.counts("pod-a")["refused"] == 4


def test_a_request_that_every_pod_refuses_fails_with_a_message(harness: GatewayHarness) -> None:
    spec = harness.declare()
    pods = harness.start_pods("pod-a", "pod-b", warm=spec)
    response = harness.predict(spec, x_test="refuse=slots", x_pilotlight_deadline_ms="4000")
    assert response.status_code in (503, 504)
    assert response.json()["error"]
    assert pods.total("executed") == 0
    harness.wait_idle(pods)


def test_a_long_body_is_resent(harness: GatewayHarness) -> None:
    spec, _ = harness.start_warm_pod(routing=RoutingPolicy.COLOCATION)
    harness.start_pods("pod-b")
    response = harness.predict(spec, b"b" * 3 * MIB, x_test="refuse=slots,at=pod-a")
    assert (response.status_code, response.content) == (200, b"b" * 3 * MIB)
    assert response.headers["x-pilotlight-pod"] == "pod-b"


def test_a_draining_pod_gets_nothing_new(harness: GatewayHarness) -> None:
    spec, pods = harness.start_warm_pod()
    others = harness.start_pods("pod-b", warm=spec)
    pods.control("pod-a", "drain")
    harness.wait_synced()
    for _ in range(5):
        assert harness.predict(spec).headers["x-pilotlight-pod"] == "pod-b"
    assert others.counts("pod-b")["executed"] == 5


def test_retries_end_with_the_retry_budget(harness: GatewayHarness) -> None:
    spec = harness.declare()
    harness.start_pods("pod-a", slots=64, warm=spec)
    refused = [harness.predict_in_background(spec, x_test="refuse=slots") for _ in range(40)]
    errors = Counter(response.result().json()["error"] for response in refused)
    assert any("retry budget is spent" in error for error in errors), errors
    assert all(response.result().status_code == 503 for response in refused)


def test_a_stale_connection_is_replaced_without_an_error(harness: GatewayHarness) -> None:
    spec, pods = harness.start_warm_pod()
    for _ in range(3):
        assert harness.predict(spec, x_test="close=after").status_code == 200
    for n in range(3):
        assert harness.predict(spec, x_test="close=reused").status_code == 200, n
    assert pods.counts("pod-a")["executed"] == 6


def test_a_long_body_is_sent_over_a_new_connection(harness: GatewayHarness) -> None:
    spec, pods = harness.start_warm_pod()
    assert harness.predict(spec).status_code == 200
    response = harness.predict(spec, b"c" * 3 * MIB, x_test="close=reused")
    assert response.status_code == 200, response.text
    assert len(response.content) == 3 * MIB
    assert pods.counts("pod-a")["executed"] == 2


def test_connections_to_pods_are_reused(harness: GatewayHarness) -> None:
    spec, pods = harness.start_warm_pod()
    before = pods.counts("pod-a")["connections"]
    for _ in range(20):
        harness.predict(spec)
    assert pods.counts("pod-a")["connections"] == before + 1


def test_a_pod_that_closes_without_response_is_502(harness: GatewayHarness) -> None:
    spec, pods = harness.start_warm_pod()
    response = harness.predict(spec, x_test="close=before")
    assert response.status_code == 502
    assert "may have executed" in response.json()["error"]
    harness.wait_idle(pods)
    assert harness.predict(spec).status_code == 200


def test_a_pod_that_closes_after_its_head_is_502(harness: GatewayHarness) -> None:
    spec, pods = harness.start_warm_pod()
    response = harness.predict(spec, x_test="close=head")
    assert response.status_code == 502
    assert response.json()["error"]
    harness.wait_idle(pods)


def test_a_truncated_response_of_the_pod_is_truncated_for_the_client(
    harness: GatewayHarness,
) -> None:
    spec, pods = harness.start_warm_pod()
    with pytest.raises(httpx.RemoteProtocolError):
        harness.predict(spec, b"0123456789", x_test="close=middle")
    harness.wait_idle(pods)
    assert harness.metric("pilotlight_gateway_requests_total", model=str(spec.name)) == 1
    assert harness.predict(spec).status_code == 200


@pytest.mark.parametrize("size", [10, 20 * MIB])
def test_a_response_before_the_body_was_read_is_forwarded(
    harness: GatewayHarness, size: int
) -> None:
    spec, pods = harness.start_warm_pod()
    response = harness.predict(spec, b"d" * size, x_test="early=413")
    assert response.status_code == 413
    assert response.json() == {"error": "early"}
    harness.wait_idle(pods)


def test_an_unreachable_pod_is_avoided(harness: GatewayHarness) -> None:
    spec, pods = harness.start_warm_pod(routing=RoutingPolicy.COLOCATION)
    harness.start_pods("pod-b")
    pods.kill()
    for _ in range(3):
        response = harness.predict(spec, b"e" * 3 * MIB)
        assert response.status_code == 200
        assert response.headers["x-pilotlight-pod"] == "pod-b"
    epoch = _epoch_of(harness, "pod-a")
    harness.run(lambda registry: registry.deregister_pod("pod-a", epoch))


def test_a_request_waits_for_a_pod_that_registered_again_while_busy(
    harness: GatewayHarness,
) -> None:
    """The registry lost the long request with the pod's lease; the pod still has no free slot."""
    spec = harness.declare(routing=QUEUEING, queue_timeout_s=3.0)
    pods = harness.start_pods("pod-a", slots=1, warm=spec)
    long = harness.hold_pod(pods, spec, x_test="around=hold")
    epoch = _epoch_of(harness, "pod-a")
    harness.run(lambda registry: registry.deregister_pod("pod-a", epoch))
    wait_until(lambda: harness.slots_used("pod-a") == 0, what="pod registered again")
    harness.wait_synced()
    waited = harness.predict(spec)
    assert waited.status_code == 504
    assert "queue-timeout" in waited.json()["error"]
    assert pods.counts("pod-a")["refused"] == 1
    pods.control("pod-a", "release")
    assert long.result().status_code == 200
    harness.wait_idle(pods)
    assert harness.predict(spec).status_code == 200


def test_a_killed_pod_costs_few_responses_and_no_slot(harness: GatewayHarness) -> None:
    spec = harness.declare(routing=RoutingPolicy.LEAST_LOADED)
    dying = harness.start_pods("pod-a", slots=4, warm=spec, lease_s=1)
    living = harness.start_pods("pod-b", slots=4, warm=spec)
    stop = threading.Event()
    responses: list[httpx.Response] = []

    def ask_on() -> None:
        while not stop.is_set():
            responses.append(harness.predict(spec, x_test="delay=0.003"))

    asking = [harness.threads.submit(ask_on) for _ in range(8)]
    try:
        wait_counts_over(dying, "pod-a", executed=20)
        dying.kill()
        wait_counts_over(living, "pod-b", executed=living.counts("pod-b")["executed"] + 100)
    finally:
        stop.set()
    for each in asking:
        each.result()
    statuses = Counter(response.status_code for response in responses)
    assert statuses[200] > 100
    assert set(statuses) <= {200, 502, 503}
    assert all(response.json()["error"] for response in responses if response.status_code != 200)
    assert statuses[200] > 0.9 * len(responses)
    wait_until(lambda: harness.slots_used("pod-a") == -1, what="pod-a deregistered")
    harness.wait_idle(living)
    assert harness.predict(spec).headers["x-pilotlight-pod"] == "pod-b"


def test_a_load_claimed_by_a_dead_pod_is_started_elsewhere(harness: GatewayHarness) -> None:
    spec = harness.declare(routing=QUEUEING)
    dying = harness.start_pods("pod-a", lease_s=3)
    first = harness.hold_pod(dying, spec, x_test="load=hold,at=pod-a")
    living = harness.start_pods("pod-b")
    second = harness.predict_in_background(spec)
    harness.wait_queued(1)
    dying.kill()
    assert second.result().status_code == 200
    assert first.result().status_code in (200, 502)
    assert living.counts("pod-b")["loads"] == 1


def wait_counts_over(pods: PodProcess, pod: str, **counts: int) -> None:
    """Wait until the pod's counters have at least these values."""
    wait_until(
        lambda: all(pods.counts(pod)[name] >= least for name, least in counts.items()),
        what=f"{pod} over {counts}",
    )


def _epoch_of(harness: GatewayHarness, pod: str) -> int:
    async def look(registry: Registry) -> int:
        _, _, snapshot = await registry.transactions.snapshot()
        return next(int(entry[2]) for entry in snapshot.pods if entry[0] == pod)

    return harness.run(look)
