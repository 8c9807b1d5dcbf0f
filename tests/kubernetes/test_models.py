"""Models that users apply: ready, served, changed and deleted with kubectl only."""

import json
import logging
import time

import pytest
import yaml

from tests.kubernetes.kubectl import Kubectl
from tests.kubernetes.models import Gateway, Tenant, model_object
from tests.kubernetes.places import IN_NAMESPACE
from tests.servers import wait_until

logger = logging.getLogger(__name__)

POLICY = "x-pilotlight-policy"

pytestmark = pytest.mark.kubernetes


def test_an_applied_model_becomes_ready_and_serves_cold_then_warm(
    installed: Kubectl, gateway: Gateway, tenant: Tenant
) -> None:
    tenant.declare("first")
    tenant.wait_ready("first")
    cold = gateway.predict(tenant, "first")
    warm = gateway.predict(tenant, "first")
    logger.info("\n%s", installed("get", "isvc", "-A"))
    assert (cold.status_code, warm.status_code) == (200, 200), cold.text + warm.text
    assert cold.json() == warm.json()
    starts = [answer.headers["x-pilotlight-start"] for answer in (cold, warm)]
    assert starts == ["remote", "warm"]


def test_a_changed_policy_takes_effect_without_restarts(
    installed: Kubectl, gateway: Gateway, tenant: Tenant
) -> None:
    tenant.declare("tuned", policy="least-loaded")
    tenant.wait_ready("tuned")
    assert gateway.predict(tenant, "tuned").headers[POLICY] == "least-loaded"
    before = _pods(installed)
    began_s = time.monotonic()
    tenant.declare("tuned", policy="colocation")
    wait_until(
        lambda: gateway.predict(tenant, "tuned").headers[POLICY] == "colocation",
        what="the new policy decides",
    )
    logger.info("the new policy decided %.2f s after the apply", time.monotonic() - began_s)
    assert _pods(installed) == before


def _pods(kubectl: Kubectl) -> list[tuple[str, int]]:
    """Every pod of the platform with its restarts."""
    return [
        (pod["metadata"]["uid"], status["restartCount"])
        for pod in kubectl.get(*IN_NAMESPACE, "pods")["items"]
        for status in pod["status"]["containerStatuses"]
    ]


def test_a_wrong_annotation_is_rejected_with_the_allowed_values(
    installed: Kubectl, gateway: Gateway, tenant: Tenant
) -> None:
    answer = tenant.try_declare("mistaken", policy="fastest")
    assert not answer.is_ok
    _tells_of_the_policy(answer.errors)
    absent = installed.answer("get", "-n", tenant.namespace, "isvc", "mistaken")
    assert "NotFound" in absent.errors


def test_without_admission_a_wrong_annotation_shows_in_status_and_event(
    installed: Kubectl, gateway: Gateway
) -> None:
    unchecked = Tenant(installed, "unchecked")
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "unchecked"}}
    installed.apply([namespace])
    _exempt_from_admission(installed, unchecked.namespace)
    wait_until(
        lambda: unchecked.try_declare("mistaken", policy="fastest").is_ok,
        what="the API server leaves the namespace out",
    )
    here = ("-n", unchecked.namespace)
    installed.wait("condition=Ready=False", *here, "isvc/mistaken")
    conditions = {item["type"]: item for item in unchecked.status("mistaken")["conditions"]}
    message = conditions["Ready"]["message"]
    _tells_of_the_policy(message)
    events = (*here, "events", "--field-selector=type=Warning")
    wait_until(
        lambda: any(message in item["message"] for item in installed.get(*events)["items"]),
        what="an event with the message",
    )


def _tells_of_the_policy(message: str) -> None:
    for part in ("pilotlight.io/policy", "'fastest'", "least-loaded"):
        assert part in message


def _exempt_from_admission(kubectl: Kubectl, namespace: str) -> None:
    """Exclude one namespace from Pilotlight's validating webhook."""
    but = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [namespace]}
    selector = {"matchExpressions": [but]}
    patch = [{"op": "add", "path": "/webhooks/0/namespaceSelector", "value": selector}]
    webhook = ("validatingwebhookconfiguration", "annotations.pilotlight.io")
    kubectl("patch", *webhook, "--type=json", "-p", json.dumps(patch))


def test_a_stopped_model_is_not_served_until_it_is_started(
    installed: Kubectl, gateway: Gateway, tenant: Tenant
) -> None:
    tenant.declare("paused")
    tenant.wait_ready("paused")
    assert gateway.predict(tenant, "paused").status_code == 200
    place = ("-n", tenant.namespace, "isvc", "paused")
    installed("annotate", *place, "serving.kserve.io/stop=true")
    installed.wait("condition=Ready=False", *place)
    conditions = {item["type"]: item for item in tenant.status("paused")["conditions"]}
    assert conditions["Ready"]["reason"] == "Stopped"
    wait_until(lambda: gateway.predict(tenant, "paused").status_code == 503, what="refused")
    installed("annotate", *place, "serving.kserve.io/stop-")
    tenant.wait_ready("paused")
    wait_until(lambda: gateway.predict(tenant, "paused").status_code == 200, what="served")


def test_kubectl_prints_a_warning_for_each_field_without_effect(
    installed: Kubectl, gateway: Gateway, tenant: Tenant
) -> None:
    document = model_object(tenant.namespace, "warned")
    document["spec"]["predictor"] |= {"nodeSelector": {"gpu": "yes"}, "scaleTarget": 80}
    answer = installed.answer("apply", "--server-side", "-f", "-", given=yaml.safe_dump(document))
    assert answer.is_ok, answer.errors
    for field in ("nodeSelector", "scaleTarget"):
        start = (
            f"Warning: InferenceService {tenant.namespace}/warned: spec.predictor.{field} has no"
        )
        assert start in answer.errors


def test_a_deleted_model_is_unloaded_everywhere(gateway: Gateway, tenant: Tenant) -> None:
    tenant.declare("brief")
    tenant.wait_ready("brief")
    assert gateway.predict(tenant, "brief").status_code == 200
    tenant.delete("brief")
    assert gateway.predict(tenant, "brief").status_code == 404
