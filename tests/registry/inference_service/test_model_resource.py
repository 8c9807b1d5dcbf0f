"""A Model is an InferenceService with its policy as fields: one table, one reader."""

import subprocess
import sys
from typing import Any

import pytest
import yaml

from registry.domain.model import Preload
from registry.errors import InvalidModel
from registry.inference_service.annotations import KEYS, PREFIX
from registry.inference_service.model_resource import FIELDS, declaring_kind
from registry.inference_service.reader import read_documents, read_object
from tests.servers import REPOSITORY

CRD = REPOSITORY / "manifests" / "base" / "crd.yaml"
PREDICTOR = {"sklearn": {"storageUri": "s3://models/iris"}}
VALUES = {"integer": 7, "boolean": True}
TEXTS = {"pool": "big", "policy": "colocation", "loading": "clockwork", "placement": "off"}


def model(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "pilotlight.io/v1alpha1",
        "kind": "Model",
        "metadata": {"name": "iris", "namespace": "team"},
        "spec": {"predictor": PREDICTOR, **spec},
    }


def problems_of(document: dict[str, Any]) -> list[str]:
    with pytest.raises(InvalidModel) as caught:
        read_object(document)
    return caught.value.problems


def _value(key: str) -> Any:
    schema = KEYS[key].schema
    if schema["type"] != "string":
        return VALUES[schema["type"]]
    return TEXTS.get(key) or schema.get("enum", ["name" if "pattern" in schema else "9s"])[-1]


@pytest.mark.parametrize(
    "field", [each for each in FIELDS if each not in ("dtype", "canaryPercent")]
)
def test_a_field_means_what_its_annotation_means(field: str) -> None:
    value = _value(FIELDS[field])
    text = str(value).lower() if not isinstance(value, str) else value
    service = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {**model()["metadata"], "annotations": {PREFIX + FIELDS[field]: text}},
        "spec": {"predictor": PREDICTOR},
    }
    by_annotation, by_field = read_object(service), read_object(model(**{field: value}))
    assert by_field.policy == by_annotation.policy
    assert by_field.pool == by_annotation.pool
    assert (by_field.task, by_field.base) == (by_annotation.task, by_annotation.base)
    assert (declaring_kind(by_field), declaring_kind(by_annotation)) == (
        "Model",
        "InferenceService",
    )


def test_mistakes_name_the_model_and_its_fields_all_together() -> None:
    wrong = model(deadline="-3s", polcy="auto", pin="true", minCopies=3, maxCopies=2, preload="off")
    wrong["metadata"]["annotations"] = {"pilotlight.io/queue-depth": "4"}
    wrong["spec"]["predictor"] = {"model": {"modelFormat": {"name": "onnx"}, "storageUri": "m"}}
    found = "\n".join(problems_of(wrong))
    assert "Model team/iris: spec.deadline must be a positive duration" in found
    assert "spec may have the fields predictor, " in found
    assert "was 'polcy'" in found
    assert "spec.pin must be of type boolean, was 'true'" in found
    assert "spec.minCopies must be at most max-copies" in found
    assert "the annotation pilotlight.io/queue-depth must be the field spec.queueDepth" in found
    assert "storageUri must begin with" in found
    assert len(found.splitlines()) == 6


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"apiVersion": "v1"}, "apiVersion must be 'pilotlight.io/v1alpha1', was 'v1'"),
        ({"spec": None}, "spec must be an object"),
        ({"metadata": {"name": "iris", "annotations": ["a"]}}, "annotations must be an object"),
        ({"metadata": []}, "metadata.name must be"),
    ],
)
def test_what_is_no_model_is_refused(change: dict[str, Any], problem: str) -> None:
    assert any(problem in each for each in problems_of({**model(), **change}))


def test_files_may_hold_both_kinds_but_a_name_once() -> None:
    service = {**model(), "apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService"}
    other = {**service, "metadata": {"name": "other"}}
    text = yaml.safe_dump_all([model(preload="eager"), other])
    first, second = read_documents([("a.yaml", text)])
    assert (first.policy.preload, second.policy.preload) == (Preload.EAGER, Preload.PREDICTIVE)
    with pytest.raises(InvalidModel, match=r"metadata\.name is declared twice"):
        read_documents([("a.yaml", yaml.safe_dump_all([model(), service]))])


def test_the_definition_has_the_table_s_fields() -> None:
    """`scripts/model-crd` would write the file as it is."""
    before = CRD.read_text()
    try:
        subprocess.run([sys.executable, REPOSITORY / "scripts" / "model-crd"], check=True)
        assert CRD.read_text() == before
    finally:
        CRD.write_text(before)
    _, definition = yaml.safe_load_all(before)
    (version,) = definition["spec"]["versions"]
    fields = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    assert fields.keys() == {"predictor", "transformer", "explainer", *FIELDS}
    assert all(each["description"] for each in fields.values())
    assert fields["maxBatchSize"]["maximum"] == 4096
    assert fields["preload"]["enum"] == ["predictive", "eager", "off"]
