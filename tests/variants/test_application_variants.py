"""Which models are variants of an application, whose profile counts, and what contradicts it."""

from dataclasses import replace

import pytest

from registry.domain.application import AccuracyProfile, ApplicationSpec, InputTensor
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName, ModelPolicy, ModelRecord, ModelSpec
from variants.application import accuracy_of, metadata_problems, named_variants

APPLICATION = ApplicationSpec(
    ModelName("team", "digits"),
    ("a", "b"),
    inputs=(InputTensor("pixels", "FP32", (-1, 64)), InputTensor("age", "INT64", (-1,))),
)
MATRIX = ((9, 1), (1, 9))
LABEL = ("label",)


def _tensor(name: str, datatype: str = "FP32", shape: tuple[int, ...] = (-1, 64)) -> InputTensor:
    return InputTensor(name, datatype, shape)


def _spec(name: str, profile: str | None = None) -> ModelSpec:
    policy = ModelPolicy(application="digits", profile=profile)
    return ModelSpec(ModelName("team", name), f"s3://m/{name}", policy=policy)


def _state(*specs: ModelSpec, profiled: ModelSpec | None = None) -> ClusterState:
    state = ClusterState()
    state.models = {spec.name: ModelRecord(spec) for spec in specs}
    if profiled is not None:
        state.accuracies[profiled.name] = AccuracyProfile(profiled.key, ("a", "b"), MATRIX)
    return state


def test_the_annotation_takes_another_models_profile() -> None:
    large, twin = _spec("large"), _spec("twin", profile="large")
    state = _state(large, twin, profiled=large)
    assert [problem for _, problem in named_variants(APPLICATION, state)] == [None, None]
    assert accuracy_of(twin, state) == state.accuracies[large.name]


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        pytest.param(
            _state(_spec("twin", profile="gone")),
            "team/gone, which its annotation pilotlight.io/profile names, does not exist",
            id="no such model",
        ),
        pytest.param(
            _state(_spec("large"), _spec("twin", profile="large")),
            "team/large has no accuracy profile",
            id="not profiled",
        ),
    ],
)
def test_a_named_profile_that_is_missing_is_said(state: ClusterState, problem: str) -> None:
    found = {spec.name.name: said for spec, said in named_variants(APPLICATION, state)}
    assert found["twin"] == problem


@pytest.mark.parametrize(
    ("inputs", "outputs", "problems"),
    [
        pytest.param([_tensor("pixels", shape=(1, 64))], LABEL, [], id="some of the inputs"),
        pytest.param([_tensor("pixels", shape=(-1, -1))], (), [], id="any length, no outputs"),
        pytest.param(
            [_tensor("image")],
            LABEL,
            ["takes the input 'image'; the application has pixels, age"],
            id="other input",
        ),
        pytest.param(
            [_tensor("pixels", "FP64"), _tensor("age", "INT64", (-1, 2))],
            ("class",),
            [
                "its input pixels is FP64 [-1, 64]; the application's is FP32 [-1, 64]",
                "its input age is INT64 [-1, 2]; the application's is INT64 [-1]",
                "has no output 'label', which the application names; its outputs: class",
            ],
            id="type, shape and output",
        ),
    ],
)
def test_metadata_that_contradicts_the_application(
    inputs: list[InputTensor], outputs: tuple[str, ...], problems: list[str]
) -> None:
    assert metadata_problems(APPLICATION, inputs, outputs) == problems


def test_a_profiled_variant_of_other_tensors_cannot_be_chosen() -> None:
    large, twin = _spec("large"), _spec("twin", profile="large")
    state = _state(large, twin, profiled=large)
    profile = replace(
        state.accuracies[large.name], inputs=(_tensor("pixels", "FP64"),), outputs=("class",)
    )
    state.accuracies[large.name] = profile
    said = (
        "its input pixels is FP64 [-1, 64]; the application's is FP32 [-1, 64]; has no output "
        "'label', which the application names; its outputs: class"
    )
    # What the tensors of the twin are, is not known: the profile is another model's.
    assert [problem for _, problem in named_variants(APPLICATION, state)] == [said, None]
    corrected = replace(
        APPLICATION, inputs=(InputTensor("pixels", "FP64", (-1, 64)),), output="class"
    )
    assert [problem for _, problem in named_variants(corrected, state)] == [None, None]
