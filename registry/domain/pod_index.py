"""Pods with a free slot in order of their load, kept as they change rather than sorted per request.

What policies ask of a pool of a thousand pods for every request: the least loaded of them, and
where a cold start is cheapest. Pods are kept in groups of equal rank, each in the order of names.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from registry.domain.cluster import PodState

Rank = tuple[float, ...]
_IDLE: Final[Rank] = (float("-inf"), 0)


def load_rank(pod: Any) -> Rank:
    """How loaded a pod is: idle, else by share of slots taken, then requests in inference."""
    busy, inferring = pod.slots_busy, pod.inferring
    return (busy / pod.slots, inferring) if busy or inferring else _IDLE


def room_rank(pod: Any) -> Rank:
    """Where a cold start is cheap: memory that needs no eviction first, then by load."""
    busy, inferring = pod.slots_busy, pod.inferring
    if busy or inferring:
        return (-pod.free_bytes, busy / pod.slots, inferring)
    return (-pod.free_bytes, *_IDLE)


class PodRanking:
    """The pods of one pool that can be an entry pod, by a rank; ties by name."""

    def __init__(self, pods: Mapping[str, PodState], rank_of: Callable[[PodState], Rank]) -> None:
        self.changed: set[PodState] = set()
        """Pods that may have another rank than they had, or came, or went."""
        self._pods = pods
        self._rank_of = rank_of
        self._rank: dict[PodState, Rank] = {}
        self._groups: dict[Rank, list[str]] = {}
        self._ranks: list[Rank] = []
        """Those of the groups, ascending."""

    def first(self, draw: float, but: Collection[str] = ()) -> PodState | None:
        """One of those with the lowest rank, by `draw` in the order of names; None: there is none.

        `but` are names that do not count.
        """
        if self.changed:
            self._settle()
        for rank in self._ranks:
            names = self._groups[rank]
            if but:
                names = _without(names, but)
            if names:
                return self._pods[names[int(draw * len(names))]]
        return None

    def _settle(self) -> None:
        pods, ranks, rank_of = self._pods, self._rank, self._rank_of
        for pod in self.changed:
            is_in = pod.has_free_slot and pods.get(pod.name) is pod
            rank = rank_of(pod) if is_in else None
            before = ranks.get(pod)
            if rank != before:
                if before is not None:
                    self._take_out(pod, before)
                if rank is not None:
                    self._put_in(pod, rank)
        self.changed.clear()

    def _put_in(self, pod: PodState, rank: Rank) -> None:
        self._rank[pod] = rank
        names = self._groups.get(rank)
        if names is None:
            self._groups[rank] = [pod.name]
            insort(self._ranks, rank)
        else:
            insort(names, pod.name)

    def _take_out(self, pod: PodState, rank: Rank) -> None:
        del self._rank[pod]
        names = self._groups[rank]
        del names[bisect_left(names, pod.name)]
        if not names:
            del self._groups[rank]
            del self._ranks[bisect_left(self._ranks, rank)]


class Changes:
    """How often something has changed: what was worked out at another count is out of date."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class PodIndex(dict[str, "PodState"]):
    """Pods by name, which remembers those that change until somebody asks who is first."""

    def __init__(self) -> None:
        super().__init__()
        self.changed: set[PodState] = set()
        self.accepting = Changes()
        """Of the pods that take requests: they come, go, begin or cease to."""
        self._by_load = PodRanking(self, load_rank)
        self._by_room = PodRanking(self, room_rank)

    def __setitem__(self, name: str, pod: PodState) -> None:
        if (before := self.get(name)) is not None:
            self._forget(before)
        super().__setitem__(name, pod)
        pod.changed = self.changed
        pod.pool = self
        self.accepting.count += 1
        self.changed.add(pod)

    def __delitem__(self, name: str) -> None:
        self._forget(self[name])
        super().__delitem__(name)

    def _forget(self, pod: PodState) -> None:
        self.changed.add(pod)
        pod.changed = set()
        pod.pool = None
        self.accepting.count += 1

    def least_loaded(self, draw: float, but: Collection[str] = ()) -> PodState | None:
        """The pod with a free slot that is least loaded."""
        self._pass_on()
        return self._by_load.first(draw, but)

    def roomiest(self, draw: float, but: Collection[str] = ()) -> PodState | None:
        """The pod with a free slot and the most free memory, then least loaded."""
        self._pass_on()
        return self._by_room.first(draw, but)

    def _pass_on(self) -> None:
        if self.changed:
            self._by_load.changed |= self.changed
            self._by_room.changed |= self.changed
            self.changed.clear()


def _without(names: list[str], but: Collection[str]) -> list[str]:
    if 8 * len(but) > len(names):
        return [name for name in names if name not in but]
    left = names.copy()
    for name in but:
        at = bisect_left(left, name)
        if at < len(left) and left[at] == name:
            del left[at]
    return left
