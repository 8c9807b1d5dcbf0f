"""Which models are variants of an application, and which of them cannot be chosen."""

from registry.domain.application import AccuracyProfile, ApplicationSpec
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName, ModelPolicy, ModelRecord, ModelSpec
from variants.application import named_variants

APPLICATION = ApplicationSpec(ModelName("team", "digits"), ("a", "b"))
MATRIX = ((9, 1), (1, 9))


def _state(*profiles: AccuracyProfile) -> ClusterState:
    """Variant `small` of the application, and `other` of none."""
    state = ClusterState()
    for spec in (SMALL, ModelSpec(ModelName("team", "other"), "s3://m/other")):
        state.models[spec.name] = ModelRecord(spec)
    for profile in profiles:
        state.accuracies[SMALL.name] = profile
    return state


SMALL = ModelSpec(
    ModelName("team", "small"), "s3://m/small", policy=ModelPolicy(application="digits")
)


def test_variants_are_usable_with_a_profile_of_their_generation_and_classes() -> None:
    for profiles, problem in (
        ((), "has no accuracy profile"),
        ((AccuracyProfile("team/small@old", ("a", "b"), MATRIX),), "of another generation"),
        ((AccuracyProfile(SMALL.key, ("b", "a"), MATRIX),), "of other classes"),
    ):
        [(spec, said)] = named_variants(APPLICATION, _state(*profiles))
        assert spec == SMALL
        assert problem in str(said)
    state = _state(AccuracyProfile(SMALL.key, ("a", "b"), MATRIX))
    assert named_variants(APPLICATION, state) == [(SMALL, None)]
