"""Where every model of a pool is, and the pods that hold or load it kept at hand.

Policies ask who holds a model for every request; who does changes far less often. The lists are
worked out when asked for and dropped when the model's places, or pods that take requests, change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from registry.domain.model import Tier

if TYPE_CHECKING:
    from registry.domain.cluster import PodState, Residency
    from registry.domain.pod_index import PodIndex


@dataclass(slots=True)
class _Held:
    warm: list[PodState]
    warming: list[PodState]


class ServingPods:
    """Per model, the accepting pods that hold or load it."""

    __slots__ = ("_accepting", "_as_of", "_held", "_pods", "_residencies")

    def __init__(self, pods: PodIndex, residencies: dict[str, dict[str, Residency]]) -> None:
        self._pods = pods
        self._residencies = residencies
        self._accepting = pods.accepting
        self._as_of = 0
        """Which pods took requests when the lists were made."""
        self._held: dict[str, _Held] = {}

    def warm(self, key: str) -> list[PodState]:
        """Accepting pods that hold the model on their device; not to be changed."""
        if self._as_of != self._accepting.count:
            self._forget_all()
        return (self._held.get(key) or self._find(key)).warm

    def warming(self, key: str) -> list[PodState]:
        """Accepting pods to whose device a load of the model is under way; not to be changed."""
        if self._as_of != self._accepting.count:
            self._forget_all()
        return (self._held.get(key) or self._find(key)).warming

    def forget(self, key: str) -> None:
        """The model's places have changed."""
        self._held.pop(key, None)

    def _forget_all(self) -> None:
        self._held.clear()
        self._as_of = self._accepting.count

    def _find(self, key: str) -> _Held:
        holders = self._residencies.get(key)
        if holders is None:
            return _Held([], [])
        accepting = [
            (residency, pod)
            for name, residency in holders.items()
            if (pod := self._pods.get(name)) is not None and pod.is_accepting
        ]
        self._held[key] = found = _Held(
            [pod for residency, pod in accepting if residency.tier is Tier.DEVICE],
            [pod for residency, pod in accepting if residency.loading_from is not None],
        )
        return found


class ResidencyIndex(dict[str, "dict[str, Residency]"]):
    """By model key, then pod. Written through `put` and `drop` only."""

    def __init__(self, pods: PodIndex) -> None:
        super().__init__()
        self.serving = ServingPods(pods, self)

    def put(self, key: str, pod: str, residency: Residency) -> None:
        """The model is so at the pod now."""
        self.setdefault(key, {})[pod] = residency
        self.serving.forget(key)

    def drop(self, key: str, pod: str) -> None:
        """The pod has nothing of the model."""
        holders = self.get(key)
        if holders is None:
            return
        holders.pop(pod, None)
        self.serving.forget(key)
        if not holders:
            del self[key]
