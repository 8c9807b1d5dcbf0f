"""InferenceApplication YAML: values, defaults, and all mistakes together."""

import orjson
import pytest

from registry.domain.application import (
    ApplicationSpec,
    InputTensor,
    Penalty,
    SelectionPolicy,
    SneakPeekSpec,
)
from registry.domain.model import ModelName
from registry.domain.records import decode, encode_application
from registry.errors import InvalidModel
from registry.inference_service.reader import read_documents
from variants.application import read_applications

FULL = """
apiVersion: pilotlight.io/v1alpha1
kind: InferenceApplication
metadata: {name: tumours, namespace: clinic}
spec:
  classes: [benign, malignant]
  inputs: [{name: features, datatype: FP32, shape: [-1, 30]}]
  output: label
  deadline: 150ms
  late: refuse
  penalty: linear
  policy: sneakpeek
  window: {length: 50ms, fixed: true}
  sneakPeek: {uri: "file:///peek", shortCircuit: false}
"""
SPEC = ApplicationSpec(
    ModelName("clinic", "tumours"),
    ("benign", "malignant"),
    (InputTensor("features", "FP32", (-1, 30)),),
    "label",
    0.15,
    refuses_late=True,
    penalty=Penalty.LINEAR,
    policy=SelectionPolicy.SNEAKPEEK,
    window_s=0.05,
    is_window_fixed=True,
    sneak_peek=SneakPeekSpec("file:///peek", short_circuit=False),
)
SMALL = """
apiVersion: pilotlight.io/v1alpha1
kind: InferenceApplication
metadata: {name: wine}
spec: {classes: [0, 1, 2]}
"""


def test_every_field_is_read_and_survives_storage() -> None:
    assert read_applications([("a.yaml", FULL)]) == [SPEC]
    assert decode(ApplicationSpec, encode_application(SPEC)) == SPEC


def test_defaults() -> None:
    [spec] = read_applications([("a.yaml", SMALL)], default_namespace="team")
    assert spec == ApplicationSpec(ModelName("team", "wine"), ("0", "1", "2"))
    assert decode(ApplicationSpec, encode_application(spec)) == spec


def test_an_application_of_another_version_is_read_and_reads_this_one() -> None:
    stored = orjson.loads(encode_application(SPEC))
    assert (stored["prior"], stored["frequencies"]) == ("uninformative", [])  # older ones need both
    stored["sneak_peek"] |= {"k": 7, "split_groups": True}
    stored |= {"normalises_accuracy": True, "colour": "red"}
    assert decode(ApplicationSpec, orjson.dumps(stored).decode()) == SPEC


def test_a_file_may_hold_models_and_applications() -> None:
    model = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: wine-small, annotations: {pilotlight.io/application: wine}}
spec: {predictor: {model: {modelFormat: {name: pytorch}, storageUri: "file:///m"}}}
"""
    sources = [("a.yaml", f"{SMALL}\n---\n{model}")]
    assert [each.name.name for each in read_applications(sources)] == ["wine"]
    [spec] = read_documents(sources)
    assert spec.policy.application == "wine"


def test_all_mistakes_are_reported_together() -> None:
    text = """
apiVersion: v1
kind: InferenceApplication
metadata: {name: Wine}
spec:
  classes: [a, a]
  inputs: [{name: x, datatype: BYTES}]
  deadline: 0s
  late: maybe
  penalty: cubic
  policy: auto
  window: -1s
  sneakPeek: {uri: nowhere, depth: 3}
  colour: red
"""
    with pytest.raises(InvalidModel) as found:
        read_applications([("a.yaml", text)])
    problems = found.value.problems
    for part in (
        "apiVersion must be 'pilotlight.io/v1alpha1', was 'v1'",
        "metadata.name must be at most 63 lower-case letters, digits and '-', starting",
        "spec.classes must list 2 to 1000 different class names",
        "spec.inputs must list objects with name, datatype",
        "spec.deadline must be a positive duration of at most 1h",
        "spec.late must be one of serve, refuse, was 'maybe'",
        "spec.penalty must be one of sigmoid, linear, step, none, was 'cubic'",
        "spec.policy must be one of lo-edf, lo-priority",
        "spec.window must be a positive duration",
        "spec.sneakPeek.uri must begin with one of",
        "spec.sneakPeek may have the fields uri, shortCircuit, was 'depth'",
        "spec may have the fields classes, inputs",
    ):
        assert any(part in problem for problem in problems), (part, problems)
