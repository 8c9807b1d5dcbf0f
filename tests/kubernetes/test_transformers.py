"""A model with a transformer: what KServe and the controller write together, and how it ends."""

import time
from typing import Any

import pytest

from controller.model_status import WRITE_INTERVAL_S
from tests.kubernetes.knative import is_built
from tests.kubernetes.models import Gateway, Tenant, model_object
from tests.servers import wait_until

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.skipif(
        not is_built(), reason="KServe makes a transformer with Knative: scripts/kubernetes/build"
    ),
]

NAME = "prepared"


def _object(tenant: Tenant) -> dict[str, Any]:
    found = model_object(tenant.namespace, NAME)
    container = {"name": "kserve-container", "image": "example.invalid/transformer:1"}
    found["spec"]["transformer"] = {"containers": [container]}
    return found


def _conditions(tenant: Tenant) -> dict[str, dict[str, Any]]:
    return {each["type"]: each for each in tenant.status(NAME).get("conditions", ())}


def _version(tenant: Tenant) -> str:
    found = tenant.kubectl.get("-n", tenant.namespace, "inferenceservice", NAME)
    return str(found["metadata"]["resourceVersion"])


def test_a_transformer_is_kserves_and_the_model_waits_for_it(
    gateway: Gateway, tenant: Tenant
) -> None:
    kubectl = tenant.kubectl
    kubectl.apply([_object(tenant)])
    try:
        wait_until(
            lambda: (
                _conditions(tenant).get("PredictorReady", {}).get("reason") == "TransformerNotReady"
            ),
            what="the model waits for its transformer",
            timeout_s=120,
        )
        wait_until(  # without Knative's controllers it gets no pods, and KServe no condition of it
            lambda: (
                f"{NAME}-transformer"
                in kubectl(
                    "get", "-n", tenant.namespace, "services.serving.knative.dev", "-o", "name"
                )
            ),
            what="KServe makes the transformer",
            timeout_s=120,
        )
        status = tenant.status(NAME)
        assert status["deploymentMode"] == "ModelMesh"
        predictor = status["components"]["predictor"]
        assert predictor["url"] == f"http://{NAME}-predictor.{tenant.namespace}.svc"
        service = kubectl.get("-n", tenant.namespace, "service", f"{NAME}-predictor")
        assert service["spec"]["externalName"].startswith("pilotlight-gateway.")
        answer = gateway.predict(tenant, NAME)
        assert answer.headers["x-pilotlight-reason"] == "component-unreachable"

        def is_at_rest() -> bool:
            """Neither writes what the other would write differently."""
            before = _version(tenant)
            time.sleep(2 * WRITE_INTERVAL_S)  # nothing says that nothing more will happen
            return _version(tenant) == before

        wait_until(is_at_rest, what="both writers at rest", timeout_s=120)
    finally:
        kubectl("delete", "-n", tenant.namespace, "inferenceservice", NAME)
    wait_until(
        lambda: (
            f"{NAME}-predictor"
            not in kubectl("get", "-n", tenant.namespace, "services", "-o", "name")
        ),
        what="the Service goes with its model",
        timeout_s=120,
    )
