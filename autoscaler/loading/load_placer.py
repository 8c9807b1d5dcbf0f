"""Where one plan puts its loads: pods with room, spread over nodes, few loads per node at a time.

The book of one plan: made from a view, changed while the plan is made, and thrown away. Where no
pod has room, idle models of one pod make it, if less is lost with them than comes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from autoscaler.loading.idle_copies import idle_copies
from autoscaler.planning.actions import Demote
from registry.domain.model import Tier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autoscaler.loading.marginal_value import MarginalValue
    from autoscaler.planning.actions import Action
    from autoscaler.planning.pool_view import ModelView, PlannedPod, PoolView


@dataclass(frozen=True, slots=True)
class EvictionCandidate:
    """An idle copy that could make room."""

    model: ModelView
    harm: float
    """Seconds late per second without it."""


@dataclass(frozen=True, slots=True)
class LoadPlacement:
    """A pod for a load, and who leaves for it."""

    pod: str
    victims: tuple[EvictionCandidate, ...] = ()


class LoadPlacer:
    """Free memory and loads under way, as the plan goes on."""

    def __init__(
        self,
        view: PoolView,
        stakes: MarginalValue,
        *,
        loads_per_node: int,
        leaving: Sequence[Action] = (),
    ) -> None:
        """`stakes` is told of what the plan places; `leaving` is what it lets go anyway."""
        self._view = view
        self._stakes = stakes
        self._loads_per_node = loads_per_node
        self._pods = [pod for pod in view.pods.values() if pod.is_accepting]
        self._loads: Counter[str] = Counter()
        self._leaving = {(each.key, each.pod) for each in leaving if isinstance(each, Demote)}
        self._free = self._free_bytes()
        self._placed: defaultdict[str, set[str]] = defaultdict(set)
        self._idle: dict[str, list[ModelView]] | None = None
        self._victims: dict[str, list[EvictionCandidate]] = {}

    def _free_bytes(self) -> dict[str, float]:
        """By pod; reckoned from the models on it: pods tell what they use a heartbeat late."""
        free = {pod.name: pod.budget_bytes.get(Tier.DEVICE, inf) for pod in self._pods}
        for model in self._view.models:
            for name, each in model.holders.items():
                if name not in free:
                    continue
                if each.is_warming:
                    self._loads[self._view.pods[name].node] += 1
                    free[name] -= model.size_bytes
                elif each.is_warm and (model.key, name) not in self._leaving:
                    free[name] -= model.size_bytes
        return free

    def place(
        self, model: ModelView, tier: Tier, gain: float | None, *, is_urgent: bool
    ) -> LoadPlacement | None:
        """A pod for a load that saves `gain` seconds per second; None: there is none now.

        Without `gain` it is what the pod can do of the work that nobody does in time. Urgent loads
        do not mind other loads of the node.
        """
        copies = {pod for pod, each in model.holders.items() if each.is_warm or each.is_warming}
        copies |= self._placed[model.key]
        nodes = {self._view.pods[pod].node for pod in copies if pod in self._view.pods}
        open_to = [pod for pod in self._pods if self._is_open(pod, copies, is_urgent)]
        if tier is not Tier.DEVICE:
            best = min(open_to, key=lambda pod: self._rank(pod, model, nodes), default=None)
            place = None if best is None else LoadPlacement(best.name)
        else:
            place = self._on_device(model, open_to, nodes, gain)
        if place is not None:
            self._take(place, model, tier)
        return place

    def _is_open(self, pod: PlannedPod, copies: set[str], is_urgent: bool) -> bool:
        if pod.name in copies:
            return False
        return is_urgent or self._loads[pod.node] < self._loads_per_node

    def _rank(
        self, pod: PlannedPod, model: ModelView, nodes: set[str]
    ) -> tuple[bool, float, float, int, float, str]:
        name, held = pod.name, model.holders.get(pod.name)
        load_s = model.load_from_s(held.tier if held is not None else Tier.REMOTE)
        busy = -self._stakes.spare(name)
        return pod.node in nodes, load_s, busy, self._loads[pod.node], -self._free[name], name

    def _on_device(
        self, model: ModelView, open_to: list[PlannedPod], nodes: set[str], gain: float | None
    ) -> LoadPlacement | None:
        free = [pod for pod in open_to if self._free[pod.name] >= model.size_bytes]
        if free:
            return LoadPlacement(min(free, key=lambda pod: self._rank(pod, model, nodes)).name)
        best: tuple[float, str, tuple[EvictionCandidate, ...]] | None = None
        for pod in open_to if gain != 0.0 else ():
            victims = self._fewest(pod.name, model.size_bytes)
            if victims is None:
                continue
            relief = self._stakes.relief(model, pod.name)
            harm = sum(each.harm for each in victims)
            if harm < (relief if gain is None else gain):
                best = min(best or (inf, "", ()), (harm - relief, pod.name, victims))
        return None if best is None else LoadPlacement(best[1], best[2])

    def _fewest(self, pod: str, size_bytes: int) -> tuple[EvictionCandidate, ...] | None:
        """The copies of a pod least missed that make room, or None: all are not enough."""
        missing = size_bytes - self._free[pod]
        chosen = []
        for victim in self._victims_of(pod):
            chosen.append(victim)
            missing -= victim.model.size_bytes
            if missing <= 0:
                return tuple(chosen)
        return None

    def _victims_of(self, pod: str) -> list[EvictionCandidate]:
        if self._idle is None:
            self._idle = self._idle_models()
        found = self._victims.get(pod)
        if found is None:
            found = [
                EvictionCandidate(each, self._stakes.harm(each, pod)) for each in self._idle[pod]
            ]
            found.sort(key=lambda each: (each.harm / max(1, each.model.size_bytes), each.model.key))
            self._victims[pod] = found
        return found

    def _idle_models(self) -> dict[str, list[ModelView]]:
        """By pod: those on its device that nobody uses, and that do not leave anyway."""
        found: dict[str, list[ModelView]] = {pod.name: [] for pod in self._pods}
        for model in self._view.models:
            for copy in idle_copies(model, self._view) if model.holders else ():
                if copy.pod in found and (model.key, copy.pod) not in self._leaving:
                    found[copy.pod].append(model)
        return found

    def _take(self, place: LoadPlacement, model: ModelView, tier: Tier) -> None:
        self._loads[self._view.pods[place.pod].node] += 1
        self._placed[model.key].add(place.pod)
        if tier is not Tier.DEVICE:
            return
        self._free[place.pod] -= model.size_bytes
        for each in place.victims:
            self._free[place.pod] += each.model.size_bytes
            self._stakes.left(each.model, place.pod)
            if self._idle is not None:
                self._idle[place.pod] = []  # what is left of them is for the next plan
            for pod in each.model.holders:
                self._victims.pop(pod, None)  # who has fewer copies misses the next one more
        self._stakes.came(model, place.pod)
