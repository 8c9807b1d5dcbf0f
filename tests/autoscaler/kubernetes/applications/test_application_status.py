from __future__ import annotations

from typing import Any

import pytest

from autoscaler.kubernetes.admission.review import validate
from autoscaler.kubernetes.applications.application_status import application_status
from autoscaler.kubernetes.cluster.application_objects import read_application_object
from registry.domain.application import AccuracyProfile
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName, ModelPolicy, ModelRecord, ModelSpec

NOW = "2026-01-02T00:00:00Z"


def application(spec: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    return {
        "apiVersion": "pilotlight.io/v1alpha1",
        "kind": "InferenceApplication",
        "metadata": {
            "name": "digits", "namespace": "team", "uid": "uid-9", "resourceVersion": "3",
            "generation": 2,
        },
        "spec": spec if spec is not None else {"classes": ["a", "b"]},
        "status": status,
    }  # fmt: skip


def _ready(state: ClusterState | None, document: dict[str, Any] | None = None) -> dict[str, Any]:
    found = read_application_object(document or application())
    status = application_status(found, state, found.problems, NOW)
    [condition] = status["conditions"]
    assert condition["type"] == "Ready"
    assert status["observedGeneration"] == 2
    return {**condition, "variants": status["variants"]}


def _state(**profiles: AccuracyProfile | None) -> ClusterState:
    state = ClusterState()
    for name, profile in profiles.items():
        model = ModelName("team", name)
        spec = ModelSpec(model, f"s3://m/{name}", policy=ModelPolicy(application="digits"))
        state.models[model] = ModelRecord(spec)
        if profile is not None:
            state.accuracies[model] = profile
    return state


def _key(name: str) -> str:
    return ModelSpec(ModelName("team", name), f"s3://m/{name}").key


MATRIX = ((9, 1), (1, 9))


def test_ready_once_a_variant_can_be_chosen() -> None:
    good = AccuracyProfile(_key("large"), ("a", "b"), MATRIX)
    stale = AccuracyProfile(_key("large"), ("a", "b"), MATRIX)  # of another model's generation
    found = _ready(_state(large=good, medium=stale, small=None))
    assert (found["status"], found["reason"]) == ("True", "VariantsUsable")
    assert found["message"] == (
        "variants: large; medium: its accuracy profile is of another generation; "
        "small: has no accuracy profile"
    )
    assert [each["usable"] for each in found["variants"]] == [True, False, False]


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        pytest.param(None, "NoPool", id="no pool"),
        pytest.param(_state(), "NoVariants", id="no variants"),
        pytest.param(_state(small=None), "NoUsableVariant", id="none profiled"),
    ],
)
def test_not_ready_says_why(state: ClusterState | None, reason: str) -> None:
    found = _ready(state)
    assert (found["status"], found["reason"]) == ("False", reason)


def test_mistakes_are_in_the_condition_and_refused_by_the_webhook() -> None:
    document = application({"classes": ["a"], "policy": "best", "sneakPeek": {"uri": "x"}})
    found = _ready(_state(), document)
    assert found["reason"] == "Invalid"
    answer = validate({"uid": "r", "namespace": "team", "object": document})
    assert not answer["allowed"]
    for text in (found["message"], answer["status"]["message"]):
        assert "spec.classes must list 2 to 1000" in text
        assert "spec.policy must be one of" in text
        assert "spec.sneakPeek.uri must begin with" in text
    assert validate({"uid": "r", "namespace": "team", "object": application()})["allowed"]


def test_the_time_of_an_unchanged_condition_stays() -> None:
    before = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    found = _ready(_state(), application(conditions=[before]))
    assert found["lastTransitionTime"] == "2026-01-01T00:00:00Z"
