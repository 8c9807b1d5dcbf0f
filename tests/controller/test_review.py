import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest

from controller.admission import review_response, set_defaults, validate
from controller.resources import Kind, read_service
from registry.domain.tenant_rules import parse_rules
from tests.controller.objects import model, service

MODE = "serving.kserve.io/deploymentMode"
POOL = {"pilotlight.io/pool": "default"}


def request(document: dict[str, Any], operation: str = "CREATE") -> dict[str, Any]:
    return {"uid": "r-1", "operation": operation, "namespace": "team", "object": document}


RULES = parse_rules(namespaces="team", prefixes="team=pvc://claim/team")


def checked(review: Mapping[str, Any]) -> dict[str, Any]:
    """By the webhook, which knows the rules of the pool `default`."""
    return validate(review, {"default": RULES}.get)


def patched(answer: dict[str, Any]) -> list[dict[str, Any]]:
    patch: list[dict[str, Any]] = json.loads(base64.b64decode(answer["patch"]))
    return patch


def test_responds_to_the_review() -> None:
    review = {"apiVersion": "admission.k8s.io/v1", "request": request(service())}
    assert review_response(review, checked) == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": "r-1", "allowed": True},
    }


def test_fields_that_have_no_effect_are_warned_of() -> None:
    document = service()
    document["spec"]["predictor"]["nodeSelector"] = {"gpu": "yes"}
    document["spec"]["predictor"]["serviceAccountName"] = "reader"  # is honoured
    document["spec"]["predictor"]["model"] |= {
        "name": "",
        "resources": {"limits": {"cpu": "4"}},
        "args": ["--x"],
        "env": [],
        "runtime": "kserve-huggingfaceserver",
    }
    answer = checked(request(document))
    assert answer["allowed"]
    name = "InferenceService team/translate"
    assert [each.partition(" has no effect")[0] for each in answer["warnings"]] == [
        f"{name}: spec.predictor.model.resources",
        f"{name}: spec.predictor.model.runtime",
        f"{name}: spec.predictor.nodeSelector",
        f"{name}: spec.predictor.model.args --x",
    ]


def test_a_model_that_wants_clients_asked_needs_a_gateway_that_asks() -> None:
    document = service()
    document["metadata"]["annotations"]["security.opendatahub.io/enable-auth"] = "true"
    refused = checked(request(document))
    assert not refused["allowed"]
    assert "enable-auth] is not supported; clients of this" in refused["status"]["message"]
    assert validate(request(document), {"default": RULES}.get, asks_clients=True)["allowed"]


def test_warnings_of_a_graph_are_the_webhooks() -> None:
    steps = {"routerType": "Sequence", "steps": [{"serviceName": "a"}]}
    graph = {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "InferenceGraph",
        "metadata": {"name": "chain", "annotations": POOL},
        "spec": {"nodes": {"root": steps}, "minReplicas": 2},
    }
    [warning] = checked(request(graph))["warnings"]
    assert (
        warning == "InferenceGraph team/chain: spec.minReplicas has no effect: graphs have no pods"
    )


def test_an_environment_that_is_read_is_not_warned_of() -> None:
    document = service()
    document["spec"]["predictor"]["model"]["env"] = [{"name": "PREDICT_PROBA", "value": "true"}]
    assert checked(request(document)) == {"allowed": True}


def test_rejects_with_all_mistakes() -> None:
    document = service(
        annotations=POOL
        | {MODE: "ModelMesh", "pilotlight.io/polcy": "auto", "pilotlight.io/priority": "high"}
    )
    answer = checked(request(document))
    assert not answer["allowed"]
    assert answer["status"]["code"] == 422
    message = answer["status"]["message"]
    assert "[pilotlight.io/polcy] is not a known key" in message
    assert "[pilotlight.io/priority] must be a whole number" in message


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
def test_sets_the_deployment_mode_if_there_is_none(operation: str) -> None:
    answer = set_defaults(request(service(annotations=POOL), operation))
    assert patched(answer) == [
        {
            "op": "add",
            "path": "/metadata/annotations/serving.kserve.io~1deploymentMode",
            "value": "ModelMesh",
        }
    ]


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(service(), id="has-it"),
        pytest.param(service(annotations=POOL | {MODE: "Standard"}), id="user-chose-another"),
        pytest.param(service(annotations={}, labels=POOL), id="pool"),
        pytest.param(service(annotations={}), id="not-ours"),
        pytest.param(
            service(annotations=POOL, status={"deploymentMode": "Knative"}), id="too-late"
        ),
    ],
)
def test_keeps_other_deployment_modes(document: dict[str, Any]) -> None:
    assert set_defaults(request(document)) == {"allowed": True}


