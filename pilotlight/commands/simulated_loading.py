"""The loading policies that runs are to have, from the flags of `simulate`."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Final

from autoscaler.loading.loading_policies import LOADING_POLICIES, TUNED, value_problem
from load.simulator.autoscaling import LoadingRule
from pilotlight.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

NO_LOADING: Final = "none"
"""In place of a loading policy: requests alone load models."""
_SHORTEST_TICK_S: Final = 0.01


def loading_rules(names: str, *, value: float | None, tick_s: float) -> list[LoadingRule | None]:
    """The rules by their names with commas between. None: requests alone load models.

    A value is the parameter of the one policy that is named, beside `none` at most.

    Raises:
        InvalidInput: with all that is wrong.
    """
    each_name = [name.strip() for name in names.split(",")]
    problems = [
        f"--loading must be among {NO_LOADING}, {', '.join(LOADING_POLICIES)}, was {name!r}"
        for name in dict.fromkeys(each_name)
        if name != NO_LOADING and name not in LOADING_POLICIES
    ]
    if value is not None and not problems:
        problems = _value_problems([name for name in each_name if name != NO_LOADING], value)
    if not (isfinite(tick_s) and tick_s >= _SHORTEST_TICK_S):
        problems.append(f"--tick must be {_SHORTEST_TICK_S:g} seconds at least, was {tick_s:g}")
    if problems:
        raise InvalidInput(problems)
    return [None if name == NO_LOADING else LoadingRule(name, value, tick_s) for name in each_name]


def _value_problems(names: Sequence[str], value: float) -> list[str]:
    if len(set(names)) != 1:
        named = ", ".join(dict.fromkeys(names)) or NO_LOADING
        return [
            f"--loading-value is the parameter of one policy: name one of {', '.join(TUNED)} "
            f"with --loading, and {NO_LOADING} beside it at most; was with {named}"
        ]
    problem = value_problem(names[0], value)
    return [f"--loading-value {problem}"] if problem else []


def name_parts(rule: LoadingRule | None) -> tuple[str, ...]:
    """What a run's name says of it: the policy, and its value where one was given."""
    if rule is None:
        return (NO_LOADING,)
    return (rule.name,) if rule.value is None else (rule.name, f"{rule.value:.12g}")
