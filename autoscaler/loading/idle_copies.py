"""Copies of a model that may be evicted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autoscaler.planning.pool_view import CopyUse

if TYPE_CHECKING:
    from autoscaler.planning.pool_view import ModelView, PoolView


@dataclass(frozen=True, slots=True)
class IdleCopy:
    """An evictable copy and the time since its last use."""

    pod: str
    idle_s: float


def idle_copies(model: ModelView, view: PoolView) -> list[IdleCopy]:
    """Evictable copies, longest idle first: not pinned, not in use, not needed for `min-copies`.

    A copy is idle since its own last use, or the model's last arrival if that is unknown, and at
    most since it was loaded.
    """
    policy = model.spec.policy
    if policy.pin or model.waiting.requests:
        return []
    warm = [pod for pod, each in model.holders.items() if each.is_warm and pod in view.pods]
    spare = len(warm) - policy.min_copies
    if spare <= 0:
        return []
    idle = []
    for pod in warm:
        use = model.uses.get(pod) or CopyUse(last_s=model.last_arrival_s)
        if not use.ongoing:
            since_s = max(model.holders[pod].since_s, use.last_s)
            idle.append(IdleCopy(pod, max(0.0, view.time_s - since_s)))
    idle.sort(key=lambda each: (-each.idle_s, each.pod))
    return idle[:spare]
