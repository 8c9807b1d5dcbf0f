"""What a pool grants to other namespaces: storage, their own credentials, pools, and quotas."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kubernetes.kubectl import Kubectl
from tests.kubernetes.load import load
from tests.kubernetes.models import Gateway, Tenant, model_object
from tests.kubernetes.object_store import MODEL_URI
from tests.kubernetes.places import IN_NAMESPACE, NAMESPACE
from tests.servers import wait_until

pytestmark = pytest.mark.kubernetes

READER = "weights-reader"
ENDS_WITHIN_S = 5.0


def grant(tenant: str, *, namespace: str = NAMESPACE, **data: str) -> dict[str, Any]:
    """A tenant's ConfigMap; keywords are further entries, with underscores."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"tenant-{tenant}",
            "namespace": namespace,
            "labels": {"pilotlight.io/tenant-of": "default"},
        },
        "data": {"namespace": tenant} | {key.replace("_", "-"): data[key] for key in data},
    }


@pytest.fixture
def closed_pool(installed: Kubectl, tenant: Tenant) -> Iterator[Kubectl]:
    """The pool admits the namespace `tenant` alone; afterwards every namespace again."""
    everyone = installed.get(*IN_NAMESPACE, "configmap", "everyone")
    installed.apply([grant(tenant.namespace, storage_prefixes="s3://")])
    installed(*IN_NAMESPACE, "delete", "configmap", "everyone")
    try:
        yield installed
    finally:
        kept = {key: everyone["metadata"][key] for key in ("name", "namespace", "labels")}
        installed.apply([{**everyone, "metadata": kept}])
        of_tenants = "pilotlight.io/tenant-of=default"
        names = [
            each["metadata"]["name"]
            for each in installed.get(*IN_NAMESPACE, "configmap", "-l", of_tenants)["items"]
        ]
        installed(
            *IN_NAMESPACE, "delete", "configmap", *(each for each in names if each != "everyone")
        )


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
    assert "may grant a prefix in the tenant's ConfigMap" in answer.errors


def test_a_tenants_pool_of_the_same_name_changes_nothing(
    stranger: Tenant, tenant: Tenant, gateway: Gateway
) -> None:
    document = model_object("stranger", "mine")
    document["metadata"]["labels"] = {"pilotlight.io/pool": "default"}
    document["metadata"]["annotations"] = {"serving.kserve.io/deploymentMode": "ModelMesh"}
    own = grant("stranger", namespace="stranger", storage_prefixes="file:/// http://")
    stranger.kubectl.apply([document, own])
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
        "role",
        "pilotlight-storage",
        "--verb=get",
        "--resource=serviceaccounts,secrets",
        f"--resource-name={READER}",
    )
    stranger.kubectl(
        "-n",
        "stranger",
        "create",
        "rolebinding",
        "pilotlight-storage",
        "--role=pilotlight-storage",
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


def processes(kubectl: Kubectl) -> set[tuple[str, str, int]]:
    """Of each of the pool's pods: uid, when its process started, and restarts."""
    of_pool = "serving.kserve.io/inferenceservice=pool"
    return {
        (pod["metadata"]["uid"], each["state"]["running"]["startedAt"], each["restartCount"])
        for pod in kubectl.get(*IN_NAMESPACE, "pods", "-l", of_pool)["items"]
        for each in pod["status"]["containerStatuses"]
    }


def ready(of: Tenant, name: str) -> tuple[str, str]:
    conditions = of.status(name).get("conditions") or []
    found = {each["type"]: (each["status"], each.get("message", "")) for each in conditions}
    return found.get("Ready", ("", ""))


def admitted(tenant: Tenant) -> None:
    wait_until(lambda: tenant.try_declare("m", pin="true").is_ok, what="it is admitted")


def test_tenants_come_change_and_go_while_others_are_served(
    closed_pool: Kubectl, tenant: Tenant, gateway: Gateway
) -> None:
    """No pod restarts, no request of another tenant fails, an old grant ends in time."""
    tenant.declare("stays", uri=MODEL_URI)
    tenant.wait_ready("stays")
    before = processes(closed_pool)
    coming = [Tenant(closed_pool, f"coming-{number}") for number in range(3)]
    closed_pool.apply(
        [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": each.namespace}}
            for each in coming
        ]
    )
    with load(gateway, tenant, "stays") as running:
        wait_until(
            lambda: "does not admit" in coming[0].try_declare("m", pin="true").errors,
            what="the pool admits the one tenant alone",
        )
        closed_pool.apply([grant(each.namespace, storage_prefixes="s3://") for each in coming])
        for each in coming:
            admitted(each)
            each.wait_ready("m")
            assert gateway.predict(each, "m").status_code == 200
        changed, leaving, _ = coming
        none_pinned = grant(changed.namespace, storage_prefixes="s3://", quotas="pinned:0")
        closed_pool.apply([none_pinned])
        wait_until(lambda: "exceeds the quota" in ready(changed, "m")[1], what="the quota holds")
        closed_pool(*IN_NAMESPACE, "delete", "configmap", f"tenant-{leaving.namespace}")
        began_s = time.monotonic()
        wait_until(lambda: gateway.predict(leaving, "m").status_code != 200, what="its grant ends")
        took_s = time.monotonic() - began_s
        answer = gateway.predict(leaving, "m")
        assert answer.status_code == 404, answer.text
        assert f"does not admit namespace '{leaving.namespace}'" in answer.text
        assert took_s < ENDS_WITHIN_S
        wait_until(lambda: "does not admit" in ready(leaving, "m")[1], what="the status says so")
        assert gateway.predict(coming[2], "m").status_code == 200
        running.wait_for_more(10)
    assert running.refused == running.broken == []
    assert processes(closed_pool) == before
    for each in coming:
        each.delete("m")
