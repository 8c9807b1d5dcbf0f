"""What the API server refuses to the platform's own accounts, and to a KServe without ModelMesh.

Each policy of `manifests/base/admission-policies.yaml` is tried with a token of its account.
"""

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from controller.resources import FINALIZER, KSERVE_FINALIZER
from controller.webhook_server import CHECK_INTERVAL_S
from tests.kubernetes.audit import LOG
from tests.kubernetes.kubectl import APPLY, Answer, Kubectl
from tests.kubernetes.models import Gateway, Tenant, model_object
from tests.kubernetes.places import IN_NAMESPACE, NAMESPACE, REPOSITORY
from tests.kubernetes.scaling import OF_POOL
from tests.kubernetes.suite import Cluster
from tests.servers import wait_until

pytestmark = pytest.mark.kubernetes

NAME = "bound"
CONTROLLERS_POD = "app.kubernetes.io/name=pilotlight-controller"
COST = "controller.kubernetes.io/pod-deletion-cost"
GATEWAY = f"pilotlight-gateway.{NAMESPACE}.svc.cluster.local"


@pytest.fixture
def controller(installed: Kubectl, tmp_path: Path) -> Kubectl:
    return installed.as_account(NAMESPACE, "pilotlight-controller", tmp_path)


@pytest.fixture
def model(gateway: Gateway, tenant: Tenant) -> Iterator[tuple[str, ...]]:
    """A served model: how kubectl names it."""
    assert gateway.url
    tenant.declare(NAME)
    tenant.wait_ready(NAME)
    yield ("-n", tenant.namespace, "inferenceservice", NAME)
    tenant.kubectl("delete", "-n", tenant.namespace, "isvc", NAME, "--ignore-not-found")


def patch(
    account: Kubectl, model: tuple[str, ...], change: Mapping[str, Any], *more: str
) -> Answer:
    return account.answer("patch", *model, "--type=merge", "-p", json.dumps(change), *more)


def send(account: Kubectl, path: str, change: Mapping[str, Any]) -> Answer:
    """A merge patch without the read that kubectl begins with, which the account may not do."""
    given = json.loads(account.kubeconfig.read_text())
    response = httpx.patch(
        given["clusters"][0]["cluster"]["server"] + path,
        content=json.dumps(change),
        headers={
            "content-type": "application/merge-patch+json",
            "authorization": f"Bearer {given['users'][0]['user']['token']}",
        },
        verify=False,
        trust_env=False,
        timeout=60,
    )
    return Answer(0 if response.is_success else response.status_code, "", response.text)


def is_refused(answer: Answer, words: str) -> None:
    assert not answer.is_ok
    assert "ValidatingAdmissionPolicy" in answer.errors
    assert words in answer.errors


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            {
                "spec": {
                    "predictor": {
                        "model": None,
                        "serviceAccountName": "default",
                        "containers": [{"name": "kserve-container", "image": "evil"}],
                    }
                }
            },
            id="spec",
        ),
        pytest.param({"metadata": {"annotations": {"pilotlight.io/pool": None}}}, id="annotations"),
        pytest.param({"metadata": {"labels": {"pilotlight.io/pool": "default"}}}, id="labels"),
        pytest.param(
            {
                "metadata": {
                    "ownerReferences": [
                        {"apiVersion": "v1", "kind": "Pod", "name": "none", "uid": "none"}
                    ]
                }
            },
            id="owners",
        ),
        pytest.param({"metadata": {"finalizers": [FINALIZER, "a.test/b"]}}, id="others-finalizers"),
        pytest.param(
            {"metadata": {"finalizers": [FINALIZER, KSERVE_FINALIZER]}}, id="finalizer-of-kserve"
        ),
    ],
)
def test_the_controller_changes_nothing_of_a_model(
    controller: Kubectl, model: tuple[str, ...], change: dict[str, Any]
) -> None:
    is_refused(patch(controller, model, change), "may change")


def test_the_controller_changes_its_finalizer_and_the_status(
    installed: Kubectl, controller: Kubectl, model: tuple[str, ...]
) -> None:
    """And takes KServe's finalizer away, which KServe may leave on a model."""
    kept = installed.get(*model)["metadata"]["finalizers"]
    both = {"metadata": {"finalizers": [*kept, KSERVE_FINALIZER]}}
    assert patch(installed, model, both).is_ok
    without = [each for each in kept if each != FINALIZER]
    for finalizers in (without, kept):
        change = {"metadata": {"finalizers": finalizers}}
        assert patch(controller, model, change).is_ok
    assert installed.get(*model)["metadata"]["finalizers"] == kept
    where = "/apis/serving.kserve.io/v1beta1/namespaces/tenant/inferenceservices"
    answer = send(controller, f"{where}/{NAME}/status", {"status": {"observedGeneration": 1}})
    assert answer.is_ok, answer.errors


