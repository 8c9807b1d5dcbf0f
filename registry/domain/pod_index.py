"""Pods with a free slot in order of their load and of their free memory, updated incrementally.

Policies ask a pool of a thousand pods, per request, for the least loaded pod and for the one where
a cold start is cheapest. Pods are kept in groups of equal rank, each group in the order of names.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from registry.domain.accelerator import AcceleratorKind
from registry.domain.estimates import Measurements
from registry.domain.pod_state import ChangeCounter, ChangeLog, PodState, divide_free_bytes

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
        """Counts pods added, removed, and started or stopped accepting requests."""
        self.kinds: list[AcceleratorKind] = []
        """The distinct kinds of the pods, sorted: decisions in a pool of one kind are simpler."""
        self._kind_counts: dict[AcceleratorKind, int] = {}
        self._by_uuid: dict[str, list[PodState]] = {}
        """Pods that share an accelerator."""
        self._by_load = PodRanking(self, self.changes, load_rank)
        self._by_free_memory = PodRanking(self, self.changes, free_memory_rank)

    def __setitem__(self, name: str, pod: PodState) -> None:
        if (before := self.get(name)) is not None:
            self._detach(before)
        super().__setitem__(name, pod)
        pod.estimates = self._measurements.at(pod.kind)
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
