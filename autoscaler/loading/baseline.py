"""Baseline: what waits and is nowhere is loaded on the next idle machine.

Source: Blinowski et al. 2024, sections 4.2.1 and 4.2.2: machines in turn; no load on one
that has not served since its last load, unless it was idle for long; several models per machine by
memory. Who comes first has the machine, be it for inference or for a load: one that is idle and has
a model with requests further ahead is left to them. Which request goes where (starved first, then
those that can join a running batch, then the rest) is the gateway's: the waiting room's order and
the routing policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from autoscaler.loading.idle_pods import IdlePod, idle_pods
from autoscaler.planning.actions import Action, ActionReason, Demote, Load
from autoscaler.planning.policy import LoadingPolicy
from registry.domain.model import Tier

if TYPE_CHECKING:
    from autoscaler.planning.pool_view import ModelView, PoolView


@dataclass(frozen=True, slots=True)
class Baseline:
    """Parameters of the rule."""

    idle_s: float = 10.0
    """How long is long enough for a machine that has not served; the thesis gives no number."""
    sink_to: Tier = Tier.DISK


def baseline(params: Baseline | None = None) -> LoadingPolicy[str]:
    """The rule with its parameters; its state is the machine whose turn was last."""
    plan = partial(_plan, params or Baseline())
    return LoadingPolicy("baseline", "", plan, reads_demand=False)


def _plan(params: Baseline, view: PoolView, last: str) -> tuple[tuple[Action, ...], str]:
    idle = {each.pod.name: each for each in idle_pods(view) if _may_load(each, view, params)}
    actions: list[Action] = []
    for model in sorted((each for each in view.models if each.waiting.requests), key=_turn):
        if any(each.is_warm or each.is_warming for each in model.holders.values()):
            _take_for_inference(model, idle)
            continue
        if not model.may_load(view.time_s):
            continue
        for name in _after(last, idle):
            leaving = idle[name].leaving(model.size_bytes)
            if leaving is None:
                continue
            words = f"{model.waiting.requests} wait"
            actions += [
                Demote(each.key, name, params.sink_to, ActionReason.ROOM, words) for each in leaving
            ]
            actions.append(Load(model.key, name, Tier.DEVICE, ActionReason.WAITING, words))
            del idle[name]
            last = name
            break
    return tuple(actions), last


def _may_load(idle: IdlePod, view: PoolView, params: Baseline) -> bool:
    return idle.has_served or view.time_s - idle.loaded_s >= params.idle_s


def _take_for_inference(model: ModelView, idle: dict[str, IdlePod]) -> None:
    """Idle machines that have the model serve its requests, which came before those that follow."""
    warm = [name for name, each in idle.items() if model in each.warm]
    for name in warm[: model.waiting.requests]:
        del idle[name]


def _turn(model: ModelView) -> tuple[bool, float, str]:
    """Starved requests first, then by arrival."""
    return not model.waiting.starved, model.waiting.oldest_s, model.key


def _after(last: str, names: dict[str, IdlePod]) -> list[str]:
    """Names in turn, from the one after `last` on."""
    order = sorted(names)
    return [name for name in order if name > last] + [name for name in order if name <= last]
