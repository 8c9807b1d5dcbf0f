"""Pods with a free slot by load and by free memory, and models by pod, updated incrementally.

Policies ask a pool of a thousand pods, per request, for the least loaded pod and for the one where
a cold start is cheapest. Pods are kept in groups of equal rank, each group in the order of names.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from registry.domain.estimates import KindEstimates, Measurements
from registry.domain.model import Tier, name_of_key
from registry.domain.pod import AcceleratorKind
from registry.domain.pod_state import ChangeCounter, ChangeLog, PodState, divide_free_bytes
from registry.domain.prompt_prefixes import PromptPrefixes

Rank = tuple[float, ...]
_IDLE: Final[Rank] = (float("-inf"), 0)


def load_rank(pod: Any) -> Rank:
    """Idle pods first, then by share of slots taken, then by requests in inference."""
    busy, inferring = pod.slots_busy, pod.inferring
    return (busy / pod.slots, inferring) if busy or inferring else _IDLE


def free_memory_rank(pod: Any) -> Rank:
    """Most free device memory first, where a load needs no eviction; then as `load_rank`."""
    return (-pod.free_bytes, *load_rank(pod))


class PodRanking:
    """The pods of one pool that can be any model's entry pod, by a rank; ties by name."""

    def __init__(
        self, pods: Mapping[str, PodState], changes: ChangeLog, rank_of: Callable[[PodState], Rank]
    ) -> None:
        self._changes = changes
        self._count = 0
        """Changes that the groups follow."""
        self._pods = pods
        self._rank_of = rank_of
        self._rank: dict[PodState, Rank] = {}
        self._groups: dict[Rank, list[str]] = {}
        self._ranks: list[Rank] = []
        """The keys of `_groups`, ascending."""

    def first(self, draw: float, excluded: Collection[str] = ()) -> PodState | None:
        """A pod of the lowest rank; among equals, `draw` in [0, 1) picks in the order of names.

        None where no pod has a free slot and a name outside `excluded`.
        """
        if self._count != self._changes.count:
            self._update_groups()
        for rank in self._ranks:
            names = self._groups[rank]
            if excluded:
                names = _without(names, excluded)
            if names:
                return self._pods[names[int(draw * len(names))]]
        return None

    def _update_groups(self) -> None:
        pods, ranks, rank_of = self._pods, self._rank, self._rank_of
        changed = self._changes.since(self._count, len(pods) + len(ranks))
        self._count = self._changes.count
        for pod in changed if changed is not None else {*ranks, *pods.values()}:
            is_ranked = pod.has_free_slot and pods.get(pod.name) is pod and not pod.placed_model
            rank = rank_of(pod) if is_ranked else None
            before = ranks.get(pod)
            if rank != before:
                if before is not None:
                    self._remove(pod, before)
                if rank is not None:
                    self._insert(pod, rank)

    def _insert(self, pod: PodState, rank: Rank) -> None:
        self._rank[pod] = rank
        names = self._groups.get(rank)
        if names is None:
            self._groups[rank] = [pod.name]
            insort(self._ranks, rank)
        else:
            insort(names, pod.name)

    def _remove(self, pod: PodState, rank: Rank) -> None:
        del self._rank[pod]
        names = self._groups[rank]
        del names[bisect_left(names, pod.name)]
        if not names:
            del self._groups[rank]
            del self._ranks[bisect_left(self._ranks, rank)]


