"""A live gateway routes by a policy of another distribution, and outlives its errors."""

from collections.abc import Iterator

import httpx
import pytest

from tests import servers
from tests.gateway.gateway_harness import GatewayHarness, running_harness
from tests.plug_ins import install

_MODULE = """
from gateway.routing.decision import Reason, SendTo
from registry.domain.pod_state import LoadMode


def last_pod(request, cluster, now_s):
    name = max(cluster.pods)
    return SendTo(name, name, LoadMode.LOAD, Reason.MODEL_OBLIVIOUS)


def raises(request, cluster, now_s):
    raise ValueError("no idea")
"""


@pytest.fixture(scope="module")
def harness(
    redis: servers.RedisServer, client: httpx.Client, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayHarness]:
    """A gateway on whose path the distribution is installed."""
    folder = tmp_path_factory.mktemp("mine")
    entries = {"last-pod": "mine:last_pod", "raises": "mine:raises"}
    install(folder, "mine", "pilotlight.routing", entries, _MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        with running_harness(folder / "gateway", redis.url, "plug-ins", client) as started:
            yield started


@pytest.mark.slow
def test_models_and_requests_name_policies_of_plug_ins(harness: GatewayHarness) -> None:
    spec = harness.declare(routing="last-pod")
    harness.start_pods("pod-a", "pod-b", warm=spec)
    for identity in ("one", "two"):
        response = harness.predict(spec, x_request_id=identity)
        assert response.status_code == 200, response.text
        assert response.headers["x-pilotlight-policy"] == "last-pod"
        assert response.headers["x-pilotlight-pod"] == "pod-b"
    assert harness.explain("one")["policy"] == "last-pod"
    failed = harness.predict(spec, x_pilotlight_policy="raises")
    assert failed.status_code == 500
    assert failed.headers["x-pilotlight-reason"] == "policy-failed"
    assert "routing policy raises raised ValueError: no idea" in failed.text
    unknown = harness.predict(spec, x_pilotlight_policy="first-pod")
    assert unknown.status_code == 400
    assert all(f", {name}" in unknown.text for name in ("last-pod", "raises"))
    assert harness.predict(spec).status_code == 200


@pytest.mark.slow
def test_a_policy_that_the_gateway_lacks_rejects_and_says_what_to_install(
    harness: GatewayHarness,
) -> None:
    spec = harness.declare(routing="first-pod")
    response = harness.predict(spec)
    assert response.status_code == 500
    assert "'first-pod' is not installed here: known are auto, " in response.text
