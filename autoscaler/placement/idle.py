"""Idle pods, which schedulers may use for a load, and idle copies, which may be evicted."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from autoscaler.planning.pool_view import NEVER_S, CopyUse, ModelView, PlannedPod, PoolView
from registry.domain.model import Tier


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


@dataclass(frozen=True, slots=True)
class IdlePod:
    """A pod without running requests and loads, and the models on its device."""

    pod: PlannedPod
    warm: tuple[ModelView, ...]
    """Least recently used first."""

    def last_use_s(self, model: ModelView) -> float:
        """Time of the model's last use on the pod; its last arrival if that is unknown."""
        use = model.uses.get(self.pod.name)
        return model.last_arrival_s if use is None else use.last_s

    @property
    def loaded_s(self) -> float:
        """End of the pod's last load."""
        name = self.pod.name
        return max((each.holders[name].since_s for each in self.warm), default=NEVER_S)

    @property
    def has_served(self) -> bool:
        """True if the pod holds nothing, or served a request after its last load."""
        return not self.warm or any(self.last_use_s(each) > self.loaded_s for each in self.warm)

    def select_evictions(
        self, size_bytes: int, candidates: Iterable[ModelView]
    ) -> tuple[ModelView, ...] | None:
        """The first unpinned candidates whose eviction frees enough memory; None: too few.

        Free memory is the budget less the sizes of the models: pods report it with each heartbeat
        only.
        """
        budget = self.pod.budget_bytes.get(Tier.DEVICE, inf)
        missing = size_bytes - (budget - sum(each.size_bytes for each in self.warm))
        chosen: list[ModelView] = []
        for model in candidates:
            if missing <= 0:
                break
            if not model.spec.policy.pin:
                chosen.append(model)
                missing -= model.size_bytes
        return tuple(chosen) if missing <= 0 else None


def idle_pods(view: PoolView) -> list[IdlePod]:
    """Sorted by name."""
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
