"""Round robin: models take turns, each loaded on a machine whose model has used up its quantum.

Source: Blinowski et al. 2024, section 4.2.3, with its refinements; each includes the ones before:
1 the quantum restarts with each inference; 2 models with the most starved requests first, ties by
the fewest copies; 3 quanta in proportion to the cost of a load, longer after a used quantum and
shorter after an unused one; 4 earliest deadline first. Only models with queued requests take turns,
wherever they are loaded already. The gateway's queue orders the requests on a machine, by deadline.
The thesis gives neither the quanta nor their adjustment.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Final

from autoscaler.policy import (
    Action,
    ActionReason,
    Demote,
    IdlePod,
    Load,
    LoadingPolicy,
    ModelView,
    PoolView,
    idle_pods,
)
from registry.domain.model import Tier

PLAIN, RENEWED, STARVED_FIRST, PER_MODEL, BY_DEADLINE = range(5)
"""The refinements."""
_NAMES: Final = (
    "round-robin-plain",
    "round-robin-renewed",
    "round-robin-starved",
    "round-robin-per-model",
    "round-robin",
)
_ADJUSTMENT: Final = 1.25
_FACTOR_BOUNDS: Final = (0.5, 4.0)
"""Bounds of the ratio of a model's quantum to the policy's: without them a load that takes almost
no time would give an equally short quantum."""
_USED_SHARE: Final = 0.5
"""A quantum counts as used if requests took this share of it."""


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """Parameters of the policy."""

    quantum_s: float = 10.0
    refinements: int = BY_DEADLINE
    """Number of refinements, 0 to 4."""


@dataclass(frozen=True, slots=True)
class RoundRobinState:
    last: str = ""
    """Key of the model loaded last."""
    factors: Mapping[str, float] = field(default_factory=dict)
    """By key: adjustment of a model's quantum."""


def round_robin(params: RoundRobin | None = None) -> LoadingPolicy[RoundRobinState]:
    params = params or RoundRobin()
    plan = partial(_plan, params)
    return LoadingPolicy(_NAMES[params.refinements], RoundRobinState(), plan, reads_demand=False)


round_robin_plain: Final = partial(round_robin, RoundRobin(refinements=PLAIN))
round_robin_renewed: Final = partial(round_robin, RoundRobin(refinements=RENEWED))
round_robin_starved: Final = partial(round_robin, RoundRobin(refinements=STARVED_FIRST))
round_robin_per_model: Final = partial(round_robin, RoundRobin(refinements=PER_MODEL))


def _plan(
    params: RoundRobin, view: PoolView, state: RoundRobinState
) -> tuple[tuple[Action, ...], RoundRobinState]:
    idle = idle_pods(view)
    mean_load_s = _mean_load_s(view)
    factors, last = dict(state.factors), state.last
    actions: list[Action] = []

    def is_expired(pod: IdlePod, model: ModelView) -> bool:
        quantum_s = params.quantum_s
        if params.refinements >= PER_MODEL:
            cost = model.load_from_s(Tier.REMOTE) / mean_load_s if mean_load_s else 1.0
            quantum_s *= _bounded(cost * factors.get(model.key, 1.0))
        start_s = model.holders[pod.pod.name].since_s
        if params.refinements >= RENEWED:
            start_s = max(start_s, pod.last_use_s(model))
        return view.time_s >= start_s + quantum_s

    for model in _in_turn(params, view, last):
        for pod in idle:
            if any(each.key == model.key for each in pod.warm):
                continue
            expired = [each for each in pod.warm if is_expired(pod, each)]
            evicted = pod.select_evictions(model.size_bytes, expired)
            if evicted is None:
                continue
            name = pod.pod.name
            for each in evicted:
                detail = "its quantum is over"
                actions.append(Demote(each.key, name, Tier.DISK, ActionReason.TURN, detail))
                factors[each.key] = _adjusted(factors.get(each.key, 1.0), each, pod, view.time_s)
            detail = f"its turn: {model.waiting.requests} requests wait"
            actions.append(Load(model.key, name, Tier.DEVICE, ActionReason.TURN, detail))
            idle.remove(pod)
            last = model.key
            break
    return tuple(actions), RoundRobinState(last, factors)


def _in_turn(params: RoundRobin, view: PoolView, last: str) -> list[ModelView]:
    """Models that need a load, in the order of their turns."""

    def rank(model: ModelView) -> tuple[int, int, float, bool, str]:
        is_by_need = params.refinements >= STARVED_FIRST
        starved = model.waiting.starved if is_by_need else 0
        copies = model.copies if is_by_need else 0
        deadline_s = _deadline_s(model) if params.refinements >= BY_DEADLINE else 0.0
        return -starved, copies, deadline_s, model.key <= last, model.key

    return sorted((each for each in view.models if _needs_load(each, view.time_s)), key=rank)


def _needs_load(model: ModelView, now_s: float) -> bool:
    if not model.waiting.requests or not model.may_load(now_s):
        return False
    max_copies = model.spec.policy.max_copies
    return max_copies is None or model.copies < max_copies


def _deadline_s(model: ModelView) -> float:
    """Deadline of the model's oldest queued request."""
    within_s = model.spec.policy.deadline_s
    return inf if within_s is None else model.waiting.oldest_s + within_s


def _adjusted(factor: float, model: ModelView, pod: IdlePod, now_s: float) -> float:
    """The factor after a quantum, by the share of it that the model's requests took."""
    use = model.uses.get(pod.pod.name)
    if use is None:
        return factor
    held_s = max(1e-9, now_s - model.holders[pod.pod.name].since_s)
    is_used = use.served * model.infer_s >= _USED_SHARE * held_s
    return _bounded(factor * _ADJUSTMENT if is_used else factor / _ADJUSTMENT)


def _bounded(factor: float) -> float:
    return min(max(factor, _FACTOR_BOUNDS[0]), _FACTOR_BOUNDS[1])


def _mean_load_s(view: PoolView) -> float:
    times = [each.load_from_s(Tier.REMOTE) for each in view.models]
    return sum(times) / max(1, len(times))
