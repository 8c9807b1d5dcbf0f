"""Places the loads of one plan, and the value of copies: few loads per node, spread over nodes.

If no pod has free memory, the idle models of one pod are evicted, if their loss is smaller than the
gain. A placer is made from a view, changes while the plan is made, and is used for one plan.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from autoscaler.forecasting.forecasts import MINUTE_S, mean_per_s
from autoscaler.policy import Action, Demote, ModelView, PoolView, free_device_bytes, idle_copies
from registry.domain.model import Tier
from registry.domain.pod_state import PodState

_DIGITS: Final = 9
"""Of unserved seconds: by the last digits of sums, work that is all served would not be 0, and a
copy would be evicted for a model that needs one as much."""
HORIZON_S: Final = 2.0
"""Work that is not done within it is late; a usual deadline."""


class WorkAllocation:
    """Demand of models and load of machines. Running loads count as copies."""

    def __init__(self, view: PoolView, demand_s: Mapping[str, float], horizon_s: float) -> None:
        """`demand_s`: by key of every model."""
        self._horizon_s = horizon_s
        self._pods = view.pods
        self._demand_s = demand_s
        self._pods_of = {
            each.key: {
                pod
                for pod, held in each.holders.items()
                if (held.is_warm or held.is_warming) and pod in view.pods
            }
            for each in view.models
        }
        self._load_s: defaultdict[str, float] = defaultdict(float)
        for key in self._pods_of:
            self._spread(key, 1)

    def _spread(self, key: str, sign: int) -> None:
        if self._demand_s[key]:
            for pod in self._pods_of[key]:
                self._load_s[pod] += sign * self._demand_s[key] / len(self._pods_of[key])

    def can_add(self, model: ModelView) -> bool:
        """True if one more copy is within the model's and the pool's bounds."""
        max_copies = model.spec.policy.max_copies
        count = len(self._pods_of[model.key])
        return count < len(self._pods) and (max_copies is None or count < max_copies)

    def spare_s(self, pod: str) -> float:
        """The part of the horizon in which a machine has no work."""
        return max(0.0, self._horizon_s - self._load_s.get(pod, 0.0))

    def unserved_s(self, model: ModelView) -> float:
        """Seconds of the model's work that its machines do not serve within the horizon."""
        demand_s, pods = self._demand_s[model.key], self._pods_of[model.key]
        if not demand_s or not pods:
            return round(demand_s, _DIGITS)
        share_s = demand_s / len(pods)
        served_s = sum(
            share_s * min(1.0, self._horizon_s / self._load_s[pod]) for pod in sorted(pods)
        )
        return round(demand_s - served_s, _DIGITS)

    def unserved_without_s(self, model: ModelView, pod: str) -> float:
        """`unserved_s` without the model's copy on the pod."""
        if not self._demand_s[model.key]:
            return 0.0
        self.remove(model, pod)
        found = self.unserved_s(model)
        self.add(model, pod)
        return found

    def add(self, model: ModelView, pod: str) -> None:
        self._spread(model.key, -1)
        self._pods_of[model.key].add(pod)
        self._spread(model.key, 1)

    def remove(self, model: ModelView, pod: str) -> None:
        self._spread(model.key, -1)
        self._pods_of[model.key].discard(pod)
        self._spread(model.key, 1)


class MarginalValue:
    """Gain and loss, in s of delay per s, by adding and removing copies while a plan is made.

    A copy does work that no other copy does in time (`WorkAllocation`) and saves cold starts
    (`registry.domain.prices`, as in the gateway's price). A second of late work counts as much as a
    second of cold start, so that one model's queue and another's only copy can be compared.
    """

    def __init__(
        self,
        view: PoolView,
        saved_per_s: Callable[[int, int], float] | None,
        horizon_s: float = HORIZON_S,
    ) -> None:
        """`saved_per_s`: by row, of cold starts by one of so many copies; None: not counted."""
        self._saved_per_s = saved_per_s
        self._horizon_s = horizon_s
        self._row = {model.key: row for row, model in enumerate(view.models)}
        self._copies = {
            model.key: sum(each.is_warm for each in model.holders.values()) for model in view.models
        }
        self._work = WorkAllocation(view, _demand_s(view, horizon_s), horizon_s)

    def spare(self, pod: str) -> float:
        """The share of the horizon in which a pod has no work."""
        return self._work.spare_s(pod) / self._horizon_s

    def unserved(self, model: ModelView) -> float:
        """Upper bound on the work that an additional copy can take."""
        return self._work.unserved_s(model) / self._horizon_s

    def gain(self, model: ModelView, pod: str) -> float:
        """The work that an additional copy on a pod takes, less its load time over a minute."""
        return min(self.unserved(model), self.spare(pod)) - _load_s(model) / MINUTE_S

    def loss(self, model: ModelView, pod: str) -> float:
        """Late work and cold starts without the copy on a pod."""
        late = self._work.unserved_without_s(model, pod) / self._horizon_s
        if self._saved_per_s is None:
            return late
        return late + self._saved_per_s(self._row[model.key], max(1, self._copies[model.key]))

    def remove_copy(self, model: ModelView, pod: str) -> None:
        self._copies[model.key] -= 1
        self._work.remove(model, pod)

    def add_copy(self, model: ModelView, pod: str) -> None:
        self._work.add(model, pod)


