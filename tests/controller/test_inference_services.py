from typing import Any

import pytest

from controller.resources import FINALIZER, Role, owner_of, read_service
from registry.domain.model import ModelName, ModelSpec, RoutingPolicy
from registry.domain.records import decode, encode_spec
from registry.errors import InvalidModel
from registry.inference_service.reader import read_documents
from tests.controller.objects import service

POOL = {"pilotlight.io/pool": "default"}
MODE = "serving.kserve.io/deploymentMode"


@pytest.mark.parametrize(
    ("document", "role"),
    [
        pytest.param(service(), Role.MODEL, id="model"),
        pytest.param(service(annotations=POOL), Role.MISPLACED, id="no-mode"),
        pytest.param(service(annotations=POOL | {MODE: "Standard"}), Role.MISPLACED, id="standard"),
        pytest.param(service(status={"deploymentMode": "Knative"}), Role.MISPLACED, id="too-late"),
        pytest.param(
            service(annotations=POOL, status={"deploymentMode": "ModelMesh"}),
            Role.MODEL,
            id="annotation-dropped-later",
        ),
        pytest.param(service(annotations={}, labels=POOL), Role.POOL, id="pool"),
        pytest.param(service(annotations={}), Role.OTHER, id="somebody-elses"),
    ],
)
def test_role_of_an_inference_service(document: dict[str, Any], role: Role) -> None:
    assert read_service(document).role is role


def test_reads_a_model_with_its_owner() -> None:
    read = read_service(
        service(
            annotations={
                "pilotlight.io/pool": "default",
                MODE: "ModelMesh",
                "pilotlight.io/policy": "colocation",
                "kubectl.kubernetes.io/last-applied-configuration": "{}",
            }
        )
    )
    assert read.spec is not None
    assert read.name == ModelName("team", "translate")
    assert read.spec.policy.routing == RoutingPolicy.COLOCATION
    assert owner_of(read.spec) == "uid-1"
    assert "kubectl" not in encode_spec(read.spec)
    assert decode(ModelSpec, encode_spec(read.spec)) == read.spec


def test_messages_are_those_of_apply() -> None:
    text = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: translate
  namespace: team
  annotations: {pilotlight.io/pool: default, pilotlight.io/polcy: auto}
spec:
  predictor:
    model: {modelFormat: {name: onnx}, storageUri: 's3://models/t5'}
"""
    with pytest.raises(InvalidModel) as raised:
        read_documents([("model.yaml", text)])
    document = service(
        annotations={
            "pilotlight.io/pool": "default",
            MODE: "ModelMesh",
            "pilotlight.io/polcy": "auto",
        }
    )
    document["spec"]["predictor"]["model"]["modelFormat"]["name"] = "onnx"
    problems = read_service(document).problems
    assert [f"model.yaml: {problem}" for problem in problems] == raised.value.problems


def test_explains_that_a_mode_cannot_change() -> None:
    [problem] = read_service(service(status={"deploymentMode": "Standard"})).problems
    assert "delete the InferenceService" in problem


def test_reads_deletion_and_finalizers() -> None:
    document = service(deletionTimestamp="2026-01-01T00:00:01Z", finalizers=["other/x", FINALIZER])
    read = read_service(document)
    assert read.is_deleted
    assert read.has_finalizer


def test_checks_the_annotations_of_pools() -> None:
    [problem] = read_service(
        service(annotations={"pilotlight.io/priority": "high"}, labels=POOL)
    ).problems
    assert "metadata.annotations[pilotlight.io/priority] must be a whole number" in problem
