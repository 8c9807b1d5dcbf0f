"""Applications that users apply: checked at admission, served, and shown in their status."""

from typing import Any

import pytest

from tests.kubernetes.kubectl import Kubectl
from tests.kubernetes.models import Gateway, Tenant
from tests.servers import wait_until

pytestmark = pytest.mark.kubernetes


def _application(tenant: Tenant, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "pilotlight.io/v1alpha1",
        "kind": "InferenceApplication",
        "metadata": {"name": "moods", "namespace": tenant.namespace},
        "spec": {"classes": ["bad", "good"], "deadline": "150ms", **spec},
    }


def _ready(kubectl: Kubectl, tenant: Tenant) -> dict[str, Any]:
    found = kubectl.get("-n", tenant.namespace, "inferenceapplications", "moods")
    conditions = found.get("status", {}).get("conditions") or [{}]
    first: dict[str, Any] = conditions[0]
    return first


def test_an_application_shows_its_variants_and_is_refused_without_profiles(
    installed: Kubectl, gateway: Gateway, tenant: Tenant
) -> None:
    installed.apply([_application(tenant)])
    wait_until(
        lambda: _ready(installed, tenant).get("reason") == "NoVariants", what="the status is set"
    )
    tenant.declare("moods-small", application="moods")
    tenant.wait_ready("moods-small")
    wait_until(
        lambda: _ready(installed, tenant).get("reason") == "NoUsableVariant",
        what="the variant is found",
    )
    assert _ready(installed, tenant)["message"] == "moods-small: has no accuracy profile"
    answer = gateway.predict(tenant, "moods")
    assert answer.status_code == 503
    assert "moods-small: has no accuracy profile" in answer.text
    installed("delete", "-n", tenant.namespace, "inferenceapplications", "moods")
    wait_until(
        lambda: gateway.predict(tenant, "moods").status_code == 404, what="the application is gone"
    )


def test_a_wrong_application_is_rejected_with_all_mistakes(
    installed: Kubectl, gateway: Gateway, tenant: Tenant
) -> None:
    wrong = _application(tenant, deadline="soon", window="no time")
    answer = installed.try_apply([wrong])
    assert not answer.is_ok
    assert "spec.deadline must be a positive duration" in answer.errors
    assert "spec.window must be a positive duration" in answer.errors
