"""In-process copy of a pool's state for routing policies and planners, and how changes update it.

Only its owner (the watch, or the simulator) writes it. It may change at every await of a reader.
Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any, Final, NamedTuple

import orjson

from registry.domain.application import AccuracyProfile, ApplicationSpec
from registry.domain.demand import ExpectedRates, decode_expected
from registry.domain.estimates import Measurements, ModelEstimates
from registry.domain.model import ModelName, ModelRecord, Tier, name_of_key
from registry.domain.pod import AVERAGE, AcceleratorKind, PodInfo, PodPhase, PodSpeed, Profile
from registry.domain.pod_index import FreePods, PodIndex, Residency, ResidencyIndex
from registry.domain.pod_state import NO_STEPS, PodState, QueuedSteps
from registry.domain.prices import ArrivalRates, EvictionPrices
from registry.domain.prompt_prefixes import PromptPrefixes
from registry.domain.records import (
    PlacementRecord,
    WantedPods,
    decode,
    decode_profile,
    decode_record,
    decode_wanted,
)
from registry.domain.tenant_rules import TenantRules, decode_rules

_NO_HOLDERS: Mapping[str, Residency] = {}


class ClusterState:
    """All pods, models, tiers and measurements of a pool."""

    def __init__(self) -> None:
        self.version = 0
        """Registry version up to which changes are applied."""
        self.models_version = self.profiles_version = -1
        """Grow with each change of `models`, `applications` or `accuracies`, and of `profiles`."""
        self.prefixes = PromptPrefixes()
        """Of the prompts that this process has sent."""
        self.arrivals = ArrivalRates()
        """Of the requests that this process received."""
        self.queue_depths: dict[str, int] = {}
        """Requests queued in this process by model key; models with a queue only."""
        self.has_queue = False
        """Whether requests are queued at any gateway, as published; pods do not know."""
        self.policy_memory: dict[str, dict[str, Any]] = {}
        """What routing policies of plug-ins keep: by model key, then by the policy's name."""
        self.clear()

    @property
    def has_server(self) -> bool:
        """Whether a pod has a model server, which reads formats without an engine here."""
        return any(pod.info.has_server for pod in self.pods.values())

    def clear(self) -> None:
        """Remove what the registry knows; the versions of models and profiles grow."""
        self.models_version += 1
        self.profiles_version += 1
        self.measurements = Measurements()
        self.pods = PodIndex(self.measurements)
        self.models: dict[ModelName, ModelRecord] = {}
        self.bases: dict[str, ModelName] = {}
        """By the key of an adapter."""
        self.applications: dict[ModelName, ApplicationSpec] = {}
        self.accuracies: dict[ModelName, AccuracyProfile] = {}
        """Of the generation that was profiled last, by model."""
        self.prefixes.clear()
        self.residency = ResidencyIndex(self.pods, self.prefixes)
        self.eviction_prices = EvictionPrices(
            self.pods, self.residency, self.arrivals, self.queue_depths
        )
        self.profiles: dict[ModelName, dict[str, Profile]] = {}
        """Profiles of the generation that was profiled last, by model and product; the product is
        empty for a profile that an older version of Pilotlight wrote."""
        self.wanted: WantedPods | None = None
        """The pods that the autoscaler wants; None before its first decision."""
        self.placement: PlacementRecord | None = None
        """Which models share which accelerators; None: nothing is placed."""
        self.rules: TenantRules | None = None
        """For the pool's tenants; None: there are none in the registry."""
        self.queued_steps: dict[str, QueuedSteps] = {}
        """By pod that has steps of workflows; those of all schedulers."""

    @property
    def expected_rates(self) -> ExpectedRates:
        """Arrivals that the autoscaler expects; read them with `at`, since they age."""
        return self.eviction_prices.expected_rates

    @expected_rates.setter
    def expected_rates(self, rates: ExpectedRates) -> None:
        self.eviction_prices.expected_rates = rates

    def forget(self, key: str) -> None:
        """Drop what was learned of a model, or a generation of it, that is gone for good."""
        self.measurements.drop(key)
        for pod in self.pods.values():
            pod.estimates.pop(key, None)
        self.arrivals.drop(key)
        self.policy_memory.pop(key, None)

    def declared_keys(self) -> set[str]:
        """Keys of all generations of the declared models."""
        return {spec.key for record in self.models.values() for spec in record.generations}

    def base_of(self, key: str) -> str:
        """The key of an adapter's base; empty: it has none that is declared."""
        name = self.bases.get(key)
        record = self.models.get(name) if name else None
        return record.serving.key if record else ""

    def holders(self, key: str) -> Mapping[str, Residency]:
        """The model's residency by name of pod, for every pod that has some of its files."""
        return self.residency.get(key, _NO_HOLDERS)

    def warm(self, key: str) -> Sequence[PodState]:
        """Accepting pods that hold the model on their device."""
        return self.residency.serving(key).warm

    def free_warm(self, key: str) -> FreePods:
        """Those of `warm` that have a free slot, in order."""
        return self.residency.serving(key).free

    def warming(self, key: str) -> Sequence[PodState]:
        """Accepting pods that load the model to their device."""
        return self.residency.serving(key).warming

    def prices_at(self, now_s: float) -> EvictionPrices:
        """Room and prices of evictions, with the rates of arrival of this second."""
        self.eviction_prices.refresh(now_s)
        return self.eviction_prices

    def measured(self, key: str) -> ModelEstimates:
        """The model's estimates over all kinds of accelerators; for a pod: `PodState.estimates`."""
        return self.measurements.over_kinds()[key]

    def profiles_of(self, key: str) -> list[Profile]:
        """Cost by batch size of this generation of a model, in the order of products."""
        stored = self.profiles.get(name_of_key(key), {})
        found = [each for each in stored.values() if each.key == key]
        return sorted(found, key=lambda profile: profile.product)


