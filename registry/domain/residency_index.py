"""Tier of every model at every pod, with cached lists of the pods that hold or load each model.

Policies read these lists per request; residency changes far less often. A list is built on first
use and dropped when the model's residency changes or any pod starts or stops accepting requests.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from registry.domain.free_pods import FreePods
from registry.domain.model import Tier, name_of_key
from registry.domain.pod_index import PodIndex
from registry.domain.pod_state import PodState


@dataclass(frozen=True, slots=True)
class Residency:
    """Where one model is at one pod."""

    tier: Tier
    loading_from: Tier | None
    """The tier a load in progress started from; None without a load."""
    since_s: float
    """Registry time of the last change."""
    size_bytes: int

    @property
    def is_warm(self) -> bool:
        """Whether the pod can run inference with the model now."""
        return self.tier is Tier.DEVICE

    @property
    def is_warming(self) -> bool:
        """Whether a load to the device is in progress."""
        return self.loading_from is not None


@dataclass(frozen=True, slots=True)
class ServingPods:
    """Accepting pods that serve one model.

    Of a model with a warm placed copy only the placed ones.
    """

    warm: tuple[PodState, ...]
    """Pods that hold the model on their device."""
    warming: tuple[PodState, ...]
    """Pods that load the model to their device."""
    free: FreePods
    """Those of `warm` that have a free slot."""
    may_be_more: bool
    """Whether a further pod may load the model, if it has a slot and memory."""
    are_of_a_kind: bool
    """Whether all pods of the pool are of one kind of accelerator."""

    @property
    def have_free_slots(self) -> bool:
        """Whether none of them is full."""
        return self.free.are_all() and (
            not self.warming or all(pod.has_free_slot for pod in self.warming)
        )


_NOTHING: Final[Mapping[str, Residency]] = {}


class ResidencyIndex(dict[str, "dict[str, Residency]"]):
    """Residency by model key, then pod name. Write through `put` and `drop` only."""

    def __init__(self, pods: PodIndex) -> None:
        super().__init__()
        self._pods = pods
        self._accepting_changes = pods.accepting_changes
        self._accepting_count = 0
        """`_accepting_changes.count` when the lists in `_serving` were built."""
        self._serving: dict[str, ServingPods] = {}
        self._on_device: dict[str, dict[str, Residency]] = {}
        self.device_bytes: dict[str, int] = {}
        """By key of a declared model: its size on a device, as of its last load."""
        self.device_changes: set[str] = set()
        """Pods at which a model came to or left a device that holds it or held it; readers who
        keep results by pod drop these and clear the set."""

    def put(self, key: str, pod: str, residency: Residency) -> None:
        self.setdefault(key, {})[pod] = residency
        self._serving.pop(key, None)
        if residency.is_warm or residency.is_warming:
            if residency.is_warm and residency.size_bytes > 0:
                self.device_bytes[key] = residency.size_bytes
            self._on_device.setdefault(pod, {})[key] = residency
            self._note_change(key, pod)
        else:
            self._leave_device(key, pod)

    def drop(self, key: str, pod: str) -> None:
        holders = self.get(key)
        if holders is None:
            return
        holders.pop(pod, None)
        self._serving.pop(key, None)
        self._leave_device(key, pod)
        if not holders:
            del self[key]

    def on_device(self, pod: str) -> Mapping[str, Residency]:
        """The models that take device memory of a pod, by key: warm, or being loaded."""
        return self._on_device.get(pod, _NOTHING)

    def copies(self, key: str) -> int:
        """The number of pods that hold the model on their device or load it."""
        return sum(key in self.on_device(pod) for pod in self.get(key, ()))

    def _leave_device(self, key: str, pod: str) -> None:
        held = self._on_device.get(pod)
        if held is not None and held.pop(key, None) is not None:
            self._note_change(key, pod)
            if not held:
                del self._on_device[pod]

    def _note_change(self, key: str, pod: str) -> None:
        """What the eviction of a copy costs depends on the others."""
        self.device_changes.add(pod)
        for holder in self.get(key, ()):
            if holder != pod and key in self.on_device(holder):
                self.device_changes.add(holder)

    def serving(self, key: str) -> ServingPods:
        if self._accepting_count != self._accepting_changes.count:
            self._serving.clear()
            self._accepting_count = self._accepting_changes.count
        return self._serving.get(key) or self._build(key)

    def _build(self, key: str) -> ServingPods:
        holders = self.get(key, _NOTHING)
        accepting = [
            (residency, pod)
            for name, residency in holders.items()
            if (pod := self._pods.get(name)) is not None and pod.is_accepting
        ]
        warm = [pod for residency, pod in accepting if residency.tier is Tier.DEVICE]
        warming = [pod for residency, pod in accepting if residency.loading_from is not None]
        if any(pod.placed_model for pod in warm):
            model = str(name_of_key(key))
            warm, warming = (
                [pod for pod in pods if pod.placed_model == model] for pods in (warm, warming)
            )
        found = ServingPods(
            tuple(warm), tuple(warming), FreePods(warm, self._pods.changes),
            len(warm) < len(self._pods) and not (warm and warm[0].placed_model),
            len(self._pods.kinds) <= 1,
        )  # fmt: skip
        if holders:
            self._serving[key] = found
        return found
