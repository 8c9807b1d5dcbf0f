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


def test_answers_the_review_it_was_asked() -> None:
    review = {"apiVersion": "admission.k8s.io/v1", "request": request(service())}
    assert review_response(review, validate) == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": "r-1", "allowed": True},
    }


def test_refuses_with_all_mistakes() -> None:
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
def test_sets_the_mode_where_none_is_named(operation: str) -> None:
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
def test_leaves_other_modes_alone(document: dict[str, Any]) -> None:
    assert set_defaults(request(document)) == {"allowed": True}


def test_refuses_a_mode_in_which_kserve_makes_pods() -> None:
    answer = validate(request(service(annotations=POOL | {MODE: "Standard"})))
    assert (
        "must be 'ModelMesh' for a model of a pool, was 'Standard'" in (answer["status"]["message"])
    )


def test_what_is_on_its_way_out_passes() -> None:
    document = service(
        annotations=POOL | {"pilotlight.io/polcy": "x"}, deletionTimestamp="2026-01-01T00:00:00Z"
    )
    assert validate(request(document, "UPDATE")) == {"allowed": True}


def test_names_that_the_server_fills_in_later_are_no_mistake() -> None:
    document = service(generateName="model-")
    for key in ("name", "namespace", "uid", "resourceVersion"):
        del document["metadata"][key]
    assert validate(request(document)) == {"allowed": True}


def test_a_deletion_without_object_passes() -> None:
    assert validate({"uid": "r", "operation": "DELETE", "object": None}) == {"allowed": True}
