"""Where every model of a pool is, and the pods that hold or load it kept at hand.

Policies ask who holds a model for every request; who does changes far less often. The lists are
worked out when asked for and dropped when the model's places, or pods that take requests, change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from registry.model import Tier

if TYPE_CHECKING:
    from registry.cluster import PodState, Residency
    from registry.ranking import RankedPods


@dataclass(slots=True)
class _Held:
    warm: list[PodState]
    warming: list[PodState]


class Residencies(dict[str, "dict[str, Residency]"]):
    """By model key, then pod. Written through `put` and `drop` only."""

    def __init__(self, pods: RankedPods) -> None:
        super().__init__()
        self._pods = pods
        self._held: dict[str, _Held] = {}
        self._as_of = 0
        """Which pods took requests when the lists were made."""

    def put(self, key: str, pod: str, residency: Residency) -> None:
        """The model is so at the pod now."""
        self.setdefault(key, {})[pod] = residency
        self._held.pop(key, None)

    def drop(self, key: str, pod: str) -> None:
        """The pod has nothing of the model."""
        holders = self.get(key)
        if holders is None:
            return
        holders.pop(pod, None)
        self._held.pop(key, None)
        if not holders:
            del self[key]

    def warm(self, key: str) -> list[PodState]:
        """Accepting pods that hold the model on their device; not to be changed."""
        if self._as_of != self._pods.accepting_version:
            self._forget()
        return (self._held.get(key) or self._find(key)).warm

    def warming(self, key: str) -> list[PodState]:
        """Accepting pods to whose device a load of the model is under way; not to be changed."""
        if self._as_of != self._pods.accepting_version:
            self._forget()
        return (self._held.get(key) or self._find(key)).warming

    def _forget(self) -> None:
        self._held.clear()
        self._as_of = self._pods.accepting_version

    def _find(self, key: str) -> _Held:
        if key not in self:
            return _Held([], [])
        accepting = [
            (residency, pod)
            for name, residency in self[key].items()
            if (pod := self._pods.get(name)) is not None and pod.is_accepting
        ]
        self._held[key] = found = _Held(
            [pod for residency, pod in accepting if residency.tier is Tier.DEVICE],
            [pod for residency, pod in accepting if residency.loading_from is not None],
        )
        return found
