"""An InferenceService with one model: KServe creates its pods and downloads the weights."""

import logging
from typing import Any

import httpx
import pytest
import yaml

from tests.kubernetes.kubectl import APPLY
from tests.kubernetes.models import CALL_TIMEOUT_S, Tenant
from tests.kubernetes.places import REPOSITORY
from tests.kubernetes.suite import Cluster

logger = logging.getLogger(__name__)

pytestmark = pytest.mark.kubernetes

MANIFESTS = REPOSITORY / "manifests"
RUNTIME = MANIFESTS / "components" / "one-model" / "runtime.yaml"
SAMPLE = MANIFESTS / "samples" / "kubernetes" / "one-model.yaml"
READER = "reader"
NAME = "restricted"
INITIALIZER = {
    "name": "storage-initializer",
    "image": "kserve/storage-initializer:v0.20.0",
    "securityContext": {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    },
}
STORAGE = {
    "apiVersion": "serving.kserve.io/v1alpha1",
    "kind": "ClusterStorageContainer",
    "metadata": {"name": NAME},
    "spec": {
        "container": INITIALIZER,
        "supportedUriFormats": [{"prefix": "s3://"}],
        "workloadType": "initContainer",
    },
}
"""KServe's own has no security context, so an administrator of such a namespace sets one."""


def _account(cluster: Cluster, namespace: str) -> list[dict[str, Any]]:
    """A service account with S3 credentials, as in KServe's documentation."""
    assert cluster.store is not None
    environment = cluster.store.environment
    prefix = "serving.kserve.io/s3-"
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": READER,
            "namespace": namespace,
            "annotations": {
                prefix + "endpoint": cluster.store.url.removeprefix("http://"),
                prefix + "usehttps": "0",
                prefix + "region": "us-east-1",
            },
        },
        "stringData": {
            name: environment[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        },
    }
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": READER, "namespace": namespace},
        "secrets": [{"name": READER}],
    }
    return [secret, account]


@pytest.fixture
def tenant(node: Cluster) -> Tenant:
    """A namespace that takes pods of Pod Security `restricted` only."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    metadata = {"name": NAME, "labels": labels}
    node.admin.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}, STORAGE])
    return Tenant(node.admin, NAME)


def test_kserve_creates_a_deployment_whose_pod_serves_the_model(
    node: Cluster, tenant: Tenant
) -> None:
    admin, here = node.admin, ("-n", tenant.namespace)
    admin(*APPLY, "-f", str(RUNTIME))
    admin.apply(_account(node, tenant.namespace))
    service = yaml.safe_load(SAMPLE.read_text())
    name = service["metadata"]["name"]
    service["metadata"]["namespace"] = tenant.namespace
    service["spec"]["predictor"]["serviceAccountName"] = READER
    admin.apply([service])
    admin.wait("create", *here, f"deployment/{name}-predictor")
    admin.wait("condition=Available", *here, f"deployment/{name}-predictor", timeout_s=280)
    admin.wait("condition=Ready", *here, f"isvc/{name}")
    logger.info("\n%s", admin("get", *here, "isvc,deployment,pods"))
    address = admin.get(*here, "service", f"{name}-predictor")["spec"]["clusterIP"]
    answer = httpx.post(
        f"http://{address}/v1/models/{name}:predict",
        json={"instances": ["a cat sat down"]},
        timeout=CALL_TIMEOUT_S,
        trust_env=False,
    )
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["predictions"]) == 1
    status = tenant.status(name)
    assert status["clusterServingRuntimeName"] == "pilotlight"
    admin("delete", *here, f"isvc/{name}")
    admin("delete", "clusterstoragecontainer", NAME)
