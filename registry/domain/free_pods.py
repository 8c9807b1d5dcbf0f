"""Some pods' free ones in order, updated as their counts change rather than sorted per request."""

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Final

from registry.domain.pod_state import ChangeLog, PodState

_FEW: Final = 4
"""Pods up to which sorting them is faster than to move those that have changed."""
_Ranked = tuple[int, int, str, "PodState"]


class FreePods:
    """Those with a free slot: fewest inferences first, then fewest slots taken, then by name."""

    __slots__ = ("_changes", "_count", "_entries", "_only", "_pods", "_ranked")

    def __init__(self, pods: Sequence[PodState], changes: ChangeLog) -> None:
        self._pods = frozenset(pods)
        self._only = pods[0] if len(pods) == 1 else None
        self._changes = changes
        self._count = -1
        """Changes that the order follows."""
        self._ranked: list[_Ranked] = []
        self._entries: dict[PodState, _Ranked] = {}

    def are_all(self) -> bool:
        """Whether none of the pods is full."""
        if self._only is not None:
            return self._only.has_free_slot
        self._update()
        return len(self._ranked) == len(self._pods)

    def first(self, count: int) -> list[PodState]:
        """The first `count` of them, or fewer."""
        if self._only is not None:
            return [self._only] if self._only.has_free_slot else []
        self._update()
        return [entry[3] for entry in self._ranked[:count]]

    def _update(self) -> None:
        count = self._changes.count
        if count == self._count:
            return
        pods, changed = self._pods, None
        if len(pods) > _FEW and self._count >= 0:
            changed = self._changes.since(self._count, len(pods))
        self._count = count
        if changed is None:
            ranked = [
                (pod.inferring, pod.slots_busy, pod.name, pod) for pod in pods if pod.has_free_slot
            ]
            ranked.sort()
            self._ranked = ranked
            self._entries = {entry[3]: entry for entry in ranked} if len(pods) > _FEW else {}
            return
        for pod in changed & self._pods:
            if (before := self._entries.pop(pod, None)) is not None:
                del self._ranked[bisect_left(self._ranked, before)]
            if pod.has_free_slot:
                entry = (pod.inferring, pod.slots_busy, pod.name, pod)
                self._entries[pod] = entry
                insort(self._ranked, entry)
