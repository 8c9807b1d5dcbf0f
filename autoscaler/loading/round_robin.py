"""Round robin: models in a circle, each loaded in turn, on a machine whose model has had its time.

Source: Blinowski et al. 2024, section 4.2.3, with its refinements, each on top of those before it:
1 the quantum begins anew with each inference; 2 models with most starved requests first, of those
alike the one with fewest copies; 3 quanta in proportion to what a load costs, longer after one that
was used and shorter after one that was not; 4 earliest deadline first. The circle is of models with
waiting requests, wherever they are loaded: a turn that nobody asks for is passed. Which request
goes first on a machine is the gateway's queue, by deadline. The thesis gives neither the quanta nor
how they are adjusted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final

from autoscaler.loading.idle_pods import IdlePod, idle_pods
from autoscaler.planning.actions import Action, ActionReason, Demote, Load
from autoscaler.planning.policy import LoadingPolicy
from registry.domain.model import Tier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autoscaler.planning.pool_view import ModelView, PoolView

RENEWED, STARVED_FIRST, PER_MODEL, BY_DEADLINE = 1, 2, 3, 4
"""The refinements."""
_LONGER: Final = 1.25
_BOUNDS: Final = (0.5, 4.0)
"""Of a model's quantum, in the rule's: where loads take next to nothing, quanta would too."""
_USED_SHARE: Final = 0.5
"""A quantum was used if requests took this share of it."""


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """Parameters of the rule."""

    quantum_s: float = 10.0
    refinements: int = BY_DEADLINE
    """How many of the refinements, 0 to 4."""
    sink_to: Tier = Tier.DISK


@dataclass(frozen=True, slots=True)
class Circle:
    """What the rule remembers."""

    last: str = ""
    """The model whose turn was last."""
    factors: Mapping[str, float] = field(default_factory=dict)
    """By key: how much longer than its due a model's quantum is."""


def round_robin(params: RoundRobin | None = None) -> LoadingPolicy[Circle]:
    """The rule with its parameters."""
    plan = partial(_plan, params or RoundRobin())
    return LoadingPolicy("round-robin", Circle(), plan, reads_demand=False)


def _plan(params: RoundRobin, view: PoolView, state: Circle) -> tuple[tuple[Action, ...], Circle]:
    idle = idle_pods(view)
    mean_load_s = _mean_load_s(view)
    factors, last = dict(state.factors), state.last
    actions: list[Action] = []

    def is_over(pod: IdlePod, model: ModelView) -> bool:
        quantum_s = params.quantum_s
        if params.refinements >= PER_MODEL:
            cost = model.load_from_s(Tier.REMOTE) / mean_load_s if mean_load_s else 1.0
            quantum_s *= _bounded(cost * factors.get(model.key, 1.0))
        begun_s = model.holders[pod.pod.name].since_s
        if params.refinements >= RENEWED:
            begun_s = max(begun_s, pod.last_use_s(model))
        return view.time_s >= begun_s + quantum_s

    for model in _in_turn(params, view, last):
        for pod in idle:
            leaving = _leaving(pod, model, [each for each in pod.warm if is_over(pod, each)])
            if leaving is None:
                continue
            for each in leaving:
                words = "its quantum is over"
                actions.append(
                    Demote(each.key, pod.pod.name, params.sink_to, ActionReason.TURN, words)
                )
                factors[each.key] = _adjusted(factors.get(each.key, 1.0), each, pod, view.time_s)
            words = f"its turn: {model.waiting.requests} wait"
            actions.append(Load(model.key, pod.pod.name, Tier.DEVICE, ActionReason.TURN, words))
            idle.remove(pod)
            last = model.key
            break
    return tuple(actions), Circle(last, factors)


def _in_turn(params: RoundRobin, view: PoolView, last: str) -> list[ModelView]:
    wanted = [each for each in view.models if _is_wanted(each, view.time_s)]

    def turn(model: ModelView) -> tuple[int, int, float, bool, str]:
        is_by_need = params.refinements >= STARVED_FIRST
        starved = model.waiting.starved if is_by_need else 0
        copies = _copies(model) if is_by_need else 0
        deadline_s = _deadline_s(model) if params.refinements >= BY_DEADLINE else 0.0
        return -starved, copies, deadline_s, model.key <= last, model.key

    return sorted(wanted, key=turn)


def _is_wanted(model: ModelView, now_s: float) -> bool:
    if not model.waiting.requests or not model.may_load(now_s):
        return False
    most = model.spec.policy.max_copies
    return most is None or _copies(model) < most


def _copies(model: ModelView) -> int:
    return sum(each.is_warm or each.is_warming for each in model.holders.values())


def _deadline_s(model: ModelView) -> float:
    """When the first of its waiting requests is due."""
    within_s = model.spec.policy.deadline_s
    return inf if within_s is None else model.waiting.oldest_s + within_s


def _leaving(pod: IdlePod, model: ModelView, over: list[ModelView]) -> list[ModelView] | None:
    """Who must leave, of those whose quantum is over; None: there is no room, or it is there."""
    if model.key in {each.key for each in pod.warm}:
        return None
    missing = model.size_bytes - pod.free_bytes()
    chosen: list[ModelView] = []
    for each in over:
        if missing <= 0:
            break
        if not each.spec.policy.pin:
            chosen.append(each)
            missing -= each.size_bytes
    return chosen if missing <= 0 else None


def _adjusted(factor: float, model: ModelView, pod: IdlePod, now_s: float) -> float:
    """The factor after a quantum, by the share of it that the model's requests took."""
    use = model.uses.get(pod.pod.name)
    if use is None:
        return factor
    held_s = max(1e-9, now_s - model.holders[pod.pod.name].since_s)
    is_used = use.served * model.infer_s >= _USED_SHARE * held_s
    changed = factor * _LONGER if is_used else factor / _LONGER
    return _bounded(changed)


def _bounded(factor: float) -> float:
    return min(max(factor, _BOUNDS[0]), _BOUNDS[1])


def _mean_load_s(view: PoolView) -> float:
    times = [each.load_from_s(Tier.REMOTE) for each in view.models]
    return sum(times) / max(1, len(times))
