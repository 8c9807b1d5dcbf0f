"""Scheduling policies of other distributions: found by name, and whatever they do is one error."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plug_ins import install, path_of_plug_ins
from workflows.plan import policies
from workflows.plan.policies import SCHEDULING, stateful_policy, step_policy
from workflows.plan.problem import SchedulingProblem, SchedulingProblemError, Step

_MODULE = """
from workflows.plan.policies import place_in_call_order
from workflows.plan.policies import StatefulPolicy
from workflows.plan.problem import Placement, Schedule

kept = StatefulPolicy(dict, list)


def last(problem, turn):
    return place_in_call_order(problem, lambda ways: ways[-1])


def raises(problem, turn):
    raise KeyError("no idea")


def nowhere(problem, turn):
    return Schedule((Placement(7, 0.0, 1.0),), (0,))
"""
_PROBLEM = SchedulingProblem(
    steps=[Step("A")],
    devices=["one", "two"],
    free_s=[[0.0, 0.0]],
    load_s=[[0.0, 0.0]],
    compute_s=[[1.0, 1.0]],
    transfer_s=lambda *_: 0.0,
)


@pytest.fixture(autouse=True)
def _mine(tmp_path: Path) -> Iterator[None]:
    entries = {name: f"mine:{name}" for name in ("kept", "last", "raises", "nowhere")}
    install(tmp_path, "mine", "pilotlight.workflows", entries, _MODULE)
    with path_of_plug_ins(tmp_path):
        yield
    policies.step_policy.cache_clear()


def test_it_places_a_step() -> None:
    assert "last" in SCHEDULING
    assert step_policy("last")(_PROBLEM, 0).placements[-1].device == 1
    assert stateful_policy("last") is None
    assert stateful_policy("greedy") is None


def test_one_that_keeps_a_state_is_made_by_its_own_functions() -> None:
    kept = stateful_policy("kept")
    assert kept is not None
    assert (kept.live, kept.simulated) == (dict, list)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("raises", "scheduling policy raises: KeyError: 'no idea'"),
        ("nowhere", "scheduling policy nowhere: IndexError: list index out of range"),
        ("magic", "scheduling policy magic: PluginError: 'magic' is not installed here: "),
    ],
)
def test_its_mistakes_are_errors_of_the_problem(name: str, says: str) -> None:
    with pytest.raises(SchedulingProblemError, match=says):
        step_policy(name)(_PROBLEM, 0)
