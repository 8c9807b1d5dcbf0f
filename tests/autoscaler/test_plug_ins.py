"""Loading policies and planners of other distributions: found by name, refused if they are none."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from autoscaler.loading_policies import policy_of, value_problem
from autoscaler.placement import planner_names, planner_of
from autoscaler.settings import AutoscalerSettings
from common.settings_table import settings_from_fields
from registry.errors import PluginError
from tests.plug_ins import install, path_of_plug_ins

_LOADING = """
from autoscaler.policy import LoadingPolicy


def idle(view, state):
    return (), None


def still():
    return LoadingPolicy("still", None, idle)


def tuned(value=None):
    if value == 13:
        raise ValueError("must not be 13")
    return LoadingPolicy("of any name", value, idle)


def nothing():
    return None
"""


@pytest.fixture(autouse=True)
def _mine(tmp_path: Path) -> Iterator[None]:
    names = ("still", "tuned", "nothing", "broken")
    entries = {name: f"mine:{name}" for name in names}
    install(tmp_path, "mine", "pilotlight.loading", entries, _LOADING)
    install(
        tmp_path,
        "other",
        "pilotlight.placement",
        {"plan": "other:plan", "text": "other:text"},
        "def plan(*problem):\n    return None\n\n\ntext = 'usher'\n",
    )
    with path_of_plug_ins(tmp_path):
        yield


def test_a_loading_policy_is_made_with_its_value() -> None:
    assert policy_of("still").name == "still"
    assert (policy_of("tuned").name, policy_of("tuned").start) == ("tuned", None)
    assert policy_of("tuned", 2.0).start == 2.0
    assert value_problem("tuned", 13) == "must not be 13"
    assert value_problem("tuned", 2) == ""


def test_one_without_a_value_takes_none() -> None:
    problem = value_problem("still", 2.0)
    assert problem.startswith("must be left out with --loading still; allowed with predictive, ")
    assert "tuned" in problem


def test_what_is_no_policy_or_no_planner_is_refused() -> None:
    with pytest.raises(PluginError, match="loading policy nothing must be a LoadingPolicy"):
        policy_of("nothing")
    with pytest.raises(PluginError, match="planner text must be a function"):
        planner_of("text")


def test_a_planner_may_be_a_plain_function() -> None:
    assert "plan" in planner_names()
    assert callable(planner_of("plan"))


@pytest.mark.parametrize(
    ("field", "name", "says"),
    [
        ("loading", "broken", "cannot be 'broken': plug-in 'broken' of mine 1.2"),
        ("loading", "magic", "must be one of predictive, keep-alive, clockwork, "),
        ("placement", "text", "cannot be 'text': planner text must be a function"),
        ("placement", "magic", "must be one of off, predicted-goodput, "),
    ],
)
def test_an_autoscaler_refuses_at_its_start_what_it_cannot_use(
    field: str, name: str, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        settings_from_fields(AutoscalerSettings, {field: name})
