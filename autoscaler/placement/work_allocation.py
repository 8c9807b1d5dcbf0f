"""How much of each model's work its machines do within a horizon, while a plan is made.

Source: Gujarati et al. 2020, "Serving DNNs like Clockwork", as given by Blinowski et al. 2024,
section 4.2.4. A model's demand in seconds of work is spread evenly over the machines that hold it;
a machine's load is the sum of these shares; work beyond the horizon is not served.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autoscaler.planning.pool_view import ModelView, PoolView


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
            return demand_s
        share_s = demand_s / len(pods)
        served_s = sum(
            share_s * min(1.0, self._horizon_s / self._load_s[pod]) for pod in sorted(pods)
        )
        return demand_s - served_s

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