def _demand_s(view: PoolView, horizon_s: float) -> dict[str, float]:
    """By key: seconds of work of queued requests and of those expected within the horizon."""
    expected = [0.0] * len(view.models)
    if view.demand is not None:
        expected = (mean_per_s(view.demand) * horizon_s).tolist()
    return {
        model.key: (model.waiting.requests + more) * model.infer_s
        for model, more in zip(view.models, expected, strict=True)
    }


def _load_s(model: ModelView) -> float:
    """Load time from the nearest tier on which any pod has the model."""
    return min(
        (model.load_from_s(each.tier) for each in model.holders.values() if not each.is_warm),
        default=max(model.load_s.values(), default=0.0),
    )


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
        self._by_name = {each.spec.name: each for each in view.models}
        self._marginal_value = marginal_value
        self._loads_per_node = loads_per_node
        self._pods = view.accepting
        self._loads = Counter(
            view.pods[name].node
            for model in view.models
            for name, each in model.holders.items()
            if each.is_warming and name in view.pods
        )
        """Running and planned loads by node."""
        self._demoted = {(each.key, each.pod) for each in planned if isinstance(each, Demote)}
        self._free = self._free_bytes()
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
        pods = [
            pod for pod in self._pods if pod.name not in copies and self._loads[pod.node] < most
        ]
        if tier is not Tier.DEVICE:
            best = min(pods, key=lambda pod: self._rank(pod, model, nodes), default=None)
            placement = None if best is None else LoadPlacement(best.name)
        else:
            placement = self._on_device(model, pods, nodes, gain)
        if placement is not None:
            self._apply(placement, model, tier)
        return placement

    def _rank(
        self, pod: PodState, model: ModelView, nodes: set[str]
    ) -> tuple[bool, float, float, int, float, str]:
        name, held = pod.name, model.holders.get(pod.name)
        load_s = model.load_from_s(held.tier if held is not None else Tier.REMOTE)
        if (base := self._base_to_load(model, name)) is not None:
            at_base = base.holders.get(name)
            load_s += base.load_from_s(at_base.tier if at_base is not None else Tier.REMOTE)
        busy = -self._marginal_value.spare(name)
        return pod.node in nodes, load_s, busy, self._loads[pod.node], -self._free[name], name

    def _base_to_load(self, model: ModelView, pod: str) -> ModelView | None:
        """The base that the load of an adapter on a pod loads first."""
        if not model.spec.base:
            return None
        base = self._by_name.get(model.spec.name._replace(name=model.spec.base))
        if base is None or pod in self._placed[base.key]:
            return None
        held = base.holders.get(pod)
        return None if held is not None and (held.is_warm or held.is_warming) else base

    def _needed_bytes(self, model: ModelView, pod: str) -> float:
        base = self._base_to_load(model, pod)
        return model.size_bytes + (base.size_bytes if base is not None else 0)

    def _on_device(
        self, model: ModelView, pods: list[PodState], nodes: set[str], gain: float | None
    ) -> LoadPlacement | None:
        free = [pod for pod in pods if self._free[pod.name] >= self._needed_bytes(model, pod.name)]
        if free:
            return LoadPlacement(min(free, key=lambda pod: self._rank(pod, model, nodes)).name)
        best: tuple[float, str, tuple[EvictionCandidate, ...]] | None = None
        for pod in pods if gain != 0.0 else ():
            evictions = self._evictions(pod.name, self._needed_bytes(model, pod.name))
            if evictions is None:
                continue
            pod_gain = self._marginal_value.gain(model, pod.name)
            loss = sum(each.loss for each in evictions)
            if loss < (pod_gain if gain is None else gain):
                best = min(best or (inf, "", ()), (loss - pod_gain, pod.name, evictions))
        return None if best is None else LoadPlacement(best[1], best[2])

    def _evictions(self, pod: str, size_bytes: float) -> tuple[EvictionCandidate, ...] | None:
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
        needed_bytes = self._needed_bytes(model, placement.pod)
        self._placed[model.key].add(placement.pod)
        if tier is not Tier.DEVICE:
            return
        self._free[placement.pod] -= needed_bytes
        for each in placement.evictions:
            self._free[placement.pod] += each.model.size_bytes
            self._marginal_value.remove_copy(each.model, placement.pod)
            if self._idle is not None:
                self._idle[placement.pod] = []  # its other copies are left to the next plan
            for pod in each.model.holders:
                self._candidates.pop(pod, None)  # with fewer copies the loss of the next is larger
        self._marginal_value.add_copy(model, placement.pod)
