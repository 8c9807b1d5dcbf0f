"""Each MUST of Gateway API's endpoint picker protocol (proposal 004, v1.0.0), with a real Envoy."""

from pathlib import Path

import httpx
import pytest

from tests import servers
from tests.certificates import write_certificates
from tests.envoy.conftest import StartEnvoy
from tests.envoy.envoy_proxy import DESTINATION
from tests.gateway.gateway_harness import GatewayHarness, PodProcess, running_harness, wait_counts

RETRIED = {"num_retries": 2, "host_selection_retry_max_attempts": 3}
NOT_EXECUTED = {
    "retry_on": "retriable-headers",
    "retriable_headers": [{"name": "x-pilotlight-not-executed", "present_match": True}],
    **RETRIED,
}
ECHO = {"x-test": "response=headers"}


def two_warm_pods(harness: GatewayHarness) -> tuple[str, PodProcess, PodProcess]:
    """The path of a model that `pod-a` and `pod-b` hold, in a process each."""
    spec = harness.declare()
    first = harness.start_pods("pod-a", warm=spec)
    return f"/v1/models/{spec.name.name}:predict", first, harness.start_pods("pod-b", warm=spec)


def address(pods: PodProcess) -> str:
    return f"127.0.0.1:{next(iter(pods.ports.values()))}"


@pytest.mark.parametrize("source", ["header", "metadata"])
def test_header_and_metadata_name_the_same_destination(
    harness: GatewayHarness, start_envoy: StartEnvoy, source: str
) -> None:
    spec, warm = harness.start_warm_pod()
    cold = harness.start_pods("pod-b")
    envoy = start_envoy(cold, warm, source=source)
    for _ in range(4):
        url = f"{envoy.url}/v1/models/{spec.name.name}:predict"
        response = harness.client.post(url, content=b"{}", headers=ECHO)
        assert response.status_code == 200
        assert response.headers["x-served"] == address(warm)
        listed = response.json()["headers"][DESTINATION]
        assert listed.split(",")[0] == address(warm)
    assert cold.counts("pod-b")["asked"] == 0


def test_only_endpoints_of_the_subset_are_picked(
    harness: GatewayHarness, start_envoy: StartEnvoy
) -> None:
    path, first, second = two_warm_pods(harness)
    envoy = start_envoy(first, second, subset=[address(second), "127.0.0.1:9"])
    for _ in range(4):
        response = harness.client.post(f"{envoy.url}{path}", content=b"{}", headers=ECHO)
        assert response.json()["headers"][DESTINATION] == address(second)


def test_a_cold_model_is_loaded_at_an_endpoint_of_the_subset(
    harness: GatewayHarness, start_envoy: StartEnvoy
) -> None:
    spec, warm = harness.start_warm_pod()
    cold = harness.start_pods("pod-b")
    envoy = start_envoy(warm, cold, subset=[address(cold)])
    response = harness.client.post(f"{envoy.url}/v1/models/{spec.name.name}:predict", content=b"{}")
    assert response.headers["x-served"] == address(cold)
    assert response.headers["x-pilotlight-start"] == "remote"


@pytest.mark.parametrize("subset", [[], ["127.0.0.1:9"]], ids=["empty", "none-eligible"])
def test_a_subset_without_an_eligible_endpoint_is_503(
    harness: GatewayHarness, start_envoy: StartEnvoy, subset: list[str]
) -> None:
    path, first, second = two_warm_pods(harness)
    envoy = start_envoy(first, second, subset=subset)
    response = harness.client.post(f"{envoy.url}{path}", content=b"{}")
    assert response.status_code == 503
    assert response.headers["x-pilotlight-reason"] == "no-pods"
    assert "subset" in response.json()["error"]
    assert first.total("asked") + second.total("asked") == 0


