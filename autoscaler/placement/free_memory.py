"""Free memory on devices, by the sizes of models: pods report theirs with heartbeats only."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from registry.domain.model import Tier

if TYPE_CHECKING:
    from autoscaler.planning.pool_view import PoolView


def free_device_bytes(view: PoolView) -> dict[str, float]:
    """By pod; running loads take their memory already."""
    free = {name: pod.budget_bytes.get(Tier.DEVICE, inf) for name, pod in view.pods.items()}
    for model in view.models:
        for name, each in model.holders.items():
            if name in free and (each.is_warm or each.is_warming):
                free[name] -= model.size_bytes
    return free


def pods_short_of_memory(view: PoolView) -> set[str]:
    """Pods without room for some model that they do not hold."""
    by_size = sorted(view.models, key=lambda each: -each.size_bytes)

    def largest_absent(pod: str) -> int:
        for model in by_size:
            held = model.holders.get(pod)
            if held is None or not (held.is_warm or held.is_warming):
                return model.size_bytes
        return 0

    return {name for name, free in free_device_bytes(view).items() if free < largest_absent(name)}
