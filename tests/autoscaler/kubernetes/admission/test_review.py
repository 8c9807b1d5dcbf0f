from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from autoscaler.kubernetes.admission.review import review_response, set_defaults, validate
from tests.autoscaler.kubernetes.objects import service

MODE = "serving.kserve.io/deploymentMode"
POOL = {"pilotlight.io/pool": "default"}


def request(document: dict[str, Any], operation: str = "CREATE") -> dict[str, Any]:
    return {"uid": "r-1", "operation": operation, "namespace": "team", "object": document}


def patched(answer: dict[str, Any]) -> list[dict[str, Any]]:
    patch: list[dict[str, Any]] = json.loads(base64.b64decode(answer["patch"]))
    return patch


def test_responds_to_the_review() -> None:
    review = {"apiVersion": "admission.k8s.io/v1", "request": request(service())}
    assert review_response(review, validate) == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": "r-1", "allowed": True},
    }


def test_rejects_with_all_mistakes() -> None:
    document = service(
        annotations=POOL | {MODE: "ModelMesh", "pilotlight.io/polcy": "auto",
                            "pilotlight.io/priority": "high"}
    )  # fmt: skip
    answer = validate(request(document))
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
    answer = validate(request(service(annotations=POOL | {MODE: "Standard"})))
    assert (
        "must be 'ModelMesh' for a model of a pool, was 'Standard'" in (answer["status"]["message"])
    )


def test_allows_objects_being_deleted() -> None:
    document = service(
        annotations=POOL | {"pilotlight.io/polcy": "x"}, deletionTimestamp="2026-01-01T00:00:00Z"
    )
    assert validate(request(document, "UPDATE")) == {"allowed": True}


def test_allows_names_that_the_api_server_sets_later() -> None:
    document = service(generateName="model-")
    for key in ("name", "namespace", "uid", "resourceVersion"):
        del document["metadata"][key]
    assert validate(request(document)) == {"allowed": True}


def test_allows_a_deletion_without_object() -> None:
    assert validate({"uid": "r", "operation": "DELETE", "object": None}) == {"allowed": True}