def test_503_if_no_endpoint_gets_ready(harness: GatewayHarness, start_envoy: StartEnvoy) -> None:
    spec = harness.declare(queue_timeout_s=0.3)
    with harness.running_pods("pod-a") as pods:
        envoy = start_envoy(pods)
    servers.wait_until(
        lambda: harness.client.get(f"{harness.gateway.url}/readyz").json()["pods"] == 0,
        what="pods gone",
    )
    response = harness.client.post(f"{envoy.url}/v1/models/{spec.name.name}:predict", content=b"{}")
    assert (response.status_code, response.headers["x-pilotlight-reason"]) == (503, "queue-timeout")


def test_429_if_the_request_is_shed(harness: GatewayHarness, start_envoy: StartEnvoy) -> None:
    spec, pods = harness.start_warm_pod(queue_depth=1)
    envoy = start_envoy(pods)
    url = f"{envoy.url}/v1/models/{spec.name.name}:predict"
    held = [
        harness.threads.submit(
            harness.client.post, url, content=b"{}", headers={"x-test": "delay=hold"}
        )
        for _ in range(2)
    ]
    harness.wait_queued(1)
    shed = harness.client.post(url, content=b"{}")
    assert (shed.status_code, shed.headers["x-pilotlight-reason"]) == (429, "queue-full")
    assert shed.headers["retry-after"]
    assert "queue-depth" in shed.json()["error"]
    for at in (1, 2):
        wait_counts(pods, "pod-a", asked=at, busy=1)
        pods.control("pod-a", "release")
    assert [each.result().status_code for each in held] == [200, 200]


def test_the_next_endpoint_of_the_list_serves_and_is_heard_of(
    harness: GatewayHarness, start_envoy: StartEnvoy
) -> None:
    path, first, second = two_warm_pods(harness)
    envoy = start_envoy(first, second, retry={"retry_on": "connect-failure", **RETRIED})
    first.kill()
    response = harness.client.post(f"{envoy.url}{path}", content=b"{}", headers=ECHO)
    assert response.status_code == 200
    assert response.json()["headers"][DESTINATION] == f"{address(first)},{address(second)}"
    assert response.headers["x-served"] == address(second)
    assert response.headers["x-pilotlight-pod"] == "pod-b"
    assert harness.metric("pilotlight_gateway_retries_total", reason="unreachable") == 1


def test_a_pod_that_did_not_execute_is_avoided(
    harness: GatewayHarness, start_envoy: StartEnvoy
) -> None:
    path, first, second = two_warm_pods(harness)
    envoy = start_envoy(first, second, retry=NOT_EXECUTED)
    wish = {"x-test": "refuse=draining,at=pod-a"}
    response = harness.client.post(f"{envoy.url}{path}", content=b"{}", headers=wish)
    assert (response.status_code, response.headers["x-served"]) == (200, address(second))
    assert harness.metric("pilotlight_gateway_retries_total", reason="unreachable") == 1
    alone = start_envoy(first, second)
    wish = {"x-test": "refuse=draining"}
    response = harness.client.post(f"{alone.url}{path}", content=b"{}", headers=wish)
    assert response.status_code == 503
    assert harness.metric("pilotlight_gateway_retries_total", reason="draining") == 1


@pytest.mark.parametrize("certificate", ["self-signed", "own"])
def test_envoy_asks_over_tls(
    redis: servers.RedisServer,
    tmp_path: Path,
    client: httpx.Client,
    pool: str,
    start_envoy: StartEnvoy,
    picker_port: int,
    certificate: str,
) -> None:
    folder = str(write_certificates(tmp_path / "tls")) if certificate == "own" else ""
    settings = {"picker_port": picker_port, "tls_dir": folder}
    with running_harness(tmp_path, redis.url, pool, client, **settings) as harness:
        spec = harness.declare(queue_depth=0)
        envoy = start_envoy(harness.start_pods("pod-a", slots=0), is_tls=True)
        response = client.post(f"{envoy.url}/v1/models/{spec.name.name}:predict", content=b"{}")
        assert (response.status_code, response.headers["x-pilotlight-reason"]) == (
            429,
            "queue-full",
        )