LATE_VERSIONS: Final = 16_384
"""No change arrives later than so many versions after its own: Redis makes fewer in the time after
which a reply is lost."""
_FEW_VERSIONS: Final = 4_096


class ChangeApplier:
    """Applies published changes to one `ClusterState` until its next snapshot. Pure.

    Changes may arrive twice (with the reply to our own call, and published) and in either order, so
    every entity keeps the version that last changed it.
    """

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.unreadable_total = 0
        """Changes skipped because they could not be read."""
        self.unreadable_cause = ""
        """Why the last of them could not be read."""
        self.snapshot_version = -1
        """Changes up to this version are in the state's snapshot."""
        self._versions: dict[tuple[str, ...], int] = {}
        """Version of the last change, by kind and entity; without those of long ago."""
        self._most_versions = _FEW_VERSIONS
        self._gone_versions: dict[str, int] = {}
        """Version of each pod's last removal."""
        self._now_s = inf
        self._early_counts: dict[str, tuple[int, int, int]] = {}
        """Version, slots and ongoing requests of pods whose registration has not arrived yet."""
        self._speeds: dict[str, PodSpeed] = {}
        """By pod, also of those whose registration has not arrived yet."""
        self._slots: dict[str, int] = {}
        """Changed since the registration, as `_speeds`."""

    def apply(self, version: int, changes: Iterable[Sequence[Any]], now_s: float = inf) -> None:
        """Apply the changes of one version; those applied before have no effect.

        `now_s`: when they were made; infinite: measurements among them never become too old.
        """
        if version <= self.snapshot_version:
            return
        self._now_s = now_s
        for kind, *values in changes:
            self._apply(version, kind, *values)
        self.state.version = max(self.state.version, version)
        if len(self._versions) > self._most_versions:  # forget what no late change can meet
            oldest = self.state.version - LATE_VERSIONS
            self._versions = {entity: at for entity, at in self._versions.items() if at > oldest}
            self._most_versions = max(_FEW_VERSIONS, 2 * len(self._versions))

    def _apply(self, version: int, kind: str, *values: Any) -> None:
        """Apply one change; one that only a newer version of this program can read is skipped."""
        try:
            if (apply := _APPLIERS.get(kind)) is not None:
                apply(self, version, *values)
            elif (setting := _SETTINGS.get(kind)) is not None and not self._is_old(version, kind):
                name, read = setting
                setattr(self.state, name, read(*values))
        except (ValueError, TypeError, LookupError) as error:
            self.unreadable_total += 1
            self.unreadable_cause = f"{kind}: {error}"

    def _is_old(self, version: int, *entity: str) -> bool:
        """Whether a newer change of the entity was applied; otherwise this one becomes the last."""
        if version < self._versions.get(entity, 0):
            return True
        self._versions[entity] = version
        return False

    def _apply_counts(self, version: int, name: str, slots_used: int, ongoing: int) -> None:
        pod = self.state.pods.get(name)
        if pod is None:
            if version > self._gone_versions.get(name, 0):
                self._early_counts[name] = (version, slots_used, ongoing)
        elif version >= pod.counts_version:
            pod.counts_version = version
            pod.set_counts(slots_used, ongoing)

    def _apply_at(self, version: int, key: str, name: str, text: str | bool) -> None:
        if version < self._gone_versions.get(name, 0) or self._is_old(version, "at", key, name):
            return
        if not isinstance(text, str):
            self.state.residency.drop(key, name)
            return
        tier, loading, since_ms, size = text.split("|")
        residency = Residency(
            tier=Tier(tier),
            loading_from=None if loading == "-" else Tier(loading),
            since_s=float(since_ms) / 1000,
            size_bytes=int(float(size)),
        )
        self.state.residency.put(key, name, residency)

    def _apply_pod(
        self,
        version: int,
        name: str,
        info: str,
        epoch: int,
        phase: str,
        used: str,
        loads: int,
        slots_used: int,
        ongoing: int,
    ) -> None:
        pod = self.state.pods.get(name)
        last_version = 0 if pod is None else pod.version
        if version < max(last_version, self._gone_versions.get(name, 0)):
            return
        if pod is None or pod.epoch != epoch:
            early = self._early_counts.pop(name, None)
            if pod is not None and pod.counts_version > version:
                early = (pod.counts_version, pod.slots_used, pod.ongoing)
            pod = PodState(decode(PodInfo, info))
            pod.epoch = epoch
            self.state.pods[name] = pod
            if early is not None:
                self._apply_counts(early[0], name, early[1], early[2])
            pod.set_speed(self._speeds.get(name, AVERAGE))
            pod.set_slots(self._slots.get(name, pod.slots))
        pod.version = version
        pod.set_phase(PodPhase(phase))
        pod.set_used_bytes(orjson.loads(used))
        pod.loads_total = loads
        pod.set_suspect(is_suspect=False)
        self._apply_counts(version, name, slots_used, ongoing)

    def _apply_steps(self, version: int, name: str, counts: Mapping[str, int]) -> None:
        if version < self._gone_versions.get(name, 0) or self._is_old(version, "steps", name):
            return
        before = self.state.queued_steps.pop(name, NO_STEPS)
        if counts:
            self.state.queued_steps[name] = before.followed_by(counts, self._now_s)

    def _apply_speed(self, version: int, name: str, text: str) -> None:
        if version < self._gone_versions.get(name, 0) or self._is_old(version, "speed", name):
            return
        self._speeds[name] = decode(PodSpeed, text)
        if (pod := self.state.pods.get(name)) is not None:
            pod.set_speed(self._speeds[name])

    def _apply_slots(self, version: int, name: str, slots: int) -> None:
        if version < self._gone_versions.get(name, 0) or self._is_old(version, "slots", name):
            return
        self._slots[name] = slots
        if (pod := self.state.pods.get(name)) is not None:
            pod.set_slots(slots)

    def _apply_gone(self, version: int, name: str) -> None:
        pod = self.state.pods.get(name)
        if pod is not None and version >= pod.version:
            del self.state.pods[name]
            if pod.counts_version > version:  # counts of its next registration arrived first
                self._early_counts[name] = (pod.counts_version, pod.slots_used, pod.ongoing)
        self._gone_versions[name] = max(version, self._gone_versions.get(name, 0))
        if not self._is_old(version, "steps", name):
            self.state.queued_steps.pop(name, None)
        if not self._is_old(version, "speed", name):
            self._speeds.pop(name, None)
        if not self._is_old(version, "slots", name):
            self._slots.pop(name, None)
            if (pod := self.state.pods.get(name)) is not None:  # registered again
                pod.set_slots(pod.info.slots)
        residency = self.state.residency
        for key in [key for key, holders in residency.items() if name in holders]:
            if not self._is_old(version, "at", key, name):
                residency.drop(key, name)

    def _apply_model(
        self, version: int, text: str, spec: str | bool, previous: str | bool, failure: str | bool
    ) -> None:
        if self._is_old(version, "model", text):
            return
        name = ModelName.parse(text)
        self.state.models_version += 1
        before, record = self.state.models.pop(name, None), None
        if isinstance(spec, str):
            record = self.state.models[name] = decode_record(spec, previous, failure)
        kept = () if record is None else record.generations
        for each in kept:
            if each.base:
                self.state.bases[each.key] = ModelName(name.namespace, each.base)
                self.state.eviction_prices.base_of = self.state.base_of
        for withdrawn in () if before is None else before.generations:
            if withdrawn.key not in {each.key for each in kept}:
                self.state.residency.device_bytes.pop(withdrawn.key, None)
                self.state.bases.pop(withdrawn.key, None)

    def _apply_samples(
        self, version: int, key: str, measure: str, values_s: Sequence[float]
    ) -> None:
        """Samples only add up: they carry no version, and the watch applies each change once."""
        name, _, kind = measure.partition("|")  # an older version wrote the measure alone
        self.state.measurements.at(AcceleratorKind.parse(kind)).add(
            key, name, values_s, self._now_s
        )

    def _apply_profile(self, version: int, text: str, profile: str | bool) -> None:
        if self._is_old(version, "profile", text):
            return
        name_text, _, product = text.partition("|")  # an older version wrote the name alone
        name = ModelName.parse(name_text)
        self.state.profiles_version += 1
        decoded = decode_profile(profile) if isinstance(profile, str) else None
        stored = self.state.profiles.setdefault(name, {})
        if decoded is not None:
            stored[product] = decoded
        else:
            stored.pop(product, None)
        if not stored:
            del self.state.profiles[name]

    def _apply_named(
        self, version: int, text: str, stored: str | bool, *, kind: type, field: str
    ) -> None:
        """Of what belongs to a name, in a field of the state; False: it has none any more."""
        if self._is_old(version, field, text):
            return
        name, known = ModelName.parse(text), getattr(self.state, field)
        self.state.models_version += 1
        known.pop(name, None)
        if isinstance(stored, str):
            known[name] = decode(kind, stored)


