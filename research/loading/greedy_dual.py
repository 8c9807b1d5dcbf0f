"""Greedy dual: limits the memory of idle models, and demotes those with the lowest priority.

Source: Fuerst and Sharma 2021, "FaasCache: keeping serverless computing alive with greedy-dual
caching", section 4.1: priority = clock + frequency x cost / size, with the clock of the last use;
after an eviction the clock is the highest evicted priority. A pod evicts by the same rule at the
limit of its memory (`runtime.tiers.eviction`); this policy keeps idle models below that limit.
The policy preloads no models.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from autoscaler.policy import (
    Action,
    ActionReason,
    Demote,
    LoadingPolicy,
    ModelView,
    PoolView,
    idle_copies,
)
from registry.domain.model import Tier


@dataclass(frozen=True, slots=True)
class GreedyDual:
    """Parameters of the policy."""

    idle_bytes: float | None = None
    """Memory for models on each device; None: `memory_share` of its budget."""
    memory_share: float = 0.8


@dataclass(frozen=True, slots=True)
class ModelFrequency:
    """A model's requests since it was loaded, and the clock at the last one."""

    frequency: int
    clock: float


@dataclass(frozen=True, slots=True)
class GreedyDualState:
    clock: float = 0.0
    frequencies: Mapping[str, ModelFrequency] = field(default_factory=dict)
    """By model key; only models on devices."""


def greedy_dual(params: GreedyDual | None = None) -> LoadingPolicy[GreedyDualState]:
    plan = partial(_plan, params or GreedyDual())
    return LoadingPolicy("greedy-dual", GreedyDualState(), plan, reads_demand=False)


def greedy_dual_of(value: float | None = None) -> LoadingPolicy[GreedyDualState]:
    """The value: GB of models on each device."""
    return greedy_dual(GreedyDual(idle_bytes=None if value is None else 1e9 * value))


def _plan(
    params: GreedyDual, view: PoolView, state: GreedyDualState
) -> tuple[tuple[Action, ...], GreedyDualState]:
    frequencies, priority = {}, {}
    for model in view.models:
        if any(each.is_warm for each in model.holders.values()):
            found = frequencies[model.key] = _updated(model, state)
            cost_s, size_bytes = model.load_from_s(Tier.DISK), max(1, model.size_bytes)
            priority[model.key] = found.clock + found.frequency * cost_s / size_bytes
    actions: list[Action] = []
    clock = state.clock
    for pod, models in _by_pod(view).items():
        excess = sum(model.size_bytes for model in models) - _allowed(params, view, pod)
        for model in sorted(models, key=lambda each: (priority[each.key], each.key)):
            if excess <= 0:
                break
            if any(copy.pod == pod for copy in idle_copies(model, view)):
                detail = f"priority {priority[model.key]:.3g} is the lowest"
                actions.append(Demote(model.key, pod, Tier.DISK, ActionReason.ROOM, detail))
                excess -= model.size_bytes
                clock = max(clock, priority[model.key])
    return tuple(actions), GreedyDualState(clock, frequencies)


def _updated(model: ModelView, state: GreedyDualState) -> ModelFrequency:
    known = state.frequencies.get(model.key)
    if known is None:
        return ModelFrequency(max(1, model.arrived), state.clock)
    if not model.arrived:
        return known
    return ModelFrequency(known.frequency + model.arrived, state.clock)


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
    return params.memory_share * view.pods[pod].budget_bytes
