"""What requests lose for want of variants that no pod holds, and which load that pays for. Pure.

A cold variant would never be chosen while its load takes longer than requests wait, and so never be
loaded. What each request loses is the utility that it would gain were the variant warm, times its
deadline: the time that its accuracy is worth. Where the losses reach the time of the load, it
begins in the background, as in `gateway.routing.ski_rental`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from gateway.selection.utility import accuracy_by_class_mix, class_probabilities, utility
from gateway.selection.window import SelectionPlan, VariantProfile, Window, WindowRequest

_FORGET_S: Final = 600.0
"""Losses without a further one for so long no longer count."""


@dataclass(frozen=True, slots=True)
class VariantLoad:
    variant: str
    pod: str


@dataclass(slots=True)
class _Loss:
    seconds: float = 0.0
    latest_s: float = 0.0


@dataclass(slots=True)
class ColdVariants:
    """The losses of one gateway, by application and variant."""

    _losses: dict[tuple[str, str], _Loss] = field(default_factory=dict)

    def lost_s(self, application: str, variant: str) -> float:
        loss = self._losses.get((application, variant))
        return loss.seconds if loss is not None else 0.0

    def record(self, window: Window, plan: SelectionPlan) -> dict[str, list[VariantLoad]]:
        """Add what a planned window loses; returns the loads that are paid for, by application."""
        cold = _cold_variants(window)
        if not cold:
            return {}
        planned = {each.request: each for each in plan.assignments}
        loads: dict[str, list[VariantLoad]] = {}
        for application in window.applications:
            for profile in application.variants:
                pod_load = cold.get(profile.name)
                if pod_load is None:
                    continue
                lost_s = sum(
                    max(0.0, _utility_if_warm(each, profile, window) - planned[each.id].utility)
                    * each.deadline_s
                    for each in window.requests
                    if each.application == application.name
                )
                pod, load_s = pod_load
                key = (application.name, profile.name)
                if self._add(key, lost_s, window.now_s) >= load_s:
                    del self._losses[key]
                    loads.setdefault(application.name, []).append(VariantLoad(profile.name, pod))
        return loads

    def _add(self, key: tuple[str, str], lost_s: float, now_s: float) -> float:
        loss = self._losses.setdefault(key, _Loss())
        if now_s - loss.latest_s > _FORGET_S:
            loss.seconds = 0.0
        loss.seconds += lost_s
        loss.latest_s = now_s
        return loss.seconds


def _cold_variants(window: Window) -> dict[str, tuple[str, float]]:
    """Variants that no worker holds: the worker where a load ends first, and its time."""
    found: dict[str, tuple[str, float]] = {}
    warm = set()
    for worker in window.workers:
        for variant in worker.latency_s:
            load_s = worker.swap_s.get(variant, 0.0)
            if load_s == 0.0 or worker.loaded == variant:
                warm.add(variant)
            elif variant not in found or load_s < found[variant][1]:
                found[variant] = (worker.name, load_s)
    return {variant: load for variant, load in found.items() if variant not in warm}


def _utility_if_warm(request: WindowRequest, profile: VariantProfile, window: Window) -> float:
    application = next(each for each in window.applications if each.name == request.application)
    ends_s = [
        max(worker.free_s, window.now_s)
        - request.arrival_s
        + worker.latency_s[profile.name]
        + worker.setup_s.get(profile.name, 0.0)
        + worker.around_s.get(profile.name, 0.0)
        for worker in window.workers
        if profile.name in worker.latency_s
    ]
    accuracy = profile.accuracy
    if request.evidence is not None:
        theta = class_probabilities(application.prior_weights, request.evidence)
        accuracy = float(accuracy_by_class_mix(profile.recalls, theta))
    accuracy *= application.accuracy_scale
    return float(utility(accuracy, application.penalty, request.deadline_s, min(ends_s)))