_APPLIERS: Final[Mapping[str, Callable[..., None]]] = {
    "counts": ChangeApplier._apply_counts,
    "at": ChangeApplier._apply_at,
    "pod": ChangeApplier._apply_pod,
    "gone": ChangeApplier._apply_gone,
    "model": ChangeApplier._apply_model,
    "samples": ChangeApplier._apply_samples,
    "forget": lambda applier, _, key: applier.state.forget(key),
    "profile": ChangeApplier._apply_profile,
    "application": partial(ChangeApplier._apply_named, kind=ApplicationSpec, field="applications"),
    "accuracy": partial(ChangeApplier._apply_named, kind=AccuracyProfile, field="accuracies"),
    "steps": ChangeApplier._apply_steps,
    "speed": ChangeApplier._apply_speed,
    "slots": ChangeApplier._apply_slots,
}
_SETTINGS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "wanted": ("wanted", decode_wanted),
    "placement": ("placement", partial(decode, PlacementRecord)),
    "expected": ("expected_rates", decode_expected),
    "tenants": ("rules", decode_rules),
    "waiting": ("has_queue", bool),
}
"""What a pool has once: the field of the state, and what reads it."""


class Snapshot(NamedTuple):
    """A pool's whole state as it stands in Redis, in the order in which pods share it.

    What an older version leaves out is missing at the end.
    """

    pods: Sequence[Any] = ()
    """Of each: the parts of a change `pod`, and its copies' tiers as a flat list."""
    models: Sequence[Sequence[Any]] = ()
    """Name, and the parts of a change `model`."""
    samples: Sequence[Sequence[Any]] = ()
    """Key, and measures with their values as a flat list."""
    profiles: Sequence[Any] = ()
    """Names with their JSON as a flat list."""
    wanted: str | bytes | None = None
    expected: str | bytes | None = None
    applications: Sequence[tuple[str, str]] = ()
    accuracies: Sequence[tuple[str, str]] = ()
    placement: str | bytes | None = None
    steps: Sequence[Sequence[Any]] | None = None
    """Pod, and its queued steps."""
    speeds: Sequence[Sequence[Any]] | None = None
    """Pod, and its speed."""
    tenants: str | bytes | None = None


