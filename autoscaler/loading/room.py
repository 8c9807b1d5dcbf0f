"""Where one plan puts its loads: pods with room, spread over nodes, few loads per node at a time.

The book of one plan: made from a view, changed while the plan is made, and thrown away. Where no
pod has room, idle models of one pod make it, if what they are worth is less than what comes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autoscaler.loading.copies import idle_copies
from autoscaler.planning.actions import Demote
from autoscaler.planning.pod_use import IN_USE_S
from registry.model import Tier

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autoscaler.planning.actions import Action
    from autoscaler.planning.pool import ModelView, PodView, PoolView


@dataclass(frozen=True, slots=True)
class Victim:
    """An idle copy that could make room."""

    key: str
    size_bytes: int
    worth: float
    """What holding it saves, seconds per second; the model's copies share what it is worth."""
    is_needed: bool
    """Whether it is the last copy of a model in use: further copies of others leave it alone."""


@dataclass(frozen=True, slots=True)
class Place:
    """A pod for a load, and who leaves for it."""

    pod: str
    victims: tuple[Victim, ...] = ()


class Room:
    """Free memory and loads under way, as the plan goes on."""

    def __init__(
        self,
        view: PoolView,
        *,
        loads_per_node: int,
        worth: Callable[[int], float],
        leaving: Sequence[Action] = (),
    ) -> None:
        """`worth` of a model by its row: what holding it on a device saves, seconds per second.

        `leaving` is what the plan lets go anyway.
        """
        self._view = view
        self._worth = worth
        self._loads_per_node = loads_per_node
        self._pods = [pod for pod in view.pods.values() if pod.is_accepting]
        self._free = {pod.name: pod.free_bytes() for pod in self._pods}
        self._loads: Counter[str] = Counter()
        self._leaving = {(each.key, each.pod) for each in leaving if isinstance(each, Demote)}
        for model in view.models:
            for name, each in model.holders.items():
                if each.is_warming and name in self._free:
                    self._loads[view.pods[name].node] += 1
                    self._free[name] -= model.size_bytes
                elif each.is_warm and name in self._free and (model.key, name) in self._leaving:
                    self._free[name] += model.size_bytes
        self._placed: defaultdict[str, set[str]] = defaultdict(set)
        self._victims: dict[str, list[Victim]] | None = None

    def place(self, model: ModelView, tier: Tier, gain: float, *, is_urgent: bool) -> Place | None:
        """A pod for a load worth `gain` seconds per second; None: there is none now.

        Urgent loads do not mind other loads of the node. A further copy never takes the place of
        the last one of a model in use: what that costs comes back at once, and again.
        """
        copies = {pod for pod, each in model.holders.items() if each.is_warm or each.is_warming}
        copies |= self._placed[model.key]
        nodes = {self._view.pods[pod].node for pod in copies if pod in self._view.pods}
        open_to = [pod for pod in self._pods if self._is_open(pod, copies, is_urgent)]
        if tier is not Tier.DEVICE:
            best = min(open_to, key=lambda pod: self._rank(pod, model, nodes), default=None)
            place = None if best is None else Place(best.name)
        else:
            place = self._on_device(model, open_to, nodes, gain, is_further=bool(copies))
        if place is not None:
            self._take(place, model, tier)
        return place

    def _is_open(self, pod: PodView, copies: set[str], is_urgent: bool) -> bool:
        if pod.name in copies:
            return False
        return is_urgent or self._loads[pod.node] < self._loads_per_node

    def _rank(
        self, pod: PodView, model: ModelView, nodes: set[str]
    ) -> tuple[bool, float, int, float, str]:
        held = model.holders.get(pod.name)
        load_s = model.load_from_s(held.tier if held is not None else Tier.REMOTE)
        return pod.node in nodes, load_s, self._loads[pod.node], -self._free[pod.name], pod.name

    def _on_device(
        self,
        model: ModelView,
        open_to: list[PodView],
        nodes: set[str],
        gain: float,
        *,
        is_further: bool,
    ) -> Place | None:
        free = [pod for pod in open_to if self._free[pod.name] >= model.size_bytes]
        if free:
            return Place(min(free, key=lambda pod: self._rank(pod, model, nodes)).name)
        chosen: tuple[float, str, tuple[Victim, ...]] | None = None
        for pod in open_to:
            victims = self._fewest(pod.name, model.size_bytes, spares_needed=is_further)
            if victims is not None:
                harm = sum(each.worth for each in victims)
                if harm < gain and (chosen is None or (harm, pod.name) < chosen[:2]):
                    chosen = harm, pod.name, victims
        return None if chosen is None else Place(chosen[1], chosen[2])

    def _fewest(
        self, pod: str, size_bytes: int, *, spares_needed: bool
    ) -> tuple[Victim, ...] | None:
        """The copies of a pod least worth holding that make room, or None: all are not enough."""
        if self._victims is None:
            self._victims = self._all_victims()
        missing = size_bytes - self._free[pod]
        chosen = []
        for victim in self._victims.get(pod, ()):
            if spares_needed and victim.is_needed:
                continue
            chosen.append(victim)
            missing -= victim.size_bytes
            if missing <= 0:
                return tuple(chosen)
        return None

    def _all_victims(self) -> dict[str, list[Victim]]:
        found: dict[str, list[Victim]] = {pod.name: [] for pod in self._pods}
        for row, model in enumerate(self._view.models):
            copies = sum(each.is_warm for each in model.holders.values())
            is_needed = copies == 1 and self._view.time_s - model.last_arrival_s < IN_USE_S
            for copy in idle_copies(model, self._view):
                if copy.pod in found and (model.key, copy.pod) not in self._leaving:
                    worth = self._worth(row) / copies
                    victim = Victim(model.key, model.size_bytes, worth, is_needed)
                    found[copy.pod].append(victim)
        for victims in found.values():
            victims.sort(key=lambda each: (each.worth / max(1, each.size_bytes), each.key))
        return found

    def _take(self, place: Place, model: ModelView, tier: Tier) -> None:
        self._loads[self._view.pods[place.pod].node] += 1
        self._placed[model.key].add(place.pod)
        if tier is Tier.DEVICE:
            freed = sum(each.size_bytes for each in place.victims)
            self._free[place.pod] += freed - model.size_bytes
        if place.victims and self._victims is not None:
            self._victims.pop(place.pod)  # what is left of them is for the next plan
