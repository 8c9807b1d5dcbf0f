"""Pods and models of the registry in memory, with the rules of `registry/redis/scripts`.

Pods: leases and reservations; models: declarations, profiles and where their weights are. Times in
seconds.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from registry.domain.cluster import ClusterState
from registry.domain.model import LoadFailure, ModelName, ModelRecord, ModelSpec, Tier, name_of_key
from registry.domain.pod import PodPhase, Profile
from registry.domain.pod_index import Residency
from registry.domain.pod_state import PodState
from registry.errors import LeaseLost


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

    def drop_expired(self, pod: PodEntry, now_s: float) -> None:
        if now_s < pod.earliest_s:
            return
        for expiry_by_id in (pod.slots, pod.ongoing):
            for id_ in [id_ for id_, expiry_s in expiry_by_id.items() if expiry_s <= now_s]:
                del expiry_by_id[id_]
        pod.earliest_s = min([*pod.slots.values(), *pod.ongoing.values()], default=inf)
        pod.publish_counts()


class ModelTable:
    """Writes the models of a pool's state."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self.on_residency: Callable[[str, str, Tier, Tier | None, float], None] | None = None
        """Called with pod, key, tier, source of a load in progress, and time of every change."""

    def put(self, spec: ModelSpec) -> str:
        """Declare a model: `created`, `configured` or `unchanged`."""
        record = self._state.models.get(spec.name)
        if record is None:
            self._set_record(spec.name, ModelRecord(spec))
            return "created"
        if record.spec == spec:
            if record.failure is not None:
                self._set_record(spec.name, ModelRecord(record.spec, record.previous))
            return "unchanged"
        previous = record.previous
        if record.spec.key != spec.key and self._is_warm(record.spec.key):
            previous = record.spec
        if previous is not None and (
            previous.key == spec.key or self._is_warm(spec.key) or not self._is_warm(previous.key)
        ):
            previous = None
        self._set_record(spec.name, ModelRecord(spec, previous))
        return "configured"

    def put_profile(self, profile: Profile) -> bool:
        """Store a generation's profile; False: the generation is no longer declared."""
        name = name_of_key(profile.key)
        record = self._state.models.get(name)
        if record is None or profile.key not in (record.spec.key, record.serving.key):
            return False
        self._state.profiles.setdefault(name, {})[profile.product] = profile
        self._state.profiles_version += 1
        return True

    def record_failure(self, key: str, failure: LoadFailure) -> None:
        name = name_of_key(key)
        record = self._state.models.get(name)
        if record is not None and record.spec.key == key:
            self._set_record(name, ModelRecord(record.spec, record.previous, failure))

    def record_load(self, key: str) -> None:
        """Record a load: one of the declared generation ends its failure and the previous one."""
        name = name_of_key(key)
        record = self._state.models.get(name)
        if record is not None and record.spec.key == key and (record.previous or record.failure):
            self._set_record(name, ModelRecord(record.spec))

    def _set_record(self, name: ModelName, record: ModelRecord) -> None:
        self._state.models[name] = record
        self._state.models_version += 1

    # Residency

    def set_residency(
        self, pod: str, key: str, tier: Tier, loading: Tier | None, size_bytes: int, now_s: float
    ) -> None:
        if self.on_residency is not None:
            self.on_residency(pod, key, tier, loading, now_s)
        before = self._state.holders(key).get(pod)
        if tier is Tier.REMOTE and loading is None and size_bytes == 0:
            self._state.residency.drop(key, pod)
        else:
            self._state.residency.put(key, pod, Residency(tier, loading, now_s, size_bytes))
        if before is not None and before.is_warm and tier is not Tier.DEVICE:
            self._end_unused(key)

    def drop_pod(self, pod: str, *, is_registering: bool) -> list[str]:
        """Drop all residencies of a pod; returns their models' keys.

        A pod that registers again reports the models that it still holds, so no generation ends.
        """
        residency = self._state.residency
        keys = [key for key, holders in residency.items() if pod in holders]
        for key in keys:
            was_warm = residency[key][pod].is_warm
            residency.drop(key, pod)
            if was_warm and not is_registering:
                self._end_unused(key)
        return keys

    def _is_warm(self, key: str) -> bool:
        return any(each.is_warm for each in self._state.holders(key).values())

    def _end_unused(self, key: str) -> None:
        """End a previous generation that no pod has on its device any more."""
        name = name_of_key(key)
        record = self._state.models.get(name)
        if record is None or record.previous is None or record.previous.key != key:
            return
        if not self._is_warm(key):
            self._set_record(name, ModelRecord(record.spec, None, record.failure))
