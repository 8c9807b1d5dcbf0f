"""The compared schedulers: those of Blinowski et al. 2024, and `predictive`."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from autoscaler.loading_policies.predictive import Predictive, predictive
from autoscaler.loading_policies.reactive import Clockwork, clockwork
from autoscaler.policy import LoadingPolicy
from load.simulator.gateway import QueueOptions
from load.simulator.pods.simulated_request import SimulatedRequest
from research.experiments.schedulers.inference_rules import (
    InferenceRule,
    strategies,
    three_phases,
    three_phases_by_deadline,
)
from research.experiments.schedulers.scheduled_placer import ScheduledPlacer
from research.experiments.schedulers.setting import GATEWAY, MAIN, THESIS, Setting
from research.loading.baseline import baseline
from research.loading.round_robin import (
    BY_DEADLINE,
    PER_MODEL,
    RENEWED,
    STARVED_FIRST,
    RoundRobin,
    round_robin,
)

BASELINE: Final = "baseline"
CLOCKWORK: Final = "clockwork"
PREDICTIVE: Final = "predictive"
SHIPPED: Final = "predictive + gateway"
"""As in production: with a gateway whose requests start loads themselves."""
ROUND_ROBIN: Final[Mapping[str, int]] = {
    "round-robin": 0,
    "+ renewed quantum": RENEWED,
    "+ starved first": STARVED_FIRST,
    "+ quantum per model": PER_MODEL,
    "+ by deadline": BY_DEADLINE,
}
"""Refinements by name; each includes those before it."""
OF_THESIS: Final = (BASELINE, CLOCKWORK, *ROUND_ROBIN)
SCHEDULERS: Final = (*OF_THESIS, PREDICTIVE, SHIPPED)

_CLOCKWORK_HORIZON_S: Final = 1.0
"""About the time that requests have until their deadline."""
_TICK_S: Final = 0.25
_LIVE_TICK_S: Final = 0.5
"""Tick of the live autoscaler."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """A loading policy, the queueing of its requests, and its planning interval."""

    policy: LoadingPolicy[Any]
    queueing: QueueOptions
    every_s: float


def scheduler_config(name: str, setting: Setting = MAIN) -> SchedulerConfig:
    """One of `SCHEDULERS`.

    In the thesis one scheduler loads models and places requests, and is notified of idle machines.
    `setting.inference` says who starts the inferences of its schedulers; for others the gateway.
    """
    if name == SHIPPED:
        return SchedulerConfig(predictive(), QueueOptions(serves_late=True), _LIVE_TICK_S)
    refinements = ROUND_ROBIN.get(name, 0)
    has_rule = name in OF_THESIS and setting.inference != GATEWAY
    by_deadline = name in {CLOCKWORK, PREDICTIVE} or refinements >= BY_DEADLINE
    placer = partial(
        ScheduledPlacer[SimulatedRequest],
        rule=_rule(name, refinements),
        by_deadline=by_deadline,
        is_serial=setting.inference == THESIS,
    )
    queueing = QueueOptions(
        serves_late=True,
        by_deadline=by_deadline,
        plans_first=True,
        may_load=False,
        placer=placer if has_rule else None,
    )
    return SchedulerConfig(_policy(name, refinements, setting.quantum_s), queueing, _TICK_S)


def _rule(name: str, refinements: int) -> InferenceRule:
    """Round robin has Baseline's rule (Blinowski et al. 2024, 4.2.3)."""
    if name == CLOCKWORK:
        return strategies
    return three_phases_by_deadline if refinements >= BY_DEADLINE else three_phases


def _policy(name: str, refinements: int, quantum_s: float) -> LoadingPolicy[Any]:
    if name == BASELINE:
        return baseline()
    if name == PREDICTIVE:
        return predictive(Predictive(loads_for_queue=True))
    if name == CLOCKWORK:
        return clockwork(Clockwork(horizon_s=_CLOCKWORK_HORIZON_S))
    return round_robin(RoundRobin(quantum_s=quantum_s, refinements=refinements))