def test_rejects_modes_in_which_kserve_creates_pods() -> None:
    answer = checked(request(service(annotations=POOL | {MODE: "Standard"})))
    assert (
        "must be 'ModelMesh' for a model of a pool, was 'Standard'" in (answer["status"]["message"])
    )


def test_allows_objects_being_deleted() -> None:
    document = service(
        annotations=POOL | {"pilotlight.io/polcy": "x"}, deletionTimestamp="2026-01-01T00:00:00Z"
    )
    assert checked(request(document, "UPDATE")) == {"allowed": True}


def test_allows_names_that_the_api_server_sets_later() -> None:
    document = service(generateName="model-")
    for key in ("name", "namespace", "uid", "resourceVersion"):
        del document["metadata"][key]
    assert checked(request(document)) == {"allowed": True}


def test_allows_a_deletion_without_object() -> None:
    assert checked({"uid": "r", "operation": "DELETE", "object": None}) == {"allowed": True}


def with_uri(uri: str, **metadata: Any) -> dict[str, Any]:
    document = service(**metadata)
    document["spec"]["predictor"]["model"]["storageUri"] = uri
    return document


@pytest.mark.parametrize(
    ("document", "message"),
    [
        pytest.param(with_uri("file:///var/cache/pilotlight/other~m@1"), "file://", id="file"),
        pytest.param(with_uri("http://127.0.0.1:6379/"), "http://", id="http"),
        pytest.param(with_uri("pvc://claim/other"), "pvc://claim/team", id="folder-of-others"),
        pytest.param(service(namespace="other"), "does not admit namespace 'other'", id="stranger"),
    ],
)
def test_rejects_what_the_pools_rules_forbid(document: dict[str, Any], message: str) -> None:
    answer = checked(request(document))
    assert not answer["allowed"]
    assert message in answer["status"]["message"]
    assert "ConfigMap" in answer["status"]["message"]  # what its operator may change


def test_allows_what_the_pools_rules_grant() -> None:
    assert checked(request(with_uri("pvc://claim/team/m"))) == {"allowed": True}


def pool(**annotations: str) -> dict[str, Any]:
    keys = {f"pilotlight.io/{key.replace('_', '-')}": text for key, text in annotations.items()}
    return service(annotations=keys, labels=POOL)


def test_former_annotations_of_a_pool_are_refused_with_what_took_their_place() -> None:
    assert checked(request(pool())) == {"allowed": True}
    answer = checked(request(pool(quotas="*=pinned:1", storage_prefixes="*=s3://")))
    told = answer["status"]["message"]
    assert "annotations[pilotlight.io/quotas] has no effect any more" in told
    assert told.count("make a ConfigMap with the label pilotlight.io/tenant-of") == 2


def test_rules_of_a_pool_are_unknown_keys_of_a_model() -> None:
    annotations = POOL | {MODE: "ModelMesh", "pilotlight.io/quotas": "*=pinned:1000"}
    assert not checked(request(service(annotations=annotations)))["allowed"]


def test_models_are_reviewed_as_inference_services_are() -> None:
    wrong = checked(request(model(deadline="soon")))
    assert "Model team/translate: spec.deadline must be" in wrong["status"]["message"]
    foreign = checked(request({**model(), "metadata": {"name": "m", "namespace": "other"}}))
    assert "Model other/m: " in foreign["status"]["message"]
    fields = model()
    fields["spec"]["predictor"]["nodeSelector"] = {"gpu": "yes"}
    assert "spec.predictor.nodeSelector" in checked(request(fields))["warnings"][0]


@pytest.mark.parametrize("document", [service(), model()])
def test_the_second_object_of_a_name_is_refused_when_it_is_created(
    document: dict[str, Any],
) -> None:
    other = read_service(service() if document["kind"] == "Model" else model())
    kind = Kind.MODEL if other.kind is Kind.SERVICE else Kind.SERVICE

    def review(operation: str) -> dict[str, Any]:
        return validate(
            request(document, operation),
            namesake=lambda asked, name: other if (asked, name) == (kind, other.name) else None,
        )

    assert "declares the model already" in review("CREATE")["status"]["message"]
    assert review("UPDATE")["allowed"]
