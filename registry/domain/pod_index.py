"""Pods with a free slot by load and by free memory, and models by pod, updated incrementally.

Policies ask a pool of a thousand pods, per request, for the least loaded pod and for the one where
a cold start is cheapest.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
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


def work_rank(pod: PodState) -> Rank:
    """Fewest inferences first, then fewest slots taken."""
    return pod.inferring, pod.slots_busy


_FEW: Final = 4
"""Pods up to which sorting them is faster than to move those that have changed."""
_Ranked = tuple[Rank, str, PodState]
_rank: Final = itemgetter(0)


class RankedPods:
    """Those of some pods with a free slot, by a rank and then by name.

    Updated as they change rather than sorted per request.
    """

    __slots__ = ("_changes", "_count", "_entries", "_is_one", "_pods", "_rank_of", "_ranked")

    def __init__(
        self,
        pods: Collection[PodState],
        changes: ChangeLog,
        rank_of: Callable[[PodState], Rank],
        is_one: Callable[[PodState], bool],
    ) -> None:
        """`is_one`: whether a pod that has changed is one of `pods`, and may be ranked."""
        self._pods = pods
        self._changes = changes
        self._rank_of = rank_of
        self._is_one = is_one
        self._count = -1
        """Changes that the order follows."""
        self._ranked: list[_Ranked] = []
        self._entries: dict[PodState, _Ranked] = {}
        """Of `_ranked`, unless they are few."""

    def pick(self, draw: float, excluded: Collection[str] = ()) -> PodState | None:
        """A pod of the lowest rank; among equals, `draw` in [0, 1) picks in the order of names.

        None where no pod has a free slot and a name outside `excluded`.
        """
        self._update()
        ranked, begin = self._ranked, 0
        while begin < len(ranked):
            rank = ranked[begin][0]
            end = bisect_right(ranked, rank, begin, key=_rank)
            places = [(bisect_left(ranked, (rank, name), begin, end), name) for name in excluded]
            left_out = sorted(at for at, name in places if at < end and ranked[at][1] == name)
            if count := end - begin - len(left_out):
                chosen = begin + int(draw * count)
                for at in left_out:
                    chosen += at <= chosen
                return ranked[chosen][2]
            begin = end
        return None

    def _update(self) -> None:
        count, pods, entries = self._changes.count, self._pods, self._entries
        if count == self._count:
            return
        changed = None
        if len(pods) > _FEW and self._count >= 0 and len(entries) == len(self._ranked):
            changed = self._changes.since(self._count, len(pods) + len(entries))
        self._count = count
        if changed is None:
            ranked = [self._entry(pod) for pod in pods if pod.has_free_slot and self._is_one(pod)]
            ranked.sort()
            self._ranked = ranked
            self._entries = {entry[2]: entry for entry in ranked} if len(pods) > _FEW else {}
            return
        for pod in changed:
            if (before := entries.pop(pod, None)) is not None:
                del self._ranked[bisect_left(self._ranked, before)]
        for pod in changed:
            if pod.has_free_slot and self._is_one(pod):
                entry = entries[pod] = self._entry(pod)
                insort(self._ranked, entry)

    def _entry(self, pod: PodState) -> _Ranked:
        return self._rank_of(pod), pod.name, pod


class FreePods(RankedPods):
    """Those with a free slot: fewest inferences first, then fewest slots taken, then by name."""

    __slots__ = ("_only",)

    def __init__(self, pods: Sequence[PodState], changes: ChangeLog) -> None:
        among = frozenset(pods)
        super().__init__(among, changes, work_rank, among.__contains__)
        self._only = pods[0] if len(pods) == 1 else None

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
        return [entry[2] for entry in self._ranked[:count]]


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
        self.by_load, self.by_free_memory = (
            RankedPods(self.values(), self.changes, rank_of, self._takes_any)
            for rank_of in (load_rank, free_memory_rank)
        )
        """Those that can be any model's entry pod."""

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

    def _takes_any(self, pod: PodState) -> bool:
        return self.get(pod.name) is pod and not pod.placed_model


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
