"""What a pool grants to other namespaces: storage, their own credentials, pools, and quotas."""

from typing import Any

import pytest

from tests.kubernetes.kubectl import Kubectl
from tests.kubernetes.models import Gateway, Tenant, model_object
from tests.kubernetes.object_store import MODEL_URI
from tests.kubernetes.places import NAMESPACE
from tests.servers import wait_until

pytestmark = pytest.mark.kubernetes

READER = "weights-reader"


@pytest.fixture(scope="module")
def stranger(installed: Kubectl, gateway: Gateway) -> Tenant:
    """A namespace with a service account whose Secret reads the object store."""
    assert gateway.url
    metadata = {"name": "stranger"}
    installed.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}])
    keys = {"awsAccessKeyID": "test", "awsSecretAccessKey": "test"}
    in_namespace = {"namespace": "stranger", "name": READER}
    installed.apply(
        [
            {"apiVersion": "v1", "kind": "Secret", "metadata": in_namespace, "stringData": keys},
            {
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": in_namespace,
                "secrets": [{"name": READER}],
            },
        ]
    )
    return Tenant(installed, "stranger")


def with_account(name: str) -> dict[str, Any]:
    document = model_object("stranger", name)
    document["spec"]["predictor"]["serviceAccountName"] = READER
    return document


@pytest.mark.parametrize(
    "uri",
    [
        pytest.param("file:///var/cache/pilotlight/tenant~m@1", id="cache-of-others"),
        pytest.param("http://10.78.0.1/model.zip", id="inside-address"),
        pytest.param("webhdfs://10.78.0.1/model", id="inside-address-by-hdfs"),
    ],
)
def test_the_webhook_refuses_what_the_pool_does_not_grant(stranger: Tenant, uri: str) -> None:
    answer = stranger.kubectl.try_apply([model_object("stranger", "curious", uri=uri)])
    assert not answer.is_ok
    assert "pilotlight.io/storage-prefixes" in answer.errors


def test_a_tenants_pool_of_the_same_name_changes_nothing(
    stranger: Tenant, tenant: Tenant, gateway: Gateway
) -> None:
    document = model_object("stranger", "mine")
    document["metadata"]["labels"] = {"pilotlight.io/pool": "default"}
    document["metadata"]["annotations"] = {
        "pilotlight.io/storage-prefixes": "stranger=file:/// http://",
        "serving.kserve.io/deploymentMode": "ModelMesh",
    }
    stranger.kubectl.apply([document])
    wait_until(
        lambda: "PoolNotAdmitted" in stranger.kubectl("-n", "stranger", "get", "events"),
        what="an event says that the pool does not count",
    )
    answer = stranger.kubectl.try_apply(
        [model_object("stranger", "curious", uri="file:///etc/pilotlight")]
    )
    assert not answer.is_ok
    stranger.delete("mine")
    tenant.declare("beside-another-pool")
    tenant.wait_ready("beside-another-pool")
    assert gateway.predict(tenant, "beside-another-pool").status_code == 200


def test_a_models_own_credentials_are_read_once_its_namespace_allows_it(
    stranger: Tenant, gateway: Gateway
) -> None:
    stranger.kubectl.apply([with_account("own-keys")])
    stranger.wait_ready("own-keys")
    refused = gateway.predict(stranger, "own-keys")
    assert refused.status_code == 503
    assert "kubectl -n stranger create rolebinding" in refused.text
    stranger.kubectl(
        "-n",
        "stranger",
        "create",
        "rolebinding",
        "pilotlight-storage",
        "--clusterrole=pilotlight-storage-reader",
        f"--serviceaccount={NAMESPACE}:pilotlight-runtime",
    )
    stranger.kubectl.apply([with_account("own-keys-allowed")])
    stranger.wait_ready("own-keys-allowed")
    answer = gateway.predict(stranger, "own-keys-allowed")
    assert answer.status_code == 200, answer.text


def test_a_tenants_pod_with_a_pools_label_and_name_takes_nothing_down(
    stranger: Tenant, installed: Kubectl, tenant: Tenant, gateway: Gateway
) -> None:
    tenant.declare("serves-on", uri=MODEL_URI)
    tenant.wait_ready("serves-on")
    name = gateway.predict(tenant, "serves-on").headers["x-pilotlight-pod"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": "stranger",
            "name": name,
            "labels": {"pilotlight.io/pool": "default"},
        },
        "spec": {"containers": [{"name": "none", "image": "none"}], "nodeName": "no-such-node"},
    }
    installed.apply([pod])
    installed("-n", "stranger", "delete", "pod", name, "--grace-period=0", "--force")
    for _ in range(10):
        answer = gateway.predict(tenant, "serves-on")
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-pilotlight-pod"] == name
