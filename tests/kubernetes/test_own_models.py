"""Models, the resource of our own: schema, webhook, status, columns, and the rule of one name."""

from typing import Any

import pytest

from tests.kubernetes.models import Gateway, Tenant, model_object
from tests.servers import wait_until

pytestmark = pytest.mark.kubernetes


def own_model(tenant: Tenant, name: str, **fields: Any) -> dict[str, Any]:
    service = model_object(tenant.namespace, name)
    metadata = {"name": name, "namespace": tenant.namespace}
    spec = {**service["spec"], **fields}
    return {
        "apiVersion": "pilotlight.io/v1alpha1",
        "kind": "Model",
        "metadata": metadata,
        "spec": spec,
    }


def test_a_model_is_served_shown_and_unloaded(gateway: Gateway, tenant: Tenant) -> None:
    where = ("-n", tenant.namespace, "models.pilotlight.io")
    tenant.kubectl.apply([own_model(tenant, "own", deadline="5m", maxBatchSize=4)])
    tenant.kubectl.wait("condition=Ready", *where[:2], "model.pilotlight.io/own")
    answer = gateway.predict(tenant, "own")
    assert answer.status_code == 200, answer.text

    def columns() -> dict[str, str]:
        head, row = tenant.kubectl("get", *where, "own").splitlines()
        return dict(zip(head.split(), row.split(), strict=True))

    wait_until(lambda: columns()["WARM"] == "True", what="the status says that it is warm")
    assert columns().keys() == {"NAME", "URL", "READY", "WARM", "AGE"}
    assert columns()["URL"].endswith(f"/serving/{tenant.namespace}/own")
    tenant.kubectl("delete", *where, "own", "--timeout=120s")  # waits for the finalizer
    assert gateway.predict(tenant, "own").status_code == 404


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        pytest.param({"maxBatchSize": 0}, "spec.maxBatchSize", id="by-the-schema"),
        pytest.param({"preload": "soon"}, 'Unsupported value: "soon"', id="by-its-enums"),
        pytest.param({"polcy": "auto"}, "polcy", id="unknown"),
        pytest.param({"deadline": "soon"}, "spec.deadline must be", id="by-the-webhook"),
    ],
)
def test_mistakes_are_refused(
    gateway: Gateway, tenant: Tenant, fields: dict[str, Any], problem: str
) -> None:
    answer = tenant.kubectl.try_apply([own_model(tenant, "mistaken", **fields)])
    assert not answer.is_ok
    assert problem in answer.errors


def test_the_second_object_of_a_name_is_refused(gateway: Gateway, tenant: Tenant) -> None:
    tenant.declare("twice")
    tenant.wait_ready("twice")
    answer = tenant.kubectl.try_apply([own_model(tenant, "twice")])
    expected = f"InferenceService {tenant.namespace}/twice declares the model already"
    assert expected in answer.errors
    tenant.delete("twice")
