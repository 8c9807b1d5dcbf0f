"""The loading policies by the name used in settings, metrics and plots."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Final

from autoscaler.forecasting.baselines.idle_time_histogram import IdleTimeHistogram
from autoscaler.loading.baseline import baseline
from autoscaler.loading.clockwork import clockwork
from autoscaler.loading.greedy_dual import GreedyDual, greedy_dual
from autoscaler.loading.holding_value import Prices
from autoscaler.loading.hybrid_histogram import HybridHistogram, hybrid_histogram
from autoscaler.loading.keep_alive import KeepAlive, keep_alive
from autoscaler.loading.predictive import Predictive, predictive
from autoscaler.loading.round_robin import (
    PER_MODEL,
    PLAIN,
    RENEWED,
    STARVED_FIRST,
    RoundRobin,
    round_robin,
)
from registry.domain.model import LoadingPolicyName

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from autoscaler.planning.policy import LoadingPolicy

LOADING_POLICIES: Final[Mapping[str, Callable[[], LoadingPolicy[Any]]]] = {
    LoadingPolicyName.PREDICTIVE: predictive,
    LoadingPolicyName.KEEP_ALIVE: keep_alive,
    LoadingPolicyName.GREEDY_DUAL: greedy_dual,
    LoadingPolicyName.HYBRID_HISTOGRAM: hybrid_histogram,
    LoadingPolicyName.BASELINE: baseline,
    LoadingPolicyName.ROUND_ROBIN: round_robin,
    LoadingPolicyName.ROUND_ROBIN_PLAIN: lambda: round_robin(RoundRobin(refinements=PLAIN)),
    LoadingPolicyName.ROUND_ROBIN_RENEWED: lambda: round_robin(RoundRobin(refinements=RENEWED)),
    LoadingPolicyName.ROUND_ROBIN_STARVED: lambda: round_robin(
        RoundRobin(refinements=STARVED_FIRST)
    ),
    LoadingPolicyName.ROUND_ROBIN_PER_MODEL: lambda: round_robin(RoundRobin(refinements=PER_MODEL)),
    LoadingPolicyName.CLOCKWORK: clockwork,
}
"""Each with its default parameters."""
TUNED: Final[Mapping[str, Callable[[float], LoadingPolicy[Any]]]] = {
    "predictive": lambda price: predictive(Predictive(prices=Prices(device=price))),
    "keep-alive": lambda minutes: keep_alive(KeepAlive(keep_s=60 * minutes)),
    "greedy-dual": lambda gigabytes: greedy_dual(GreedyDual(idle_bytes=1e9 * gigabytes)),
    "hybrid-histogram": lambda minutes: hybrid_histogram(
        HybridHistogram(IdleTimeHistogram(range_min=int(minutes)))
    ),
}
"""Policies by name, made with the parameter that trades memory for cold starts: price of a device's
memory in seconds saved per GB and hour; minutes after the last request; GB of models on each
device; range of the histogram in minutes."""
_MAX_RANGE_MIN: Final = 20_160
"""Two weeks: how long arrivals are kept (`CountsParams.ten_minutes`)."""


def value_problem(name: str, value: float) -> str:
    """Why a value of a policy's parameter is not allowed; empty: it is."""
    if name not in TUNED:
        return f"must be left out with --loading {name}; allowed with {', '.join(TUNED)}"
    if not 0 < value < inf:
        return f"must be a positive number, was {value:g}"
    if name == "hybrid-histogram" and not (value.is_integer() and value <= _MAX_RANGE_MIN):
        return f"must be whole minutes, at most {_MAX_RANGE_MIN:,}, was {value:g}"
    return ""


def policy_of(name: str, value: float | None = None) -> LoadingPolicy[Any]:
    """A policy by name, with the given parameter or its default. Raises KeyError."""
    return LOADING_POLICIES[name]() if value is None else TUNED[name](value)
