"""Baseline: a model with queued requests and no copy is loaded on the next idle machine.

Source: Blinowski et al. 2024, sections 4.2.1 and 4.2.2: machines in turn; no load on a machine
that has not served since its last load, unless it was idle for long; several models per machine, by
memory. Requests take machines in their order of arrival: an idle machine whose model has requests
further ahead in the order is reserved for them. The gateway's queue decides which request a pod
serves, by priority and deadline; the thesis takes starved requests first.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from autoscaler.policy import (
    NEVER_S,
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


@dataclass(frozen=True, slots=True)
class Baseline:
    """Parameters of the policy."""

    idle_s: float = 10.0
    """Idle time after which a machine that has not served may load; the thesis gives no number."""


def baseline(params: Baseline | None = None) -> LoadingPolicy[str]:
    """The state is the machine of the last load."""
    plan = partial(_plan, params or Baseline())
    return LoadingPolicy("baseline", "", plan, reads_demand=False)


def _plan(params: Baseline, view: PoolView, last: str) -> tuple[tuple[Action, ...], str]:
    idle = {each.pod.name: each for each in idle_pods(view) if _may_load(each, view, params)}
    actions: list[Action] = []
    for model in sorted((each for each in view.models if each.waiting.requests), key=_order):
        if model.copies:
            _reserve_for_inference(model, idle)
            continue
        if not model.may_load(view.time_s):
            continue
        for name in _in_turn(last, idle):
            evicted = idle[name].select_evictions(model.size_bytes, idle[name].warm)
            if evicted is None:
                continue
            detail = f"{model.waiting.requests} requests wait"
            actions += [
                Demote(each.key, name, Tier.DISK, ActionReason.ROOM, detail) for each in evicted
            ]
            actions.append(Load(model.key, name, Tier.DEVICE, ActionReason.WAITING, detail))
            del idle[name]
            last = name
            break
    return tuple(actions), last


def _may_load(idle: IdlePod, view: PoolView, params: Baseline) -> bool:
    """The pod holds nothing, served a request after its last load, or loaded long ago."""
    name = idle.pod.name
    loaded_s = max((each.holders[name].since_s for each in idle.warm), default=NEVER_S)
    has_served = not idle.warm or any(idle.last_use_s(each) > loaded_s for each in idle.warm)
    return has_served or view.time_s - loaded_s >= params.idle_s


def _reserve_for_inference(model: ModelView, idle: dict[str, IdlePod]) -> None:
    """Remove one idle machine that holds the model for each of its queued requests."""
    warm = [name for name, each in idle.items() if model in each.warm]
    for name in warm[: model.waiting.requests]:
        del idle[name]


def _order(model: ModelView) -> tuple[bool, float, str]:
    """Models with starved requests first, then by arrival of their oldest request."""
    return not model.waiting.starved, model.waiting.oldest_s, model.key


def _in_turn(last: str, names: Iterable[str]) -> list[str]:
    """Names in order, starting after `last`."""
    return sorted(names, key=lambda name: (name <= last, name))