@pytest.fixture(scope="module")
def allowing(installed: Kubectl, tenant: Tenant) -> Iterator[str]:
    """The tenant's namespace, in which the controller may make components."""
    name, here = "pilotlight-transformers", ("-n", tenant.namespace)
    account = f"--serviceaccount={NAMESPACE}:pilotlight-controller"
    installed(*here, "create", "rolebinding", "tried", f"--clusterrole={name}", account)
    yield tenant.namespace
    installed(*here, "delete", "rolebinding", "tried")


def owned(api_version: str, kind: str, name: str, namespace: str, **spec: Any) -> dict[str, Any]:
    """An object of the model `tried`, as the controller makes it."""
    owner = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "name": "tried",
        "uid": "00000000-0000-0000-0000-000000000000",
    }
    metadata = {"name": name, "namespace": namespace, "ownerReferences": [owner]}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}


def create(account: Kubectl, made: dict[str, Any]) -> Answer:
    return account.answer("create", "--dry-run=server", "-f", "-", given=json.dumps(made))


PORTS = [{"port": 80}]


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        pytest.param(
            "tried-predictor",
            {"type": "ExternalName", "externalName": "elsewhere.example.com"},
            id="elsewhere",
        ),
        pytest.param(
            "tried-predictor",
            {"type": "ExternalName", "externalName": f"{GATEWAY}.example.com"},
            id="longer-name",
        ),
        pytest.param(
            "tried-transformer", {"type": "ExternalName", "externalName": GATEWAY}, id="component"
        ),
        pytest.param(
            "tried-predictor",
            {"type": "ExternalName", "externalName": GATEWAY, "externalIPs": ["10.77.0.1"]},
            id="external-addresses",
        ),
        pytest.param(
            "tried-transformer",
            {"type": "LoadBalancer", "ports": PORTS, "selector": {"app": "isvc.tried-transformer"}},
            id="balancer",
        ),
        pytest.param(
            "tried-transformer",
            {"type": "ClusterIP", "ports": PORTS, "selector": {"app": "of-others"}},
            id="pods-of-others",
        ),
        pytest.param("tried-transformer", {"type": "ClusterIP", "ports": PORTS}, id="no-pods"),
    ],
)
def test_the_controllers_services_lead_to_the_gateway_or_to_a_component(
    controller: Kubectl, allowing: str, name: str, spec: dict[str, Any]
) -> None:
    answer = create(controller, owned("v1", "Service", name, allowing, **spec))
    is_refused(answer, "Services of Pilotlight's controller")


def deployment_spec() -> dict[str, Any]:
    labels = {"app": "isvc.tried-transformer"}
    pod = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "kserve-container", "image": "example.invalid/x:1"}]},
    }
    return {"replicas": 0, "selector": {"matchLabels": labels}, "template": pod}


def test_the_controller_makes_nothing_but_components_of_models(
    controller: Kubectl, allowing: str
) -> None:
    of_others = owned("apps/v1", "Deployment", "other", allowing, **deployment_spec())
    is_refused(create(controller, of_others), "of models only")
    nobodys = owned("apps/v1", "Deployment", "tried-transformer", allowing, **deployment_spec())
    del nobodys["metadata"]["ownerReferences"]
    is_refused(create(controller, nobodys), "of models only")


def test_the_controller_makes_components_of_models(controller: Kubectl, allowing: str) -> None:
    gateway = {"type": "ExternalName", "externalName": GATEWAY}
    pods = {"ports": PORTS, "selector": {"app": "isvc.tried-transformer"}}
    for made in (
        owned("apps/v1", "Deployment", "tried-transformer", allowing, **deployment_spec()),
        owned("v1", "Service", "tried-transformer", allowing, **pods),
        owned("v1", "Service", "tried-predictor", allowing, **gateway),
    ):
        answer = create(controller, made)
        assert answer.is_ok, answer.errors


