"""A pool in Knative mode, with the real Knative: its pods serve behind real queue-proxies."""

import logging

import httpx
import pytest

from registry.domain.pod import CPU_SLOTS
from tests.kubernetes.knative import is_built, start_knative
from tests.kubernetes.kubectl import Kubectl
from tests.kubernetes.load import load
from tests.kubernetes.models import CALL_TIMEOUT_S, Gateway, Tenant
from tests.kubernetes.object_store import GENERATIVE_URI
from tests.kubernetes.places import IN_NAMESPACE
from tests.kubernetes.processes import kill_pod
from tests.kubernetes.scaling import Scaler
from tests.kubernetes.serverless import (
    LEAST,
    MOST,
    POOL,
    QUEUE_PROXY_PORT,
    Serverless,
    start_serverless,
)
from tests.kubernetes.suite import Cluster
from tests.servers import wait_until

logger = logging.getLogger(__name__)

pytestmark = pytest.mark.kubernetes

MODEL = "behind-a-queue"
WRITER = "writer-behind-a-queue"
ENOUGH = 20
ONE_SECOND = {"x-pilotlight-simulate": "preprocess=1.0"}
"""Enough requests to keep pods busy on any machine."""
KINDS = "ksvc,configuration,revision,route,podautoscaler,sks"


@pytest.fixture(scope="module")
def serverless(
    installed: Kubectl, gateway: Gateway, node: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Serverless:
    """A pool in Knative mode with its minimum of pods, beside the pool `default`."""
    assert gateway.url
    assert node.plane is not None
    if not is_built():
        pytest.skip("needs Knative's programs: scripts/kubernetes/build")
    start_knative(node.plane)
    return start_serverless(installed, tmp_path_factory.mktemp("serverless"))


@pytest.fixture(scope="module")
def warm(serverless: Serverless, tenant: Tenant) -> Tenant:
    """A tenant with a model that is warm in the pool."""
    tenant.declare(MODEL, pool=POOL, policy="least-loaded")
    tenant.wait_ready(MODEL)
    answer = serverless.gateway.predict(tenant, MODEL)
    assert (answer.status_code, answer.headers["x-pilotlight-start"]) == (200, "remote")
    return tenant


def test_the_pool_becomes_ready(installed: Kubectl, serverless: Serverless) -> None:
    assert serverless.revision
    installed.wait("condition=Ready", *IN_NAMESPACE, f"isvc/{POOL}")
    logger.info("\n%s", installed("get", *IN_NAMESPACE, f"isvc,{KINDS},pods"))


def test_kserve_passes_the_bounds_to_knative(serverless: Serverless) -> None:
    template = serverless.get("ksvc")["spec"]["template"]
    annotations = template["metadata"]["annotations"]
    assert annotations["autoscaling.knative.dev/min-scale"] == str(LEAST)
    assert annotations["autoscaling.knative.dev/max-scale"] == str(MOST)
    assert template["metadata"]["labels"]["pilotlight.io/pool"] == POOL


def test_pods_register_the_port_of_their_queue_proxy(serverless: Serverless) -> None:
    pods = serverless.pods()
    names = {container["name"] for pod in pods for container in pod["spec"]["containers"]}
    assert names == {"kserve-container", "queue-proxy"}
    entered = serverless.entered()
    for pod in pods:
        expected = f"{pod['status']['podIP']}:{QUEUE_PROXY_PORT}"
        assert entered[pod["metadata"]["name"]]["address"] == expected


def test_a_model_serves_through_the_queue_proxy(serverless: Serverless, warm: Tenant) -> None:
    answer = serverless.gateway.predict(warm, MODEL)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-pilotlight-start"] == "warm"
    assert answer.headers["x-pilotlight-pod"] in serverless.entered()
    assert len(answer.json()["predictions"]) == 1


def test_a_response_is_streamed_through_the_queue_proxy(
    serverless: Serverless, tenant: Tenant
) -> None:
    tenant.declare(WRITER, pool=POOL, uri=GENERATIVE_URI)
    tenant.wait_ready(WRITER)
    path = f"/serving/{tenant.namespace}/{WRITER}/openai/v1/completions"
    answer = httpx.post(
        serverless.gateway.url + path,
        json={"model": WRITER, "prompt": "hello", "max_tokens": 8, "stream": True},
        headers=tenant.credentials(),
        timeout=CALL_TIMEOUT_S,
        trust_env=False,
    )
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [line for line in answer.text.splitlines() if line.startswith("data: ")]
    assert len(events) > 2
    assert events[-1] == "data: [DONE]"


def test_the_actuator_leaves_scaling_to_knative(scale: Scaler, serverless: Serverless) -> None:
    done = scale(3, pool=POOL)
    assert done.returncode != 0
    assert "'Knative'" in done.stdout + done.stderr
    assert serverless.revision


def test_no_request_fails_when_a_runtime_dies_behind_its_queue_proxy(
    serverless: Serverless, warm: Tenant
) -> None:
    serves = serverless.gateway.predict(warm, MODEL).headers["x-pilotlight-pod"]
    with load(serverless.gateway, warm, MODEL) as running:
        kill_pod(serves, "PILOTLIGHT_POD_NAME")
        running.wait_for_more(ENOUGH)
    assert (running.refused, running.broken) == ([], [])
    serverless.wait_for_pods(LEAST)


def test_knative_scales_with_the_load_of_the_gateway_within_the_bounds(
    serverless: Serverless, warm: Tenant
) -> None:
    clients = 2 * MOST * CPU_SLOTS
    sends = load(serverless.gateway, warm, MODEL, clients=clients, headers=ONE_SECOND)
    with sends as running:
        wait_until(
            lambda: running.refused or serverless.wanted() == MOST,
            what=f"Knative wants {MOST} pods",
        )
        assert running.refused == []
        serverless.wait_for_pods(MOST)
        running.wait_for_more(ENOUGH)
    assert (running.refused, running.broken) == ([], [])
    wait_until(lambda: serverless.wanted() == LEAST, what=f"Knative wants {LEAST} pods again")


def test_a_new_bound_makes_a_new_revision_without_failed_requests(
    installed: Kubectl, serverless: Serverless, warm: Tenant
) -> None:
    before = serverless.revision
    pool = serverless.objects[0]
    pool["spec"]["predictor"]["minReplicas"] = LEAST + 1
    with load(serverless.gateway, warm, MODEL) as running:
        installed.apply([pool])
        wait_until(lambda: serverless.revision != before, what="the new bounds have a Revision")
        serverless.wait_for_pods(LEAST + 1)
        wait_until(
            lambda: serverless.wanted(before) == 0, what="Knative wants no pods of the old Revision"
        )
        old = [pod for name, pod in serverless.entered().items() if name.startswith(before)]
        assert {pod["phase"] for pod in old} <= {"draining"}
        running.wait_for_more(ENOUGH)
    assert (running.refused, running.broken) == ([], [])
    logger.info("\n%s", installed("get", *IN_NAMESPACE, f"isvc,{KINDS},pods"))
