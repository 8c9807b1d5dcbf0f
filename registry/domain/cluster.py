"""An in-process copy of a pool's state, kept by applying the registry's published changes.

The copy is what routing policies look at. It has one owner (the watch) and is read between awaits
only; it knows no clock and no network, so the simulator can keep one just as well. Every entity
remembers the version that last touched it: changes may arrive twice (with a reply, and published)
and in either order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from registry.domain.action_log import WantedPods, decode_wanted
from registry.domain.codec import decode_pod, decode_profile, decode_record
from registry.domain.estimates import UNMEASURED, ModelEstimates
from registry.domain.model import ModelName, ModelRecord, Tier, name_of_key
from registry.domain.pod import PodInfo, PodPhase
from registry.domain.pod_index import PodIndex
from registry.domain.residency_index import ResidencyIndex

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from registry.domain.profile import Profile


@dataclass(frozen=True, slots=True)
class Residency:
    """Where one model is for one pod."""

    tier: Tier
    loading_from: Tier | None
    """The tier a load under way started from; None when no load is under way."""
    since_s: float
    """Registry time at which this became so."""
    size_bytes: int

    @property
    def is_warm(self) -> bool:
        """Whether the pod can infer with the model now."""
        return self.tier is Tier.DEVICE

    @property
    def is_warming(self) -> bool:
        """Whether a load to the device is under way."""
        return self.loading_from is not None


class PodState:
    """One pod as last heard of. Mutable for speed: a decision reads it, its owner writes it.

    What policies ask of many pods for each decision is worked out when it changes.
    """

    __slots__ = (
        "_is_suspect", "_ongoing", "_ongoing_pending", "_phase", "_slots_pending", "_slots_used",
        "_used_bytes", "changed", "counts_version", "epoch", "free_bytes", "has_free_slot",
        "inferring", "info", "is_accepting", "loads_total", "name", "pool", "slots", "slots_busy",
        "version",
    )  # fmt: skip

    def __init__(self, info: PodInfo) -> None:
        self.info = info
        self.name = info.name
        self.slots = info.slots
        self.epoch = 0
        self.loads_total = 0
        self.changed: set[PodState] = set()
        """Where it puts itself when what pods are ranked by changes; the pool's, once in one."""
        self.pool: PodIndex | None = None
        self.version = 0
        self.counts_version = 0
        self.slots_busy = 0
        """Slots taken, those asked for here included."""
        self.inferring = 0
        """Requests in their inference stage, those asked for here included."""
        self.is_accepting = True
        """Whether requests may be sent to it at all."""
        self.has_free_slot = info.slots > 0
        """Whether it can be a request's entry pod now."""
        self.free_bytes = info.memory_bytes
        """Device memory a load can take without an eviction."""
        self._phase = PodPhase.READY
        self._is_suspect = False
        self._slots_used = self._slots_pending = 0
        self._ongoing = self._ongoing_pending = 0
        self._used_bytes: Mapping[str, int] = {}

    @property
    def address(self) -> str:
        """`host:port` of the pod's HTTP server."""
        return self.info.address

    @property
    def node(self) -> str:
        """The node it runs on."""
        return self.info.node

    @property
    def memory_bytes(self) -> int:
        """Its budget for models on the device."""
        return self.info.memory_bytes

    @property
    def slots_used(self) -> int:
        """Slots taken, as last heard."""
        return self._slots_used

    @slots_used.setter
    def slots_used(self, count: int) -> None:
        self._slots_used = count
        self.changed.add(self)
        self.slots_busy = busy = count + self._slots_pending
        self.has_free_slot = busy < self.slots and self.is_accepting

    @property
    def slots_pending(self) -> int:
        """Slots this process has asked for, less those it has given back, not heard about yet."""
        return self._slots_pending

    @slots_pending.setter
    def slots_pending(self, count: int) -> None:
        self._slots_pending = count
        self.changed.add(self)
        self.slots_busy = busy = count + self._slots_used
        self.has_free_slot = busy < self.slots and self.is_accepting

    @property
    def ongoing(self) -> int:
        """Requests in their inference stage, as last heard."""
        return self._ongoing

    @ongoing.setter
    def ongoing(self, count: int) -> None:
        self._ongoing = count
        self.changed.add(self)
        count += self._ongoing_pending
        self.inferring = count if count > 0 else 0

    @property
    def ongoing_pending(self) -> int:
        """As `slots_pending`, of requests in their inference stage."""
        return self._ongoing_pending

    @ongoing_pending.setter
    def ongoing_pending(self, count: int) -> None:
        self._ongoing_pending = count
        self.changed.add(self)
        count += self._ongoing
        self.inferring = count if count > 0 else 0

    @property
    def phase(self) -> PodPhase:
        """Whether the pod says that it takes requests."""
        return self._phase

    @phase.setter
    def phase(self, phase: PodPhase) -> None:
        self._phase = phase
        self._reconsider()

    @property
    def is_suspect(self) -> bool:
        """A gateway could not reach it; cleared by any news of the pod."""
        return self._is_suspect

    @is_suspect.setter
    def is_suspect(self, is_suspect: bool) -> None:
        self._is_suspect = is_suspect
        self._reconsider()

    def _reconsider(self) -> None:
        is_accepting = self._phase is PodPhase.READY and not self._is_suspect
        if is_accepting is self.is_accepting:
            return
        self.changed.add(self)
        self.is_accepting = is_accepting
        if self.pool is not None:
            self.pool.accepting.count += 1
        self.has_free_slot = self.slots_busy < self.slots and self.is_accepting

    @property
    def used_bytes(self) -> Mapping[str, int]:
        """Bytes in use per tier."""
        return self._used_bytes

    @used_bytes.setter
    def used_bytes(self, used_bytes: Mapping[str, int]) -> None:
        self._used_bytes = used_bytes
        self.changed.add(self)
        self.free_bytes = self.info.memory_bytes - used_bytes.get(Tier.DEVICE, 0)


