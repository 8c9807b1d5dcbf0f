"""The loading policies by name and parameter."""

import pytest

from autoscaler.loading_policies import (
    LOADING_POLICIES,
    TUNED,
    policy_of,
    tuned_names,
    value_problem,
)
from registry.domain.model import LoadingPolicyName
from registry.policy_names import LOADING


def test_every_policy_can_be_made() -> None:
    assert set(TUNED) <= set(LOADING_POLICIES)
    assert all(policy_of(name, 2.0).name == name for name in tuned_names())
    assert all(policy_of(name).name == name for name in LOADING_POLICIES)


def test_every_name_that_annotations_allow_is_a_policy() -> None:
    assert list(LOADING_POLICIES) == list(LoadingPolicyName)
    assert all(policy_of(name).name == name for name in LOADING)


def test_the_refinements_of_round_robin_are_policies_of_their_own() -> None:
    """Each restarts, orders or lengthens turns as the one before does not (thesis, 4.2.3)."""
    names = ("plain", "renewed", "starved", "per-model")
    policies = [policy_of(f"round-robin-{name}") for name in names] + [policy_of("round-robin")]
    params = [policy.plan.args[0].refinements for policy in policies]  # type: ignore[attr-defined]
    assert params == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("clockwork", 1.0, "must be left out with --loading clockwork"),
        ("keep-alive", 0.0, "must be a positive number, was 0"),
        ("hybrid-histogram", 0.5, "must be whole minutes, at most 20,160, was 0.5"),
        ("hybrid-histogram", 1e12, "must be whole minutes, at most 20,160, was 1e+12"),
    ],
)
def test_explains_invalid_values(name: str, value: float, says: str) -> None:
    assert says in value_problem(name, value)
    assert not value_problem("hybrid-histogram", 240.0)
