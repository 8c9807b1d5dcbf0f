"""Components that are killed under load restart, and warm requests succeed meanwhile."""

from collections.abc import Iterator

import pytest

from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.kubectl import Kubectl
from tests.kubernetes.load import CLIENTS, load
from tests.kubernetes.models import Gateway, Tenant
from tests.kubernetes.places import API_URL, IN_NAMESPACE
from tests.kubernetes.processes import kill_pod
from tests.kubernetes.scaling import OF_POOL, Pool
from tests.kubernetes.suite import Cluster

pytestmark = pytest.mark.kubernetes

MODEL = "steady"
ENOUGH = 20


@pytest.fixture(scope="module", autouse=True)
def steady(gateway: Gateway, tenant: Tenant) -> None:
    """A tenant with a warm model."""
    tenant.declare(MODEL)
    tenant.wait_ready(MODEL)
    assert gateway.predict(tenant, MODEL).status_code == 200


@pytest.fixture
def plane(node: Cluster) -> ControlPlane:
    """The control plane of this machine."""
    assert node.plane is not None
    return node.plane


def test_requests_succeed_without_the_api_server(
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
    tenant.declare_with_retry("after-the-outage")
    tenant.wait_ready("after-the-outage")


def test_requests_succeed_without_the_controller(
    installed: Kubectl, gateway: Gateway, tenant: Tenant
) -> None:
    with load(gateway, tenant, MODEL) as running:
        kill_pod(_pods(installed, "app.kubernetes.io/name=pilotlight-controller")[0])
        running.wait_for_more(ENOUGH)
    assert (running.refused, running.broken) == ([], [])
    tenant.declare_with_retry("after-the-controller")
    tenant.wait_ready("after-the-controller")


def test_a_killed_gateway_loses_only_its_requests_in_flight(
    installed: Kubectl, gateway: Gateway, tenant: Tenant
) -> None:
    deployment = "deployment/pilotlight-gateway"
    installed(*IN_NAMESPACE, "scale", deployment, "--replicas=2")
    try:
        installed.wait("jsonpath={.status.readyReplicas}=2", *IN_NAMESPACE, deployment)
        with load(gateway, tenant, MODEL) as running:
            kill_pod(_pods(installed, "app.kubernetes.io/name=pilotlight-gateway")[0])
            running.wait_for_more(ENOUGH)
    finally:
        installed(*IN_NAMESPACE, "scale", deployment, "--replicas=1")
        installed.wait("jsonpath={.status.replicas}=1", *IN_NAMESPACE, deployment)
    assert running.refused == []
    assert len(running.broken) <= CLIENTS


@pytest.fixture(scope="module")
def two_pods(installed: Kubectl, gateway: Gateway) -> Iterator[Pool]:
    """A pool with two pods, independent of its autoscaler."""
    pool = Pool(installed)
    pool.allow(2, 2)
    yield pool
    pool.allow(1, 1)
    pool.wait_ready(1)


def test_no_request_fails_when_a_pod_is_killed(
    installed: Kubectl, two_pods: Pool, gateway: Gateway, tenant: Tenant
) -> None:
    two_pods.wait_ready(2)
    warm = _warm_pod(installed, gateway, tenant)
    with load(gateway, tenant, MODEL) as running:
        kill_pod(warm)
        running.wait_for_more(ENOUGH)
    assert (running.refused, running.broken) == ([], [])


def test_a_deleted_pod_completes_its_requests(
    installed: Kubectl, two_pods: Pool, gateway: Gateway, tenant: Tenant
) -> None:
    two_pods.wait_ready(2)
    warm = _warm_pod(installed, gateway, tenant)
    with load(gateway, tenant, MODEL) as running:
        installed(*IN_NAMESPACE, "delete", "pod", warm)  # returns when the pod is deleted
        running.wait_for_more(ENOUGH)
    assert (running.refused, running.broken) == ([], [])


def _warm_pod(kubectl: Kubectl, gateway: Gateway, tenant: Tenant) -> str:
    """The pod that serves the model."""
    warm = gateway.predict(tenant, MODEL).headers["x-pilotlight-pod"]
    assert warm in _pods(kubectl, OF_POOL)
    return warm


def _pods(kubectl: Kubectl, label: str) -> list[str]:
    items = kubectl.get(*IN_NAMESPACE, "pods", "-l", label)["items"]
    return [pod["metadata"]["name"] for pod in items]
