"""Steps that a scheduler of workflows has placed: beside a pod's slots, in its step queue."""

import pytest

from registry.domain.model import RoutingPolicy
from tests.gateway.gateway_harness import GatewayHarness, wait_counts

pytestmark = pytest.mark.slow

HOLD = "around=hold"
"""Without the device, as a step whose inputs are fetched."""


def test_a_step_and_a_request_do_not_wait_for_each_other(harness: GatewayHarness) -> None:
    spec, pods = harness.start_warm_pod(routing=RoutingPolicy.COLOCATION_QUEUEING)
    step = harness.predict_in_background(spec, x_test=HOLD, x_pilotlight_place_at="pod-a")
    wait_counts(pods, "pod-a", busy=1, steps=1)
    request = harness.predict_in_background(spec, x_test=HOLD)
    wait_counts(pods, "pod-a", busy=2, steps=1)  # the only slot, which the step does not have
    other = harness.predict(spec, x_pilotlight_place_at="pod-a")
    assert other.status_code == 200, other.text
    waiting = harness.predict_in_background(spec)
    harness.wait_queued(1)
    pods.control("pod-a", "release")
    assert [each.result().status_code for each in (step, request, waiting)] == [200] * 3
    harness.wait_idle(pods)


def test_a_full_step_queue_is_the_schedulers_to_answer(harness: GatewayHarness) -> None:
    spec, pods = harness.start_warm_pod()
    refused = harness.predict(spec, x_test="refuse=step-queue", x_pilotlight_place_at="pod-a")
    assert refused.headers["x-pilotlight-not-executed"] == "step-queue"
    assert pods.counts("pod-a")["asked"] == 1
    harness.wait_idle(pods)


def test_a_step_for_any_pod_waits_for_no_slot(harness: GatewayHarness) -> None:
    spec, pods = harness.start_warm_pod(routing=RoutingPolicy.AUTO)
    request = harness.predict_in_background(spec, x_test=HOLD)
    wait_counts(pods, "pod-a", busy=1, steps=0)
    steps = [
        harness.predict_in_background(spec, x_test=HOLD, x_pilotlight_place_at="*")
        for _ in range(3)
    ]
    wait_counts(pods, "pod-a", busy=4, steps=3)
    pods.control("pod-a", "release")
    assert [each.result().status_code for each in (request, *steps)] == [200] * 4
    harness.wait_idle(pods)
