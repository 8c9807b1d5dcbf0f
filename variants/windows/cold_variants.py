"""What requests lose for want of variants that no pod holds, and which load that pays for. Pure.

A cold variant would never be chosen while its load takes longer than requests wait, and so never be
loaded. What each request loses is the utility that it would gain were the variant warm, times its
deadline: the time that its accuracy is worth. Where the losses reach the time of the load, it
begins in the background, as in `gateway.routing.ski_rental`.
"""

from collections.abc import Iterator
from typing import Final

from registry.domain.model import ModelName
from variants.planning.utility import penalty_of_one
from variants.planning.window import SelectionPlan, Window

_FORGET_S: Final = 600.0
"""Losses without a further one for so long no longer count."""


class ColdVariants:
    """The losses of one gateway, by application and variant: seconds, and when the last was."""

    def __init__(self) -> None:
        self._losses: dict[tuple[str, str], tuple[float, float]] = {}

    def record(self, window: Window, plan: SelectionPlan) -> Iterator[tuple[ModelName, str]]:
        """Add what a planned window loses; gives the variants that are to be loaded, and where."""
        cold = _cold_variants(window)
        if not cold:
            return
        planned = {each.request: each.utility for each in plan.assignments}
        for application in window.applications:
            for profile in application.variants:
                if profile.name not in cold:
                    continue
                pod, load_s = cold[profile.name]
                lost_s = 0.0
                for each in window.requests:
                    if each.application == application.name:
                        ends_s = window.soonest_s(profile.name, each.arrival_s, is_warm=True)
                        assert ends_s is not None  # a worker can load it
                        accuracy = profile.accuracy_for(each.evidence, application.prior_weights)
                        late = penalty_of_one(application.penalty, each.deadline_s, ends_s)
                        gain = accuracy * application.accuracy_scale * (1.0 - late)
                        lost_s += max(0.0, gain - planned.get(each.id, 0.0)) * each.deadline_s
                key = (application.name, profile.name)
                before_s, latest_s = self._losses.get(key, (0.0, 0.0))
                if window.now_s - latest_s <= _FORGET_S:
                    lost_s += before_s
                self._losses[key] = (lost_s, window.now_s)
                if lost_s >= load_s:
                    del self._losses[key]
                    yield ModelName(ModelName.parse(key[0]).namespace, profile.name), pod


def _cold_variants(window: Window) -> dict[str, tuple[str, float]]:
    """Variants that no worker holds: the worker where a load ends first, and its time."""
    found: dict[str, tuple[str, float]] = {}
    warm = set()
    for worker in window.workers:
        for variant in worker.latency_s:
            load_s = worker.swap_s.get(variant, 0.0)
            if load_s == 0.0:
                warm.add(variant)
            elif variant not in found or load_s < found[variant][1]:
                found[variant] = (worker.name, load_s)
    return {variant: load for variant, load in found.items() if variant not in warm}
