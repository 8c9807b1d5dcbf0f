"""Places the loads of one plan: on pods with free memory, spread over nodes, few loads per node.

If no pod has free memory, the idle models of one pod are evicted, if their loss is smaller than the
gain. A placer is made from a view, changes while the plan is made, and is used for one plan.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from autoscaler.placement.idle import free_device_bytes, idle_copies
from autoscaler.placement.marginal_value import MarginalValue
from autoscaler.planning.policy import Action, Demote
from autoscaler.planning.pool_view import ModelView, PlannedPod, PoolView
from registry.domain.model import Tier


@dataclass(frozen=True, slots=True)
class EvictionCandidate:
    """An idle copy that may be evicted for a load."""

    model: ModelView
    loss: float
    """Seconds late per second without it."""


@dataclass(frozen=True, slots=True)
class LoadPlacement:
    """A pod for a load, and the copies to evict for it."""

    pod: str
    evictions: tuple[EvictionCandidate, ...] = ()


class LoadPlacer:
    """Free memory and running loads, including those of the plan."""

    def __init__(
        self,
        view: PoolView,
        marginal_value: MarginalValue,
        *,
        loads_per_node: int,
        planned: Sequence[Action] = (),
    ) -> None:
        """Updates `marginal_value` with each placement; `planned`: actions of the same plan."""
        self._view = view
        self._marginal_value = marginal_value
        self._loads_per_node = loads_per_node
        self._pods = [pod for pod in view.pods.values() if pod.is_accepting]
        self._loads: Counter[str] = Counter()
        """Running and planned loads by node."""
        self._demoted = {(each.key, each.pod) for each in planned if isinstance(each, Demote)}
        self._free = self._free_bytes()
        self._count_running_loads()
        self._placed: defaultdict[str, set[str]] = defaultdict(set)
        """Pods of the placed loads, by model key."""
        self._idle: dict[str, list[ModelView]] | None = None
        self._candidates: dict[str, list[EvictionCandidate]] = {}

    def _free_bytes(self) -> dict[str, float]:
        """By pod, with what the plan demotes."""
        free = free_device_bytes(self._view)
        for model in self._view.models:
            for name, each in model.holders.items():
                if each.is_warm and name in free and (model.key, name) in self._demoted:
                    free[name] += model.size_bytes
        return free

    def _count_running_loads(self) -> None:
        for model in self._view.models:
            for name, each in model.holders.items():
                if each.is_warming and name in self._view.pods:
                    self._loads[self._view.pods[name].node] += 1

    def place(
        self, model: ModelView, tier: Tier, gain: float | None, *, is_urgent: bool
    ) -> LoadPlacement | None:
        """A pod for a load that saves `gain` seconds per second; None: no pod now.

        If `gain` is None, the gain is the unserved work that the pod can do. `loads_per_node` does
        not bound urgent loads; a load below the device needs a node without others.
        """
        copies = {pod for pod, each in model.holders.items() if each.is_warm or each.is_warming}
        copies |= self._placed[model.key]
        nodes = {self._view.pods[pod].node for pod in copies if pod in self._view.pods}
        most = inf if is_urgent else self._loads_per_node if tier is Tier.DEVICE else 1
        pods = [pod for pod in self._pods if self._is_open(pod, copies, most)]
        if tier is not Tier.DEVICE:
            best = min(pods, key=lambda pod: self._rank(pod, model, nodes), default=None)
            placement = None if best is None else LoadPlacement(best.name)
        else:
            placement = self._on_device(model, pods, nodes, gain)
        if placement is not None:
            self._apply(placement, model, tier)
        return placement

    def _is_open(self, pod: PlannedPod, copies: set[str], max_loads: float) -> bool:
        return pod.name not in copies and self._loads[pod.node] < max_loads

    def _rank(
        self, pod: PlannedPod, model: ModelView, nodes: set[str]
    ) -> tuple[bool, float, float, int, float, str]:
        name, held = pod.name, model.holders.get(pod.name)
        load_s = model.load_from_s(held.tier if held is not None else Tier.REMOTE)
        busy = -self._marginal_value.spare(name)
        return pod.node in nodes, load_s, busy, self._loads[pod.node], -self._free[name], name

    def _on_device(
        self, model: ModelView, pods: list[PlannedPod], nodes: set[str], gain: float | None
    ) -> LoadPlacement | None:
        free = [pod for pod in pods if self._free[pod.name] >= model.size_bytes]
        if free:
            return LoadPlacement(min(free, key=lambda pod: self._rank(pod, model, nodes)).name)
        best: tuple[float, str, tuple[EvictionCandidate, ...]] | None = None
        for pod in pods if gain != 0.0 else ():
            evictions = self._evictions(pod.name, model.size_bytes)
            if evictions is None:
                continue
            pod_gain = self._marginal_value.gain(model, pod.name)
            loss = sum(each.loss for each in evictions)
            if loss < (pod_gain if gain is None else gain):
                best = min(best or (inf, "", ()), (loss - pod_gain, pod.name, evictions))
        return None if best is None else LoadPlacement(best[1], best[2])

    def _evictions(self, pod: str, size_bytes: int) -> tuple[EvictionCandidate, ...] | None:
        """The pod's copies of smallest loss that free enough memory; None: all do not suffice."""
        missing = size_bytes - self._free[pod]
        chosen = []
        for candidate in self._candidates_of(pod):
            chosen.append(candidate)
            missing -= candidate.model.size_bytes
            if missing <= 0:
                return tuple(chosen)
        return None

    def _candidates_of(self, pod: str) -> list[EvictionCandidate]:
        if self._idle is None:
            self._idle = self._idle_models()
        found = self._candidates.get(pod)
        if found is None:
            found = [
                EvictionCandidate(each, self._marginal_value.loss(each, pod))
                for each in self._idle[pod]
            ]
            found.sort(key=lambda each: (each.loss / max(1, each.model.size_bytes), each.model.key))
            self._candidates[pod] = found
        return found

    def _idle_models(self) -> dict[str, list[ModelView]]:
        """By pod: evictable models that the plan does not demote already."""
        found: dict[str, list[ModelView]] = {pod.name: [] for pod in self._pods}
        for model in self._view.models:
            for copy in idle_copies(model, self._view) if model.holders else ():
                if copy.pod in found and (model.key, copy.pod) not in self._demoted:
                    found[copy.pod].append(model)
        return found

    def _apply(self, placement: LoadPlacement, model: ModelView, tier: Tier) -> None:
        self._loads[self._view.pods[placement.pod].node] += 1
        self._placed[model.key].add(placement.pod)
        if tier is not Tier.DEVICE:
            return
        self._free[placement.pod] -= model.size_bytes
        for each in placement.evictions:
            self._free[placement.pod] += each.model.size_bytes
            self._marginal_value.remove_copy(each.model, placement.pod)
            if self._idle is not None:
                self._idle[placement.pod] = []  # its other copies are left to the next plan
            for pod in each.model.holders:
                self._candidates.pop(pod, None)  # with fewer copies the loss of the next is larger
        self._marginal_value.add_copy(model, placement.pod)