class PodIndex(dict[str, "PodState"]):
    """Pods by name. Logs their changes and updates its rankings at the next query."""

    def __init__(self, measurements: Measurements) -> None:
        super().__init__()
        self._measurements = measurements
        self.changes = ChangeLog()
        self.accepting_changes = ChangeCounter()
        """Counts pods added, removed, and changes of who accepts requests, and of their speed."""
        self.kinds: list[AcceleratorKind] = []
        """The distinct kinds of the pods, sorted: decisions in a pool of one kind are simpler."""
        self._kind_counts: dict[AcceleratorKind, int] = {}
        self._fastest: dict[AcceleratorKind, KindEstimates] = {}
        self._fastest_count = -1
        """`accepting_changes.count` when `_fastest` was built."""
        self._by_uuid: dict[str, list[PodState]] = {}
        """Pods that share an accelerator."""
        self._by_load = PodRanking(self, self.changes, load_rank)
        self._by_free_memory = PodRanking(self, self.changes, free_memory_rank)

    def __setitem__(self, name: str, pod: PodState) -> None:
        if (before := self.get(name)) is not None:
            self._detach(before)
        super().__setitem__(name, pod)
        pod.estimates = self._measurements.at(pod.kind).slowed(pod.slowness)
        self._count_kind(pod.kind, 1)
        if uuid := pod.info.accelerator.uuid:
            pod.sharing = self._by_uuid.setdefault(uuid, [])
            pod.sharing.append(pod)
            divide_free_bytes(pod.sharing)
        pod.changes = self.changes
        pod.accepting_changes = self.accepting_changes
        self.accepting_changes.count += 1
        self.changes.add(pod)

    def __delitem__(self, name: str) -> None:
        self._detach(self[name])
        super().__delitem__(name)

    def fastest(self) -> Collection[KindEstimates]:
        """Of each kind the estimates of its fastest pod."""
        if self._fastest_count != self.accepting_changes.count:
            self._fastest_count = self.accepting_changes.count
            slowest_first = sorted(self.values(), key=lambda pod: -pod.slowness)
            self._fastest = {pod.kind: pod.estimates for pod in slowest_first}
        return self._fastest.values()

    def _count_kind(self, kind: AcceleratorKind, change: int) -> None:
        count = self._kind_counts.get(kind, 0) + change
        if count:
            self._kind_counts[kind] = count
        else:
            del self._kind_counts[kind]
        if len(self._kind_counts) != len(self.kinds):
            self.kinds = sorted(self._kind_counts)

    def _detach(self, pod: PodState) -> None:
        self._count_kind(pod.kind, -1)
        if sharing := pod.sharing:
            sharing.remove(pod)
            pod.sharing = []
            if sharing:
                divide_free_bytes(sharing)
            else:
                del self._by_uuid[pod.info.accelerator.uuid]
        self.changes.add(pod)
        pod.changes = ChangeLog()
        pod.accepting_changes = ChangeCounter()
        self.accepting_changes.count += 1

    def least_loaded(self, draw: float, excluded: Collection[str] = ()) -> PodState | None:
        """The least loaded pod with a free slot; see `PodRanking.first`."""
        return self._by_load.first(draw, excluded)

    def most_free_memory(self, draw: float, excluded: Collection[str] = ()) -> PodState | None:
        """The pod with a free slot and the most free memory, then the least loaded."""
        return self._by_free_memory.first(draw, excluded)


def _without(names: list[str], excluded: Collection[str]) -> list[str]:
    if 8 * len(excluded) > len(names):
        return [name for name in names if name not in excluded]
    left = names.copy()
    for name in excluded:
        at = bisect_left(left, name)
        if at < len(left) and left[at] == name:
            del left[at]
    return left


_FEW: Final = 4
"""Pods up to which sorting them is faster than to move those that have changed."""
_Ranked = tuple[int, int, str, "PodState"]


class FreePods:
    """Those with a free slot: fewest inferences first, then fewest slots taken, then by name.

    Updated as counts change rather than sorted per request.
    """

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
    are_alike: bool
    """Whether the pool is of one kind of accelerator, and these equally fast, as most or faster."""

    @property
    def have_free_slots(self) -> bool:
        """Whether none of them is full."""
        return self.free.are_all() and (
            not self.warming or all(pod.has_free_slot for pod in self.warming)
        )


_NOTHING: Final[Mapping[str, Residency]] = {}


class ResidencyIndex(dict[str, "dict[str, Residency]"]):
    """Residency by model key, then pod name. Write through `put` and `drop` only.

    Policies read its lists of pods per request: each is built on first use, and dropped when the
    model's residency changes or any pod starts or stops accepting requests.
    """

    def __init__(self, pods: PodIndex, prefixes: PromptPrefixes) -> None:
        super().__init__()
        self._pods = pods
        self._prefixes = prefixes
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
            self._prefixes.forget(key, pod)
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
        slowness = {pod.slowness for _, pod in accepting}
        found = ServingPods(
            tuple(warm),
            tuple(warming),
            FreePods(warm, self._pods.changes),
            len(warm) < len(self._pods) and not (warm and warm[0].placed_model),
            len(self._pods.kinds) <= 1 and len(slowness) <= 1 and max(slowness, default=1.0) <= 1.0,
        )
        if holders:
            self._serving[key] = found
        return found
