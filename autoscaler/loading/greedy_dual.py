"""Greedy dual: idle models may take so much memory; the least worth keeping leave first.

Source: Fuerst and Sharma 2021, "FaasCache: keeping serverless computing alive with greedy-dual
caching", section 4.1: priority = clock + frequency x cost / size, with the clock as it was at the
last use; after an eviction the clock is the largest priority that left. A pod's own eviction
(`runtime.tiers.eviction`) is the same rule at the limit of its memory; this one holds idle models
below it. Nothing is loaded ahead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from autoscaler.loading.idle_copies import idle_copies
from autoscaler.planning.actions import Action, ActionReason, Demote
from autoscaler.planning.policy import LoadingPolicy
from registry.domain.model import Tier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autoscaler.planning.pool_view import ModelView, PoolView


@dataclass(frozen=True, slots=True)
class GreedyDual:
    """Parameters of the rule."""

    idle_bytes: float | None = None
    """What models may take of each device; None: `memory_share` of its budget."""
    memory_share: float = 0.8
    sink_to: Tier = Tier.DISK


@dataclass(frozen=True, slots=True)
class Used:
    """A model's uses since it came, and the clock at the last one."""

    frequency: int
    clock: float


@dataclass(frozen=True, slots=True)
class Clock:
    """What the rule remembers."""

    clock: float = 0.0
    used: Mapping[str, Used] = field(default_factory=dict)
    """By key, of models on devices."""


def greedy_dual(params: GreedyDual | None = None) -> LoadingPolicy[Clock]:
    """The rule with its parameters."""
    plan = partial(_plan, params or GreedyDual())
    return LoadingPolicy("greedy-dual", Clock(), plan, reads_demand=False)


def _plan(params: GreedyDual, view: PoolView, state: Clock) -> tuple[tuple[Action, ...], Clock]:
    used = {
        model.key: _used(model, state)
        for model in view.models
        if any(each.is_warm for each in model.holders.values())
    }
    priority = {
        model.key: used[model.key].clock
        + used[model.key].frequency * model.load_from_s(params.sink_to) / max(1, model.size_bytes)
        for model in view.models
        if model.key in used
    }
    actions: list[Action] = []
    clock = state.clock
    for pod, models in _by_pod(view).items():
        excess = sum(model.size_bytes for model in models) - _allowed(params, view, pod)
        for model in sorted(models, key=lambda each: (priority[each.key], each.key)):
            if excess <= 0:
                break
            if any(copy.pod == pod for copy in idle_copies(model, view)):
                words = f"priority {priority[model.key]:.3g} is the lowest"
                actions.append(Demote(model.key, pod, params.sink_to, ActionReason.ROOM, words))
                excess -= model.size_bytes
                clock = max(clock, priority[model.key])
    return tuple(actions), Clock(clock, used)


def _used(model: ModelView, state: Clock) -> Used:
    known = state.used.get(model.key)
    if known is None:
        return Used(max(1, model.arrived), state.clock)
    if not model.arrived:
        return known
    return Used(known.frequency + model.arrived, state.clock)


def _by_pod(view: PoolView) -> dict[str, list[ModelView]]:
    found: dict[str, list[ModelView]] = {pod: [] for pod in view.pods}
    for model in view.models:
        for pod, each in model.holders.items():
            if each.is_warm and pod in found:
                found[pod].append(model)
    return found


def _allowed(params: GreedyDual, view: PoolView, pod: str) -> float:
    if params.idle_bytes is not None:
        return params.idle_bytes
    return params.memory_share * view.pods[pod].budget_bytes.get(Tier.DEVICE, 0)
