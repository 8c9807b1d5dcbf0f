"""Pods that a scheduler may give a load to: they work on nothing and load nothing."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from autoscaler.planning.pool_view import NEVER_S
from registry.domain.model import Tier

if TYPE_CHECKING:
    from autoscaler.planning.pool_view import ModelView, PlannedPod, PoolView


@dataclass(frozen=True, slots=True)
class IdlePod:
    """A pod without work, and what is on its device."""

    pod: PlannedPod
    warm: tuple[ModelView, ...]
    """The one whose last use is longest ago first."""

    def last_use_s(self, model: ModelView) -> float:
        """When the pod last served a model it holds, as far as that is known."""
        use = model.uses.get(self.pod.name)
        return model.last_arrival_s if use is None else use.last_s

    @property
    def loaded_s(self) -> float:
        """When its last load ended."""
        name = self.pod.name
        return max((each.holders[name].since_s for each in self.warm), default=NEVER_S)

    @property
    def has_served(self) -> bool:
        """Whether it has served anything since its last load, or holds nothing."""
        return not self.warm or any(self.last_use_s(each) > self.loaded_s for each in self.warm)

    def free_bytes(self) -> float:
        """What its device has left beside these: a pod tells what it uses a heartbeat late."""
        budget = self.pod.budget_bytes.get(Tier.DEVICE)
        return inf if budget is None else budget - sum(each.size_bytes for each in self.warm)

    def leaving(self, size_bytes: int) -> tuple[ModelView, ...] | None:
        """The least recently used models that make room; None: pinned ones leave too little."""
        missing = size_bytes - self.free_bytes()
        chosen: list[ModelView] = []
        for model in self.warm:
            if missing <= 0:
                break
            if not model.spec.policy.pin:
                chosen.append(model)
                missing -= model.size_bytes
        return tuple(chosen) if missing <= 0 else None


def idle_pods(view: PoolView) -> list[IdlePod]:
    """Every one of them, by name."""
    warm: dict[str, list[ModelView]] = {name: [] for name in view.pods}
    is_loading = set()
    for model in view.models:
        for name, each in model.holders.items():
            if each.is_warming:
                is_loading.add(name)
            elif each.is_warm and name in warm:
                warm[name].append(model)
    found = []
    for name, pod in sorted(view.pods.items()):
        is_busy = pod.inferring or pod.slots_busy or name in is_loading
        if is_busy or not pod.is_accepting:
            continue
        idle = IdlePod(pod, ())
        order = sorted(warm[name], key=lambda each: (idle.last_use_s(each), each.key))
        found.append(IdlePod(pod, tuple(order)))
    return found
