"""A pool: KServe creates its Deployment, its pods run the real runtime and become ready."""

import logging

import pytest

from tests.kubernetes.kubectl import Kubectl
from tests.kubernetes.places import IN_NAMESPACE
from tests.kubernetes.suite import Cluster

logger = logging.getLogger(__name__)

pytestmark = pytest.mark.kubernetes

READY = 'jsonpath={.status.conditions[?(@.type=="Ready")].status}=True'
"""Instead of `condition=Ready`: KServe copies the Deployment's observed generation, but
kubectl waits for that of the InferenceService, which grows with each change of its bounds."""


def test_kserve_creates_a_deployment_without_another_scaler(installed: Kubectl) -> None:
    installed.wait("create", *IN_NAMESPACE, "deployment/pool-predictor")
    deployment = installed.get(*IN_NAMESPACE, "deployment", "pool-predictor")
    owner = deployment["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"]) == ("InferenceService", "pool")
    assert installed.get(*IN_NAMESPACE, "hpa")["items"] == []


def test_the_pool_becomes_ready_with_pods_that_run_the_runtime(
    installed: Kubectl, node: Cluster
) -> None:
    of_pool = (*IN_NAMESPACE, "pods", "-l", "serving.kserve.io/inferenceservice=pool")
    installed.wait("condition=Ready", *of_pool)
    installed.wait(READY, *IN_NAMESPACE, "inferenceservice/pool")
    logger.info("\n%s\n%s", installed("get", "isvc", "-A"), installed("get", "pods", "-A"))
    pods = installed.get(*of_pool)["items"]
    slices = installed.get(
        *IN_NAMESPACE, "endpointslices", "-l", "kubernetes.io/service-name=pool-predictor"
    )["items"]
    addresses = [
        address
        for item in slices
        for endpoint in item["endpoints"]
        for address in endpoint["addresses"]
    ]
    assert set(addresses) == {pod["status"]["podIP"] for pod in pods}
