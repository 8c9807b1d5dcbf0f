"""Clockwork's priorities: load the model with most work that nobody can serve yet.

Source: Gujarati et al. 2020, "Serving DNNs like Clockwork", as given and adjusted by Blinowski et
al. 2024, section 4.2.4. A model's demand is its waiting work in seconds; it is spread evenly over
the machines that hold it; a machine's load is the sum of what is spread to it. Priority = demand
less what machines serve of it within the horizon. The highest is loaded on an idle machine; for it
leaves the model whose priority after leaving is lowest, and only if that is lower than the pending
one's. Strategies by batch size are the pods' batching; which request goes first, the gateway's.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from autoscaler.loading.idle_pods import IdlePod, idle_pods
from autoscaler.planning.actions import Action, Demote, Load, Why
from autoscaler.planning.policy import LoadingPolicy
from registry.model import Tier

if TYPE_CHECKING:
    from autoscaler.planning.pool import ModelView, PoolView


@dataclass(frozen=True, slots=True)
class Clockwork:
    """Parameters of the rule."""

    horizon_s: float = 2.0
    """Work that a machine can do in time; a usual deadline."""
    sink_to: Tier = Tier.DISK


def clockwork(params: Clockwork | None = None) -> LoadingPolicy[None]:
    """The rule with its parameters."""
    return LoadingPolicy("clockwork", None, partial(_plan, params or Clockwork()))


def _plan(params: Clockwork, view: PoolView, _: None) -> tuple[tuple[Action, ...], None]:
    work = _Work(view, params.horizon_s)
    actions: list[Action] = []
    idle = idle_pods(view)
    while idle:
        open_to = [each for each in view.models if each.may_load(view.time_s) and work.can(each)]
        pending = max(open_to, key=lambda each: (work.priority(each), each.key), default=None)
        if pending is None or work.priority(pending) <= 0:
            break
        found = _place(work, pending, idle)
        if found is None:
            break
        pod, leaving = found
        words = f"{work.priority(pending):.2g} s of work nobody serves"
        for each in leaving:
            actions.append(Demote(each.key, pod.pod.name, params.sink_to, Why.ROOM, words))
            work.remove(each, pod.pod.name)
        actions.append(Load(pending.key, pod.pod.name, Tier.DEVICE, Why.WAITING, words))
        work.add(pending, pod.pod.name)
        idle.remove(pod)
    return tuple(actions), None


def _place(
    work: _Work, pending: ModelView, idle: list[IdlePod]
) -> tuple[IdlePod, list[ModelView]] | None:
    """A pod with room, else the one whose models are missed least; None: all are missed more."""
    best: tuple[float, str, IdlePod, list[ModelView]] | None = None
    for each in idle:
        if pending in each.warm:
            continue
        leaving = _least_missed(work, pending, each)
        if leaving is None:
            continue
        harm = max((work.priority_without(one, each.pod.name) for one in leaving), default=-1e9)
        if best is None or (harm, each.pod.name) < best[:2]:
            best = harm, each.pod.name, each, leaving
    return None if best is None else (best[2], best[3])


def _least_missed(work: _Work, pending: ModelView, idle: IdlePod) -> list[ModelView] | None:
    missing = pending.size_bytes - idle.free_bytes()
    name = idle.pod.name
    chosen: list[ModelView] = []
    by_priority = sorted(idle.warm, key=lambda one: (work.priority_without(one, name), one.key))
    for model in by_priority:
        is_missed_more = work.priority_without(model, name) >= work.priority(pending)
        if missing <= 0 or is_missed_more:
            break
        if not model.spec.policy.pin:
            chosen.append(model)
            missing -= model.size_bytes
    return chosen if missing <= 0 else None


class _Work:
    """Demand and load as the plan goes on."""

    def __init__(self, view: PoolView, horizon_s: float) -> None:
        self._horizon_s = horizon_s
        self._pods = view.pods
        self._demand = {each.key: each.waiting.requests * each.infer_s for each in view.models}
        self._at = {
            each.key: {
                pod
                for pod, held in each.holders.items()
                if (held.is_warm or held.is_warming) and pod in view.pods
            }
            for each in view.models
        }
        self._load: defaultdict[str, float] = defaultdict(float)
        for key in self._demand:
            self._spread(key, 1)

    def _spread(self, key: str, sign: int) -> None:
        if self._demand[key]:
            for pod in self._at[key]:
                self._load[pod] += sign * self._demand[key] / len(self._at[key])

    def can(self, model: ModelView) -> bool:
        """Whether one more copy is possible at all."""
        most = model.spec.policy.max_copies
        count = len(self._at[model.key])
        return count < len(self._pods) and (most is None or count < most)

    def priority(self, model: ModelView) -> float:
        """Seconds of the model's work that its machines do not serve within the horizon."""
        key = model.key
        demand, at = self._demand[key], self._at[key]
        if not demand or not at:
            return demand
        share = demand / len(at)
        served = sum(share * min(1.0, self._horizon_s / self._load[pod]) for pod in sorted(at))
        return demand - served

    def priority_without(self, model: ModelView, pod: str) -> float:
        """Its priority if it left a machine."""
        self.remove(model, pod)
        found = self.priority(model)
        self.add(model, pod)
        return found

    def add(self, model: ModelView, pod: str) -> None:
        """It is on its way to a machine."""
        self._spread(model.key, -1)
        self._at[model.key].add(pod)
        self._spread(model.key, 1)

    def remove(self, model: ModelView, pod: str) -> None:
        """It leaves a machine."""
        self._spread(model.key, -1)
        self._at[model.key].discard(pod)
        self._spread(model.key, 1)
