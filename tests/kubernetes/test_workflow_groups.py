"""Groups of schedulers, by the component `workflow-groups`: each runs steps at its own pods."""

import base64
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from common.pod_secret import HEADER
from tests.kubernetes.kubectl import Kubectl
from tests.kubernetes.models import Gateway, Tenant
from tests.kubernetes.places import IN_NAMESPACE
from tests.kubernetes.scaling import OF_POOL, Pool
from tests.kubernetes.schedulers import deployed_schedulers
from tests.servers import wait_until
from tests.test_workflow_manifests import groups_object
from workflows.plan.problem import PodGroup

pytestmark = pytest.mark.kubernetes

GROUPS = 2
OF_SCHEDULERS = "app.kubernetes.io/name=pilotlight-workflows"
PORT = 8090
SEVERAL = """
from pilotlight.workflow import model, workflow

@workflow(deadline="200s")
async def several(count: int):
    steps = [model("of-groups")(str(number)) for number in range(count)]
    return [(await step)["label"] for step in steps]
"""


@pytest.fixture
def pods(installed: Kubectl, gateway: Gateway) -> Iterator[list[str]]:
    """The pool's pods, of each group at least one."""
    assert gateway.url
    pool = Pool(installed)
    pool.allow(2, 2)
    pool.wait_ready(2)
    while not all(_members(names := _pool_pods(installed), group) for group in range(GROUPS)):
        installed(*IN_NAMESPACE, "delete", "pod", names[0])
        pool.wait_ready(2)
    yield names
    pool.allow(1, 1)


@pytest.fixture
def schedulers(installed: Kubectl, gateway: Gateway, tmp_path: Path) -> Iterator[dict[int, str]]:
    """The addresses of the schedulers, by the number of their group."""
    assert gateway.url
    with deployed_schedulers(
        installed, tmp_path, "workflow-groups", objects=[groups_object(GROUPS)]
    ):
        found = installed.get(*IN_NAMESPACE, "pods", "-l", OF_SCHEDULERS)["items"]
        yield {
            int(each["metadata"]["labels"]["apps.kubernetes.io/pod-index"]): each["status"]["podIP"]
            for each in found
        }


def _pool_pods(installed: Kubectl) -> list[str]:
    found = installed.get(*IN_NAMESPACE, "pods", "-l", OF_POOL)["items"]
    return [each["metadata"]["name"] for each in found]


def _members(pods: list[str], group: int) -> set[str]:
    return {each for each in pods if PodGroup(group, GROUPS).holds(each)}


def test_each_scheduler_runs_steps_at_its_own_pods(
    installed: Kubectl,
    gateway: Gateway,
    tenant: Tenant,
    pods: list[str],
    schedulers: dict[int, str],
) -> None:
    tenant.declare("of-groups")
    tenant.wait_ready("of-groups")
    assert sorted(schedulers) == list(range(GROUPS))
    secrets = installed.get(*IN_NAMESPACE, "secret", "pilotlight-pods")["data"]["secrets"]
    secret = base64.b64decode(secrets).decode().split()[0]
    headers = {HEADER: secret, "x-pilotlight-namespace": tenant.namespace}
    url = f"{gateway.url}/serving/{tenant.namespace}/several/v1/workflows/several"
    with httpx.Client(trust_env=False, timeout=240) as client:
        wait_until(
            lambda: client.put(url, content=SEVERAL).status_code == 200,
            what="workflow deployed",
            timeout_s=60,
        )
        for group, address in schedulers.items():
            own = f"http://{address}:{PORT}/v1/workflows/several"
            response = client.post(f"{own}:run", json={"count": 4}, headers=headers)
            assert response.status_code == 200, response.text
            run = client.get(f"{url}/runs/{response.json()['id']}").json()
            assert {step["pod"] for step in run["steps"]} == _members(pods, group)
