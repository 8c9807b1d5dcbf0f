"""A request that kills every pod that serves it, among requests that do not."""

import pytest

from registry.domain.model import RoutingPolicy
from tests.gateway.gateway_harness import GatewayHarness, PodProcess, wait_counts
from tests.servers import wait_until

pytestmark = pytest.mark.slow

LETHAL = b'{"instances": ["lethal"]}'


def alive(pods: list[PodProcess]) -> list[PodProcess]:
    return [each for each in pods if each.process.poll() is None]


def test_a_request_that_kills_its_pod_kills_no_more_than_two(harness: GatewayHarness) -> None:
    spec = harness.declare(routing=RoutingPolicy.LEAST_LOADED)
    pods = [harness.start_pods(f"pod-{n}", warm=spec, lease_s=1) for n in range(5)]
    response = harness.predict(spec, LETHAL, x_test="die=1")
    assert response.status_code == 503, response.text
    assert "2 pods were lost with this request" in response.json()["error"]
    assert response.headers["x-pilotlight-reason"] == "lost-pods"
    assert 200 < int(response.headers["retry-after"]) <= 300
    wait_until(lambda: len(alive(pods)) <= 3, what="pods ended")

    for _ in range(10):  # the client, or another one, sends it again
        again = harness.predict(spec, LETHAL, x_test="die=1")
        assert again.status_code == 503
        assert "2 pods were lost" in again.json()["error"]
    assert len(alive(pods)) == 3
    for body in (b'{"instances": ["harmless"]}', LETHAL.replace(b"lethal", b"LETHAL")):
        assert harness.predict(spec, body).status_code == 200


def test_an_innocent_request_survives_the_death_of_its_pod(harness: GatewayHarness) -> None:
    spec = harness.declare(routing=RoutingPolicy.LEAST_LOADED)
    dying = harness.start_pods("pod-a", slots=4, warm=spec, lease_s=1)
    held = [
        harness.predict_in_background(spec, LETHAL, x_test="around=hold,at=pod-a") for _ in range(4)
    ]
    wait_counts(dying, "pod-a", busy=4)
    living = harness.start_pods("pod-b", slots=4, warm=spec, lease_s=1)
    dying.kill()
    for response in held:
        assert response.result().status_code == 200, response.result().text
        assert response.result().headers["x-pilotlight-pod"] == "pod-b"
    assert living.counts("pod-b")["executed"] == 4


def test_a_served_request_is_not_suspected_for_earlier_losses(harness: GatewayHarness) -> None:
    spec = harness.declare(routing=RoutingPolicy.LEAST_LOADED)
    for name in ("pod-a", "pod-b", "pod-c"):
        pods = harness.start_pods(name, warm=spec, lease_s=1)
        held = harness.predict_in_background(spec, LETHAL, x_test=f"around=hold,at={name}")
        wait_counts(pods, name, busy=1)
        living = harness.start_pods(f"{name}-2", warm=spec, lease_s=1)
        pods.kill()
        assert held.result().status_code == 200, held.result().text
        living.kill()
        wait_until(lambda: harness.slots_used(f"{name}-2") == -1, what="gone")  # noqa: B023
        harness.wait_synced()
