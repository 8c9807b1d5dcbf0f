"""The value of a copy for all models together, in seconds of delay saved per second.

A copy does work that no other copy does in time (`work_allocation`: queued and expected requests)
and saves cold starts (`registry.domain.prices`, as in the gateway's price). A second of late work
counts as much as a second of cold start, so that the queue of one model can be compared with the
only copy of another.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Final

from autoscaler.planning.demand_forecast import MINUTE_S, mean_per_s
from autoscaler.planning.pool_view import ModelView, PoolView

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
    """Gain and loss by adding and removing copies, while a plan is made."""

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
        """Adds a copy that is being loaded."""
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
