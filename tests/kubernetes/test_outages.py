"""What is killed under load comes back, and warm requests are answered meanwhile."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from tests.kubernetes.load import CLIENTS, load
from tests.kubernetes.places import API_URL, IN_NAMESPACE
from tests.kubernetes.processes import kill_pod

if TYPE_CHECKING:
    from tests.kubernetes.control_plane import ControlPlane
    from tests.kubernetes.kubectl import Kubectl
    from tests.kubernetes.models import Gateway, Tenant
    from tests.kubernetes.suite import Cluster

logger = logging.getLogger(__name__)

pytestmark = pytest.mark.kubernetes

MODEL = "steady"
ENOUGH = 20


@pytest.fixture(scope="module", autouse=True)
def steady(gateway: Gateway, tenant: Tenant) -> None:
    """A model that is warm."""
    tenant.declare(MODEL)
    tenant.wait_ready(MODEL)
    assert gateway.predict(tenant, MODEL).status_code == 200


@pytest.fixture
def plane(node: Cluster) -> ControlPlane:
    """The control plane of this machine."""
    assert node.plane is not None
    return node.plane


def test_serves_on_without_the_api_server(
    plane: ControlPlane, gateway: Gateway, tenant: Tenant
) -> None:
    server = plane.programs["kube-apiserver"]
    with load(gateway, tenant, MODEL) as running:
        server.kill()
        running.wait_for_more(ENOUGH)
        server.start()
        plane.wait("API server ready again", f"{API_URL}/readyz")
        running.wait_for_more(ENOUGH)
    assert (running.refused, running.broken) == ([], [])
    tenant.declare("after-the-outage")
    tenant.wait_ready("after-the-outage")


def test_serves_on_without_the_controller(
    installed: Kubectl, gateway: Gateway, tenant: Tenant
) -> None:
    with load(gateway, tenant, MODEL) as running:
        kill_pod(_pods(installed, "app.kubernetes.io/name=pilotlight-controller")[0])
        running.wait_for_more(ENOUGH)
    assert (running.refused, running.broken) == ([], [])
    tenant.declare("after-the-controller")
    tenant.wait_ready("after-the-controller")


def test_a_killed_gateway_costs_no_more_than_what_it_was_at(
    installed: Kubectl, gateway: Gateway, tenant: Tenant
) -> None:
    with load(gateway, tenant, MODEL) as running:
        kill_pod(_pods(installed, "app.kubernetes.io/name=pilotlight-gateway")[0])
        running.wait_for_more(ENOUGH)
    assert running.refused == []
    assert len(running.broken) <= CLIENTS


def test_a_killed_pod_costs_no_request(
    installed: Kubectl, gateway: Gateway, tenant: Tenant
) -> None:
    of_pool = "serving.kserve.io/inferenceservice=pool"
    deployment = "deployment/pool-predictor"
    installed(*IN_NAMESPACE, "scale", deployment, "--replicas=2")
    installed.wait("jsonpath={.status.readyReplicas}=2", *IN_NAMESPACE, deployment, timeout_s=240)
    warm = gateway.predict(tenant, MODEL).headers["x-pilotlight-pod"]
    assert warm in _pods(installed, of_pool)
    with load(gateway, tenant, MODEL) as running:
        kill_pod(warm)
        running.wait_for_more(ENOUGH)
    assert (running.refused, running.broken) == ([], [])


def _pods(kubectl: Kubectl, label: str) -> list[str]:
    items = kubectl.get(*IN_NAMESPACE, "pods", "-l", label)["items"]
    return [pod["metadata"]["name"] for pod in items]