_NOWHERE: Mapping[str, Residency] = {}


class ClusterState:
    """All pods, models, tiers and measurements of a pool."""

    def __init__(self) -> None:
        self.version = 0
        self.models_version = 0
        """Grows whenever any model's record changes, for those who follow only these."""
        self.pods = PodIndex()
        self.models: dict[ModelName, ModelRecord] = {}
        self.residency = ResidencyIndex(self.pods)
        self._serving = self.residency.serving
        self.measurements: dict[str, ModelEstimates] = {}
        self.profiles: dict[ModelName, Profile] = {}
        """Of the generation that was profiled last."""
        self.profiles_version = 0
        self.wanted: WantedPods | None = None
        """The pods that the autoscaler wants; None: it has not said."""
        self.unreadable_total = 0
        """Changes left out because they could not be read, and why the last of them was."""
        self.unreadable_cause = ""
        self._residency_versions: dict[tuple[str, str], int] = {}
        self._model_versions: dict[ModelName, int] = {}
        self._profile_versions: dict[ModelName, int] = {}
        self._gone_versions: dict[str, int] = {}
        self._snapshot_version = 0
        self._wanted_version = 0
        self._early_counts: dict[str, tuple[int, int, int]] = {}
        """Version, slots and ongoing requests of pods whose registration was not heard of yet."""

    def least_loaded(self, draw: float, but: Collection[str] = ()) -> PodState | None:
        """The least loaded pod with a free slot; equals by `draw` in the order of names."""
        return self.pods.least_loaded(draw, but)

    def roomiest(self, draw: float, but: Collection[str] = ()) -> PodState | None:
        """The pod with a free slot and the most free memory, then as `least_loaded`."""
        return self.pods.roomiest(draw, but)

    def holders(self, key: str) -> Mapping[str, Residency]:
        """Per pod that has anything of the model: where it is."""
        return self.residency.get(key, _NOWHERE)

    def warm(self, key: str) -> Sequence[PodState]:
        """Accepting pods that hold the model on their device."""
        return self._serving.warm(key)

    def warming(self, key: str) -> Sequence[PodState]:
        """Accepting pods to whose device a load of the model is under way."""
        return self._serving.warming(key)

    def measured(self, key: str) -> ModelEstimates:
        """The model's measurements; priors only if there are none."""
        return self.measurements.get(key, UNMEASURED)

    def profile(self, key: str) -> Profile | None:
        """What this generation of a model costs by batch size, where that was measured."""
        found = self.profiles.get(name_of_key(key))
        return found if found is not None and found.key == key else None

    # Changes

    def replace(self, version: int, snapshot: Sequence[Any]) -> None:
        """Start again from a full snapshot, as `registry.redis.snapshot` puts it together."""
        models_version, profiles_version = self.models_version, self.profiles_version
        self.__init__()  # type: ignore[misc]  # one owner, no subclass: a fresh start is meant
        self.version = self._snapshot_version = version
        self.models_version, self.profiles_version = models_version + 1, profiles_version + 1
        pods, models, samples, profiles, *wanted = snapshot
        for *pod, residency in pods or []:
            self._apply(version, "pod", *pod)
            pairs = list(residency or [])
            for key, text in zip(pairs[::2], pairs[1::2], strict=True):
                self._apply(version, "at", key, pod[0], text)
        for name, parts in models or []:
            self._apply(version, "model", name, *parts)
        for key, measures in samples or []:
            pairs = list(measures or [])
            for measure, values in zip(pairs[::2], pairs[1::2], strict=True):
                self._apply(version, "samples", key, measure, orjson.loads(values))
        pairs = list(profiles or [])
        for name, text in zip(pairs[::2], pairs[1::2], strict=True):
            self._apply(version, "profile", name, text)
        if wanted and wanted[0]:
            self._apply(version, "wanted", wanted[0])

    def apply(self, version: int, changes: Sequence[Sequence[Any]]) -> None:
        """Take in the changes of one version; those already known change nothing."""
        if version <= self._snapshot_version:
            return
        for kind, *values in changes:
            self._apply(version, kind, *values)
        self.version = max(self.version, version)

    def _apply(self, version: int, kind: str, *values: Any) -> None:
        """Take in one change; what a newer version of us wrote and we cannot read stays out."""
        try:
            match kind:
                case "counts":
                    self._apply_counts(version, *values)
                case "at":
                    self._apply_at(version, *values)
                case "pod":
                    self._apply_pod(version, *values)
                case "gone":
                    self._apply_gone(version, *values)
                case "model":
                    self._apply_model(version, *values)
                case "samples":
                    self._apply_samples(version, *values)
                case "profile":
                    self._apply_profile(version, *values)
                case "wanted":
                    self._apply_wanted(version, *values)
        except (ValueError, TypeError, LookupError) as error:
            self.unreadable_total += 1
            self.unreadable_cause = f"{kind}: {error}"

    def _apply_counts(self, version: int, name: str, slots_used: int, ongoing: int) -> None:
        pod = self.pods.get(name)
        if pod is None:
            if version > self._gone_versions.get(name, 0):
                self._early_counts[name] = (version, slots_used, ongoing)
        elif version >= pod.counts_version:
            pod.counts_version = version
            pod.slots_used = slots_used
            pod.ongoing = ongoing

    def _apply_at(self, version: int, key: str, name: str, text: str | bool) -> None:
        place = (key, name)
        if version < self._residency_versions.get(place, 0):
            return
        if version < self._gone_versions.get(name, 0):
            return
        self._residency_versions[place] = version
        if not isinstance(text, str):
            self.residency.drop(key, name)
            return
        tier, loading, since_ms, size = text.split("|")
        self.residency.put(
            key,
            name,
            Residency(
                tier=Tier(tier),
                loading_from=None if loading == "-" else Tier(loading),
                since_s=float(since_ms) / 1000,
                size_bytes=int(float(size)),
            ),
        )

    def _apply_pod(
        self, version: int, name: str, info: str, epoch: int, phase: str, used: str, loads: int,
        slots_used: int, ongoing: int,
    ) -> None:  # fmt: skip
        pod = self.pods.get(name)
        if pod is not None and version < pod.version:
            return
        if version < self._gone_versions.get(name, 0):
            return
        if pod is None or pod.epoch != epoch:
            early = self._early_counts.pop(name, None)
            if pod is not None and pod.counts_version > version:
                early = (pod.counts_version, pod.slots_used, pod.ongoing)
            pod = PodState(decode_pod(info))
            pod.epoch = epoch
            self.pods[name] = pod
            if early is not None:
                self._apply_counts(early[0], name, early[1], early[2])
        pod.version = version
        pod.phase = PodPhase(phase)
        pod.used_bytes = orjson.loads(used)
        pod.loads_total = loads
        pod.is_suspect = False
        self._apply_counts(version, name, slots_used, ongoing)

    def _apply_gone(self, version: int, name: str) -> None:
        pod = self.pods.get(name)
        if pod is not None and version >= pod.version:
            del self.pods[name]
            if pod.counts_version > version:  # those of its next registration came first
                self._early_counts[name] = (pod.counts_version, pod.slots_used, pod.ongoing)
        self._gone_versions[name] = max(version, self._gone_versions.get(name, 0))
        for key in [key for key, holders in self.residency.items() if name in holders]:
            if version >= self._residency_versions.get((key, name), 0):
                self._residency_versions[key, name] = version
                self.residency.drop(key, name)

    def _apply_model(
        self, version: int, text: str, spec: str | bool, previous: str | bool, failure: str | bool
    ) -> None:
        name = ModelName.parse(text)
        if version < self._model_versions.get(name, 0):
            return
        self._model_versions[name] = version
        self.models_version += 1
        self.models.pop(name, None)
        if isinstance(spec, str):
            self.models[name] = decode_record(spec, previous, failure)

    def _apply_samples(
        self, version: int, key: str, measure: str, values_s: Sequence[float]
    ) -> None:
        del version  # samples only add up; each change is applied once by the watch
        self.measurements.setdefault(key, ModelEstimates()).add(measure, values_s)

    def _apply_profile(self, version: int, text: str, profile: str | bool) -> None:
        name = ModelName.parse(text)
        if version < self._profile_versions.get(name, 0):
            return
        self._profile_versions[name] = version
        self.profiles_version += 1
        self.profiles.pop(name, None)
        if isinstance(profile, str):
            self.profiles[name] = decode_profile(profile)

    def _apply_wanted(self, version: int, text: str) -> None:
        if version >= self._wanted_version:
            self._wanted_version = version
            self.wanted = decode_wanted(text)
