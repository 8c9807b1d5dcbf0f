"""A model's annotation against the loading policy of its pool."""

from __future__ import annotations

import pytest

from registry.domain.loading_choice import loading_problems
from registry.domain.model import LoadingPolicyName, ModelName, ModelPolicy, ModelSpec


def _spec(loading: LoadingPolicyName | None) -> ModelSpec:
    return ModelSpec(ModelName("shop", "m"), "s3://m/m", policy=ModelPolicy(loading=loading))


@pytest.mark.parametrize(
    ("wanted", "has"),
    [
        pytest.param(None, "clockwork", id="any"),
        pytest.param(LoadingPolicyName.CLOCKWORK, "clockwork", id="the pool's"),
        pytest.param(LoadingPolicyName.CLOCKWORK, "", id="no autoscaler leads"),
    ],
)
def test_the_pools_policy_is_allowed(wanted: LoadingPolicyName | None, has: str) -> None:
    assert loading_problems([_spec(wanted)], "gpu", has) == []


@pytest.mark.parametrize("has", ["predictive", "round-robin-plain", "a-future-policy"])
def test_another_policy_is_refused_with_what_to_do(has: str) -> None:
    [problem] = loading_problems([_spec(LoadingPolicyName.ROUND_ROBIN)], "gpu", has)
    assert problem == (
        f"shop/m: metadata.annotations[pilotlight.io/loading] must be '{has}', the loading policy "
        "of pool gpu, was 'round-robin'; remove the annotation, or start the pool's autoscaler "
        "with --loading round-robin"
    )