@pytest.fixture
def pod(installed: Kubectl, gateway: Gateway) -> str:
    """The path of a pool's pod."""
    assert gateway.url
    found = installed.get(*IN_NAMESPACE, "pods", "-l", OF_POOL)["items"][0]
    return f"/api/v1/namespaces/{NAMESPACE}/pods/{found['metadata']['name']}"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"spec": {"activeDeadlineSeconds": 1}}, id="spec"),
        pytest.param({"metadata": {"labels": {"pilotlight.io/pool": "other"}}}, id="labels"),
        pytest.param({"metadata": {"annotations": {"other": "1"}}}, id="new-annotation"),
        pytest.param(
            {"metadata": {"annotations": {"serving.kserve.io/autoscalerClass": "hpa"}}},
            id="changed-annotation",
        ),
        pytest.param(
            {"metadata": {"annotations": {"serving.kserve.io/autoscalerClass": None}}},
            id="removed-annotation",
        ),
        pytest.param({"metadata": {"finalizers": ["a.test/b"]}}, id="finalizers"),
        pytest.param({"metadata": {"ownerReferences": None}}, id="owners"),
    ],
)
def test_the_autoscaler_changes_nothing_but_the_deletion_cost_of_a_pod(
    installed: Kubectl, pod: str, tmp_path: Path, change: dict[str, Any]
) -> None:
    autoscaler = installed.as_account(NAMESPACE, "pilotlight-autoscaler", tmp_path)
    is_refused(send(autoscaler, pod, change), COST)


def test_the_autoscaler_sets_and_removes_the_deletion_cost(
    installed: Kubectl, pod: str, tmp_path: Path
) -> None:
    autoscaler = installed.as_account(NAMESPACE, "pilotlight-autoscaler", tmp_path)
    for value in ("7", "8", None):
        answer = send(autoscaler, pod, {"metadata": {"annotations": {COST: value}}})
        assert answer.is_ok, answer.errors


def test_a_kserve_that_drops_the_mode_starts_no_pods_for_a_model(
    installed: Kubectl, gateway: Gateway, tenant: Tenant
) -> None:
    """The real KServe finds Knative in the status, which it reads before the annotation.

    It has its finalizer, which its webhook would not let it add to an object of two modes.
    """
    if not installed.answer("get", "crd", "services.serving.knative.dev").is_ok:
        pytest.skip(
            "needs Knative's kinds: in Standard KServe reads the annotation again, and fails"
        )
    installed(*APPLY, "-f", str(REPOSITORY / "manifests/components/one-model/runtime.yaml"))
    document = model_object(tenant.namespace, NAME)
    document["metadata"]["finalizers"] = [KSERVE_FINALIZER]
    document["spec"]["predictor"]["model"]["runtime"] = "pilotlight"
    installed("apply", "-f", "-", given=json.dumps(document))
    tenant.wait_ready(NAME)
    model = ("-n", tenant.namespace, "inferenceservice", NAME)
    status = {"status": {"deploymentMode": "Knative"}}
    assert patch(installed, model, status, "--subresource=status").is_ok

    def failure() -> str:
        conditions = tenant.status(NAME).get("conditions", ())
        found = installed.get("-n", tenant.namespace, "events")["items"]
        return json.dumps(conditions) + json.dumps([each.get("message") for each in found])

    wait_until(
        lambda: "which serves it without pods of its own" in failure(),
        what="KServe is refused its Service",
        timeout_s=120,
    )
    here = ("-n", tenant.namespace, "get", "deployments,ksvc", "-o", "name")
    assert f"{NAME}-predictor" not in installed(*here)
    # KServe 0.16 refuses each change of an object of two modes, also of one on its way out.
    status = {"status": {"deploymentMode": "ModelMesh"}}
    assert patch(installed, model, status, "--subresource=status").is_ok
    tenant.delete(NAME)