def load_snapshot(
    state: ClusterState, version: int, snapshot: Snapshot, now_s: float = inf
) -> ChangeApplier:
    """Replace a state by a full snapshot, as `registry.redis.script.read_snapshot` assembles it.

    Returns the applier of the changes after the snapshot. Measurements count as made at `now_s`.
    """
    state.clear()
    state.version = version
    applier = ChangeApplier(state)
    changes: list[tuple[Any, ...]] = []
    for *pod, residency in snapshot.pods or ():
        changes.append(("pod", *pod))
        changes += [("at", key, pod[0], text) for key, text in _pairs(residency)]
    changes += [("model", name, *parts) for name, parts in snapshot.models]
    for key, measures in snapshot.samples or ():
        for measure, values in _pairs(measures):
            changes.append(("samples", key, measure, orjson.loads(values)))
    changes += [("profile", name, text) for name, text in _pairs(snapshot.profiles)]
    changes += [("application", *pair) for pair in snapshot.applications]
    changes += [("accuracy", *pair) for pair in snapshot.accuracies]
    changes += [("steps", *pair) for pair in snapshot.steps or ()]
    changes += [("speed", *pair) for pair in snapshot.speeds or ()]
    for kind in ("wanted", "expected", "placement", "tenants"):
        if text := getattr(snapshot, kind):
            changes.append((kind, text))
    applier.apply(version, changes, now_s)
    applier.snapshot_version = version
    return applier


def _pairs(flat: Sequence[Any] | None) -> zip[tuple[Any, Any]]:
    """Keys with their values, from a Redis hash as a flat list."""
    items = list(flat or [])
    return zip(items[::2], items[1::2], strict=True)
