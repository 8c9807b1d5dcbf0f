"""Declared models, their profiles and where their weights are, as `registry/redis/scripts` do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from registry.domain.model import ModelRecord, Tier, name_of_key
from registry.domain.residency_index import Residency

if TYPE_CHECKING:
    from collections.abc import Callable

    from registry.domain.cluster import ClusterState
    from registry.domain.model import LoadFailure, ModelName, ModelSpec
    from registry.domain.profile import Profile


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

    def delete(self, name: ModelName) -> bool:
        """Delete a model; False: it does not exist."""
        if self._state.profiles.pop(name, None) is not None:
            self._state.profiles_version += 1
        existed = self._state.models.pop(name, None) is not None
        self._state.models_version += existed
        return existed

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