def parked(kind: str, version: str, **labels: str) -> dict[str, Any]:
    """What KServe makes of a model: annotations and labels are copied to the pods."""
    annotations = {"pilotlight.io/pool": "default", "serving.kserve.io/deploymentMode": "ModelMesh"}
    owner = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "name": "parked",
        "uid": "00000000-0000-0000-0000-000000000000",
    }
    pod = {
        "metadata": {"annotations": annotations, "labels": {"app": "parked", **labels}},
        "spec": {"containers": [{"name": "kserve-container", "image": "example.invalid/x:1"}]},
    }
    spec: dict[str, Any] = {"template": pod}
    if kind == "Deployment":
        spec |= {"replicas": 0, "selector": {"matchLabels": {"app": "parked"}}}
    metadata = {"name": "parked", "namespace": "tenant", "ownerReferences": [owner]}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def test_knative_services_of_models_are_refused_and_transformers_pass(
    installed: Kubectl, tenant: Tenant
) -> None:
    refused = [parked("Deployment", "apps/v1", component="predictor")]
    if installed.answer("get", "crd", "services.serving.knative.dev").is_ok:
        refused.append(parked("Service", "serving.knative.dev/v1", component="predictor"))
    for made in refused:
        is_refused(create(installed, made), "without pods of its own")
    passing = [parked("Deployment", "apps/v1", component="transformer")]
    one_model = parked("Deployment", "apps/v1", component="predictor")
    one_model["spec"]["template"]["metadata"]["annotations"] = {
        "serving.kserve.io/deploymentMode": "Standard"
    }
    tenants_own = parked("Deployment", "apps/v1", component="predictor")
    del tenants_own["metadata"]["ownerReferences"]
    for made in (*passing, one_model, tenants_own):
        answer = create(installed, made)
        assert answer.is_ok, answer.errors


# Withdrawal


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"annotations": {"pilotlight.io/pool": None}}, id="annotation"),
        pytest.param(
            {"annotations": {"pilotlight.io/pool": None}, "finalizers": []},
            id="annotation-and-finalizers",
        ),
    ],
)
def test_a_model_without_its_annotation_is_withdrawn_until_it_has_it_again(
    installed: Kubectl,
    gateway: Gateway,
    tenant: Tenant,
    model: tuple[str, ...],
    change: dict[str, Any],
) -> None:
    assert patch(installed, model, {"metadata": change}).is_ok
    installed.wait("condition=Ready=False", *model[:2], f"isvc/{NAME}")
    found = installed.get(*model)
    status = found["status"]
    conditions = {each["type"]: each for each in status["conditions"]}
    assert conditions["Ready"]["reason"] == "Withdrawn"
    assert "set the annotation again" in conditions["Ready"]["message"]
    assert "Warm" not in conditions
    assert status.keys().isdisjoint({"url", "address"})
    assert FINALIZER not in found["metadata"].get("finalizers", ())
    assert gateway.predict(tenant, NAME).status_code == 404
    time.sleep(2)  # KServe's answer to our last write, if it has one
    assert tenant.status(NAME) == status
    tenant.declare(NAME)
    tenant.wait_ready(NAME)
    assert gateway.predict(tenant, NAME).status_code == 200


# Webhooks


def test_an_object_on_its_way_out_is_left_alone_without_the_controller(
    installed: Kubectl, gateway: Gateway, tenant: Tenant
) -> None:
    """Also one without a mode, as of a time before the webhooks."""
    webhook = ("mutatingwebhookconfiguration", "defaults.pilotlight.io")
    conditions = installed.get(*webhook)["webhooks"][0]["matchConditions"]
    assert {each["name"] for each in conditions} == {
        "names-a-pool",
        "has-no-mode",
        "is-not-on-its-way-out",
    }
    tenant.declare("leaving")
    tenant.wait_ready("leaving")
    here = ("-n", tenant.namespace, "isvc", "leaving")
    deployment = (*IN_NAMESPACE, "deployment/pilotlight-controller")
    installed("scale", *deployment, "--replicas=0")
    try:
        installed.wait("delete", *IN_NAMESPACE, "pods", "-l", CONTROLLERS_POD)
        installed("delete", *here, "--wait=false")
        free = {"metadata": {"finalizers": None}}
        installed("patch", *here, "--type=merge", "-p", json.dumps(free))
        installed.wait("delete", "-n", tenant.namespace, "isvc/leaving")
    finally:
        installed("scale", *deployment, "--replicas=1")
        installed.wait("condition=Available", *deployment)
        tenant.declare_with_retry("leaving-no-more")
        tenant.delete("leaving-no-more")


def test_the_ca_bundles_are_written_once(node: Cluster, gateway: Gateway) -> None:
    assert node.plane is not None
    path = node.plane.folder / LOG

    def calls(verb: str) -> int:
        return sum(
            entry["verb"] == verb
            and entry["objectRef"].get("resource", "").endswith("webhookconfigurations")
            for entry in map(json.loads, path.read_text().split("\n")[:-1])  # whole lines only
            if "objectRef" in entry
        )

    written, read = calls("patch"), calls("get")
    wait_until(
        lambda: calls("get") >= read + 4,
        timeout_s=6 * CHECK_INTERVAL_S,
        what="two more checks of both configurations",
    )
    assert calls("patch") == written
