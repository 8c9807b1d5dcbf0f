"""Who is compared: the schedulers of Blinowski et al. 2024, and ours beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from autoscaler.loading.baseline import baseline
from autoscaler.loading.clockwork import Clockwork, clockwork
from autoscaler.loading.predictive import predictive
from autoscaler.loading.round_robin import (
    BY_DEADLINE,
    PER_MODEL,
    RENEWED,
    STARVED_FIRST,
    RoundRobin,
    round_robin,
)
from load.simulator.queueing import QueueOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autoscaler.planning.policy import LoadingPolicy

BASELINE: Final = "baseline"
CLOCKWORK: Final = "clockwork"
OURS: Final = "predictive"
SHIPPED: Final = "predictive + gateway"
"""Ours as it runs live: beside a gateway whose requests begin loads of their own."""
ROUND_ROBIN: Final[Mapping[str, int]] = {
    "round-robin": 0,
    "+ renewed quantum": RENEWED,
    "+ starved first": STARVED_FIRST,
    "+ quantum per model": PER_MODEL,
    "+ by deadline": BY_DEADLINE,
}
"""Refinements by name; each has those before it."""
LINEUP: Final = (BASELINE, CLOCKWORK, *ROUND_ROBIN, OURS, SHIPPED)

QUANTUM_S: Final = 2.0
"""Not in the thesis, which calls its quanta relatively short (6.3)."""
_HORIZON_S: Final = 1.0
"""Clockwork's: about what requests have until their deadline."""
_SCHEDULER_S: Final = 0.25
_LIVE_S: Final = 0.5
"""The live autoscaler's tick."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """A loading policy, how its requests queue, and how often it is asked."""

    policy: LoadingPolicy[Any]
    queueing: QueueOptions
    every_s: float
    is_forecasting: bool = False


def scheduler_config(name: str) -> SchedulerConfig:
    """One of `LINEUP`.

    In the thesis one scheduler loads and places, and knows when a machine becomes idle.
    """
    if name == SHIPPED:
        return SchedulerConfig(
            predictive(), QueueOptions(serves_late=True), _LIVE_S, is_forecasting=True
        )
    refinements = ROUND_ROBIN.get(name, 0)
    queueing = QueueOptions(
        serves_late=True,
        by_deadline=name in {CLOCKWORK, OURS} or refinements >= BY_DEADLINE,
        plans_first=True,
        may_load=False,
    )
    return SchedulerConfig(
        _policy(name, refinements), queueing, _SCHEDULER_S, is_forecasting=name == OURS
    )


def _policy(name: str, refinements: int) -> LoadingPolicy[Any]:
    if name == BASELINE:
        return baseline()
    if name == OURS:
        return predictive()
    if name == CLOCKWORK:
        return clockwork(Clockwork(horizon_s=_HORIZON_S))
    return round_robin(RoundRobin(quantum_s=QUANTUM_S, refinements=refinements))
