"""Transformers and explainers on KServe's Standard mode: real pods, made by the controller."""

from typing import Any

import httpx
import pytest

from tests.kubernetes.kubectl import Kubectl
from tests.kubernetes.models import Gateway, Tenant, model_object
from tests.servers import wait_until

pytestmark = pytest.mark.kubernetes

NAME = "prepared"
CONTAINER = {
    "image": "pilotlight/runtime:test",
    "command": ["python", "-m", "tests.kubernetes.transformer"],
    "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
}


@pytest.fixture(scope="module")
def allowed(installed: Kubectl, tenant: Tenant) -> Tenant:
    """A namespace that lets the controller make the pods."""
    account = "--serviceaccount=pilotlight:pilotlight-controller"
    role = "--clusterrole=pilotlight-transformers"
    names = ("-n", tenant.namespace, "rolebinding", "pilotlight-transformers")
    installed("create", *names, role, account)
    return tenant


def _object(tenant: Tenant, name: str, **components: Any) -> dict[str, Any]:
    found = model_object(tenant.namespace, name)
    found["spec"] |= {each: {"containers": [CONTAINER], **of} for each, of in components.items()}
    return found


def _names(tenant: Tenant, kinds: str) -> list[str]:
    return tenant.kubectl("get", "-n", tenant.namespace, kinds, "-o", "name").split()


def _explain(gateway: Gateway, tenant: Tenant, name: str) -> httpx.Response:
    path = f"/serving/{tenant.namespace}/{name}/v1/models/{name}:explain"
    return httpx.post(
        gateway.url + path,
        json={"instances": ["hi"]},
        headers=tenant.credentials(),
        timeout=300.0,
        trust_env=False,
    )


def test_without_the_binding_the_model_says_what_is_missing(
    gateway: Gateway, installed: Kubectl, tenant: Tenant
) -> None:
    tenant.kubectl.apply([_object(tenant, "unbound", transformer={})])

    def message() -> str:
        conditions = tenant.status("unbound").get("conditions", ())
        return next((each["message"] for each in conditions if each["type"] == "Ready"), "")

    wait_until(
        lambda: "create rolebinding pilotlight-transformers" in message(),
        what="the missing right is named",
        timeout_s=120,
    )
    tenant.delete("unbound")


def test_a_transformer_prepares_requests_and_goes_with_its_model(
    gateway: Gateway, allowed: Tenant
) -> None:
    kubectl, tenant = allowed.kubectl, allowed
    bounds = {"minReplicas": 1, "maxReplicas": 3}
    kubectl.apply([_object(tenant, NAME, transformer=bounds, explainer={})])
    tenant.wait_ready(NAME)
    answer = gateway.predict(tenant, NAME, "other", "texts")
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-pilotlight-reason"] == "transformer"
    first, second = answer.json()["predictions"]
    assert (first, answer.json()["transformed"]) == (second, True)  # both texts became one
    assert len(_explain(gateway, tenant, NAME).json()["explanations"]) == 1
    scaler = kubectl.get("-n", tenant.namespace, "hpa", f"{NAME}-transformer")["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (1, 3)
    status = tenant.status(NAME)
    assert {"TransformerReady", "ExplainerReady"} <= {each["type"] for each in status["conditions"]}
    gone = '[{"op": "remove", "path": "/spec/transformer"}]'
    kubectl("patch", "-n", tenant.namespace, "isvc", NAME, "--type=json", "-p", gone)
    wait_until(
        lambda: f"deployment.apps/{NAME}-transformer" not in _names(tenant, "deployments"),
        what="the transformer goes when it is no longer declared",
        timeout_s=120,
    )
    tenant.delete(NAME)
    wait_until(
        lambda: not any(NAME in each for each in _names(tenant, "deployments,services,hpa")),
        what="all go with the model",
        timeout_s=120,
    )


def test_an_explainer_alone_explains(gateway: Gateway, allowed: Tenant) -> None:
    allowed.kubectl.apply([_object(allowed, "explained", explainer={})])
    allowed.wait_ready("explained")
    assert gateway.predict(allowed, "explained").headers["x-pilotlight-reason"] != "transformer"
    answer = _explain(gateway, allowed, "explained")
    assert answer.status_code == 200, answer.text
    allowed.delete("explained")
