"""The use of each pod: cold, idle, in use or busy.

Source: Gujarati et al. 2017, "Swayam: distributed autoscaling to meet SLAs of machine learning
inference services with resource efficiency"; there a pod serves one model, here it may hold many.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from autoscaler.planning.pool_view import NEVER_S

if TYPE_CHECKING:
    from autoscaler.planning.pool_view import PlannedPod, PoolView

IN_USE_S = 60.0
"""A model counts as in use for this time after an arrival."""


class PodUse(StrEnum):
    """Swayam's states of a pod."""

    COLD = "cold"
    """No model on its device."""
    WARM_IDLE = "warm-idle"
    """Models on its device, none of them in use."""
    IN_USE_IDLE = "warm-in-use-idle"
    """Models in use on its device, no running request."""
    IN_USE_BUSY = "warm-in-use-busy"
    """A running request."""


def pod_uses(view: PoolView, *, in_use_s: float = IN_USE_S) -> dict[str, PodUse]:
    """States by pod name."""
    latest_s: dict[str, float] = {}
    for model in view.models:
        for pod, residency in model.holders.items():
            if residency.is_warm:
                latest_s[pod] = max(latest_s.get(pod, NEVER_S), model.last_arrival_s)
    return {
        name: _use(pod, latest_s.get(name), view.time_s - in_use_s)
        for name, pod in view.pods.items()
    }


def _use(pod: PlannedPod, latest_s: float | None, since_s: float) -> PodUse:
    if pod.inferring or pod.slots_busy:
        return PodUse.IN_USE_BUSY
    if latest_s is None:
        return PodUse.COLD
    return PodUse.IN_USE_IDLE if latest_s >= since_s else PodUse.WARM_IDLE
