"""Leases and reservations of pods, with the rules of `registry/redis/scripts`. Times in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from registry.domain.pod import PodPhase
from registry.errors import LeaseLost

if TYPE_CHECKING:
    from registry.domain.pod_state import PodState


@dataclass(eq=False, slots=True)
class PodEntry:
    """A pod, its lease, and its reservations: expiry by request id."""

    state: PodState
    lease_end_s: float = inf
    slots: dict[str, float] = field(default_factory=dict)
    ongoing: dict[str, float] = field(default_factory=dict)
    earliest_s: float = inf
    """No reservation expires before this."""

    def is_lease_over(self, now_s: float) -> bool:
        return self.lease_end_s <= now_s

    def publish_counts(self) -> None:
        self.state.set_counts(len(self.slots), len(self.ongoing))


class PodTable:
    """The pods that have a lease."""

    def __init__(self) -> None:
        self.by_name: dict[str, PodEntry] = {}
        self._next_lease_end_s = inf

    # Leases

    def add(self, state: PodState, lease_end_s: float) -> None:
        self.by_name[state.name] = entry = PodEntry(state)
        self.set_lease(entry, lease_end_s)

    def set_lease(self, entry: PodEntry, end_s: float) -> None:
        entry.lease_end_s = end_s
        self._next_lease_end_s = min(self._next_lease_end_s, end_s)

    def holder(self, pod: str, epoch: int, now_s: float) -> PodEntry:
        """The pod, if its lease is valid and of this epoch. Raises LeaseLost."""
        entry = self.by_name.get(pod)
        if entry is None or entry.state.epoch != epoch or entry.is_lease_over(now_s):
            raise LeaseLost(f"the lease of {pod} expired or belongs to a newer process of its name")
        return entry

    def serving(self, pod: str, now_s: float) -> PodEntry | None:
        """The pod if it is alive and takes requests, without its expired reservations."""
        entry = self.by_name.get(pod)
        if entry is None or entry.lease_end_s <= now_s:
            return None
        if now_s >= entry.earliest_s:
            self.drop_expired(entry, now_s)
        state = entry.state
        return entry if state.is_accepting or state.phase is PodPhase.READY else None

    def expired(self, now_s: float) -> list[str]:
        """Pods whose lease is over; the caller must remove them before the next call."""
        if now_s < self._next_lease_end_s:
            return []
        ends = (each.lease_end_s for each in self.by_name.values() if not each.is_lease_over(now_s))
        self._next_lease_end_s = min(ends, default=inf)
        return [name for name, each in self.by_name.items() if each.is_lease_over(now_s)]

    # Reservations

    def release(self, id_: str, entry: str, predict: str) -> None:
        """Release a reservation; no effect the second time, or for a pod that is gone."""
        pod = self.by_name.get(entry)
        if pod is not None and pod.slots.pop(id_, None) is not None:
            pod.publish_counts()
        if predict != entry:
            pod = self.by_name.get(predict)
        if pod is not None and id_ in pod.ongoing:
            self.end_inference(id_, predict)

    def end_inference(self, id_: str, predict: str) -> None:
        """Release the reservation's place in the inference stage; its slot stays taken."""
        pod = self.by_name.get(predict)
        if pod is not None and pod.ongoing.pop(id_, None) is not None:
            pod.publish_counts()

    def renew(self, id_: str, entry: str, predict: str, until_s: float) -> None:
        """Extend a reservation; one that was released stays released."""
        if (pod := self.by_name.get(entry)) is not None and id_ in pod.slots:
            pod.slots[id_] = until_s
            pod.earliest_s = min(pod.earliest_s, until_s)
        if (pod := self.by_name.get(predict)) is not None and id_ in pod.ongoing:
            pod.ongoing[id_] = until_s
            pod.earliest_s = min(pod.earliest_s, until_s)

    def restore(self, id_: str, entry: str, predict: str, until_s: float, now_s: float) -> None:
        """Record a running request's reservation again at pods that have re-registered."""
        entering, predicting = self.by_name.get(entry), self.by_name.get(predict)
        if entering is None or predicting is None or id_ in entering.slots:
            return
        if entering.is_lease_over(now_s) or predicting.is_lease_over(now_s):
            return
        entering.slots[id_] = predicting.ongoing[id_] = until_s
        for pod in (entering, predicting):
            pod.earliest_s = min(pod.earliest_s, until_s)
            pod.publish_counts()

    def drop_expired(self, pod: PodEntry, now_s: float) -> None:
        if now_s < pod.earliest_s:
            return
        for expiry_by_id in (pod.slots, pod.ongoing):
            for id_ in [id_ for id_, expiry_s in expiry_by_id.items() if expiry_s <= now_s]:
                del expiry_by_id[id_]
        pod.earliest_s = min([*pod.slots.values(), *pod.ongoing.values()], default=inf)
        pod.publish_counts()
