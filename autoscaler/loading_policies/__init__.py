"""The loading policies by the name used in settings, metrics and plots, plug-ins included."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from inspect import signature
from math import inf
from typing import Any, Final

from autoscaler.loading_policies.holding_value import Prices
from autoscaler.loading_policies.predictive import Predictive, predictive
from autoscaler.loading_policies.reactive import KeepAlive, clockwork, keep_alive
from autoscaler.policy import LoadingPolicy
from registry.domain.model import LoadingPolicyName
from registry.errors import PluginError
from registry.policy_names import LOADING

LOADING_POLICIES: Final[Mapping[str, Callable[[], LoadingPolicy[Any]]]] = {
    LoadingPolicyName.PREDICTIVE: predictive,
    LoadingPolicyName.KEEP_ALIVE: keep_alive,
    LoadingPolicyName.CLOCKWORK: clockwork,
}
"""Each with its default parameters."""
TUNED: Final[Mapping[str, Callable[[float], LoadingPolicy[Any]]]] = {
    LoadingPolicyName.PREDICTIVE: lambda price: predictive(Predictive(prices=Prices(device=price))),
    LoadingPolicyName.KEEP_ALIVE: lambda minutes: keep_alive(KeepAlive(keep_s=60 * minutes)),
}
"""Policies with one parameter that trades memory for cold starts. `predictive`: price of device
memory, in seconds saved per GB and hour; `keep-alive`: minutes after the last request."""


def tuned_names() -> list[str]:
    """Names of policies with a parameter; a plug-in's has one if its function takes `value`."""
    return [name for name in LOADING if name in TUNED or _takes_value(name)]


def value_problem(name: str, value: float) -> str:
    """Why a value of a policy's parameter is not allowed; empty: it is."""
    if name not in TUNED and not _takes_value(name):
        return f"must be left out with --loading {name}; allowed with {', '.join(tuned_names())}"
    if not 0 < value < inf:
        return f"must be a positive number, was {value:g}"
    try:
        policy_of(name, value)
    except ValueError as error:
        return str(error)
    return ""


def policy_of(name: str, value: float | None = None) -> LoadingPolicy[Any]:
    """A policy by name, with the given parameter or its default.

    Raises:
        PluginError: no such policy is installed, or it cannot be imported.
        ValueError: the policy does not allow the value.
    """
    if name in LOADING_POLICIES:
        return LOADING_POLICIES[name]() if value is None else TUNED[name](value)
    make = LOADING.load(name)
    policy = make() if value is None else make(value=value)
    if not isinstance(policy, LoadingPolicy):
        raise PluginError(f"loading policy {name} must be a LoadingPolicy, was {policy!r}")
    return replace(policy, name=name)  # the name that annotations use


def _takes_value(name: str) -> bool:
    if name in LOADING_POLICIES:
        return False
    try:
        return "value" in signature(LOADING.load(name)).parameters
    except PluginError:  # reported by `policy_of` when the policy is used
        return False
