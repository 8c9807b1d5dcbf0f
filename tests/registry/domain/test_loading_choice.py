"""A model's annotations against the loading policy and the planner of its pool."""

import pytest

from autoscaler.placement import PLANNERS
from registry.domain.model import (
    LoadingPolicyName,
    ModelName,
    ModelPolicy,
    ModelSpec,
    PlacementName,
)
from registry.policy_names import loading_problems, placement_problems


def _spec(loading: str | None) -> ModelSpec:
    return ModelSpec(ModelName("shop", "m"), "s3://m/m", policy=ModelPolicy(loading=loading))


@pytest.mark.parametrize(
    ("wanted", "has"),
    [
        pytest.param(None, "clockwork", id="any"),
        pytest.param(LoadingPolicyName.CLOCKWORK, "clockwork", id="the pool's"),
        pytest.param(LoadingPolicyName.CLOCKWORK, "", id="no autoscaler leads"),
    ],
)
def test_the_pools_policy_is_allowed(wanted: str | None, has: str) -> None:
    assert loading_problems([_spec(wanted)], "gpu", has) == []


@pytest.mark.parametrize("has", ["predictive", "round-robin-plain", "a-future-policy"])
def test_another_policy_is_refused_with_what_to_do(has: str) -> None:
    [problem] = loading_problems([_spec("round-robin")], "gpu", has)
    assert problem == (
        f"shop/m: metadata.annotations[pilotlight.io/loading] must be '{has}', the loading policy "
        "of pool gpu, was 'round-robin'; remove the annotation, or start the pool's autoscaler "
        "with --loading round-robin"
    )


@pytest.mark.parametrize("wanted", [None, PlacementName.OFF, "usher"])
def test_the_pools_planner_none_and_off_are_allowed(wanted: str | None) -> None:
    spec = ModelSpec(ModelName("shop", "m"), "s3://m/m", policy=ModelPolicy(placement=wanted))
    assert placement_problems([spec], "gpu", "usher") == []
    assert placement_problems([spec], "gpu", "") == []


def test_another_planner_is_refused_with_what_to_do() -> None:
    policy = ModelPolicy(placement="ao-milp")
    spec = ModelSpec(ModelName("shop", "m"), "s3://m/m", policy=policy)
    [problem] = placement_problems([spec], "gpu", "usher")
    assert problem == (
        "shop/m: metadata.annotations[pilotlight.io/placement] must be 'off' or 'usher', the "
        "planner of pool gpu, was 'ao-milp'; remove the annotation, or start the pool's autoscaler "
        "with --placement ao-milp"
    )


def test_every_planner_can_be_named() -> None:
    assert {"off", *PLANNERS} == set(PlacementName)
