"""Accuracy profiles as a file: what is exported is imported, for the same generation only."""

import json

import pytest

from pilotlight.commands.profile_application import accuracy_document, parse_accuracies
from pilotlight.errors import InvalidInput
from registry.domain.application import AccuracyProfile, ApplicationSpec
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName, ModelPolicy, ModelRecord, ModelSpec

SPEC = ApplicationSpec(ModelName("team", "moods"), ("bad", "good"))
NAME = ModelName("team", "small")


def _state(uri: str = "s3://m/1") -> ClusterState:
    state = ClusterState()
    model = ModelSpec(NAME, uri, policy=ModelPolicy(application="moods"))
    state.models[NAME] = ModelRecord(model)
    state.accuracies[NAME] = AccuracyProfile(model.key, SPEC.classes, ((8, 2), (1, 9)))
    return state


def test_what_is_exported_is_imported() -> None:
    state = _state()
    text = json.dumps(accuracy_document(SPEC, state))
    assert parse_accuracies(text, SPEC, state, file="f") == [state.accuracies[NAME]]


def test_profiles_of_another_generation_are_refused() -> None:
    text = json.dumps(accuracy_document(SPEC, _state()))
    with pytest.raises(InvalidInput, match="small is of generation"):
        parse_accuracies(text, SPEC, _state("s3://m/2"), file="f")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        pytest.param({"kind": "x"}, "not what `profile APPLICATION", id="another file"),
        pytest.param({"classes": ["a", "b"]}, r"classes must be \['bad', 'good'\]", id="classes"),
        pytest.param({"variants": {}}, "has no variants", id="empty"),
        pytest.param(
            {"variants": {"large": {"generation": "1"}}},
            "large is no variant; it has small",
            id="unknown",
        ),
    ],
)
def test_mistakes_are_named(change: dict[str, object], text: str) -> None:
    document = accuracy_document(SPEC, _state()) | change
    with pytest.raises(InvalidInput, match=text):
        parse_accuracies(json.dumps(document), SPEC, _state(), file="f")


@pytest.mark.parametrize("rows", [[[1, 2]], [[1, -1], [0, 1]], [[0, 0], [1, 1]], None])
def test_a_matrix_without_an_example_of_each_class_is_refused(rows: object) -> None:
    document = accuracy_document(SPEC, _state())
    document["variants"]["small"]["confusion"] = rows
    with pytest.raises(InvalidInput, match="2 rows of 2 counts"):
        parse_accuracies(json.dumps(document), SPEC, _state(), file="f")
