"""Which work is served in time, and by whom, as a plan goes on.

Source: Gujarati et al. 2020, "Serving DNNs like Clockwork", as given by Blinowski et al. 2024,
section 4.2.4. A model's demand in seconds of work is spread evenly over the machines that hold it;
a machine's load is the sum of what is spread to it; what is beyond the horizon is not served.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autoscaler.planning.pool_view import ModelView, PoolView


class WorkAllocation:
    """Demand and load. Loads under way count as done."""

    def __init__(self, view: PoolView, demand_s: Mapping[str, float], horizon_s: float) -> None:
        """`demand_s` by the key of each model; a machine can do `horizon_s` of it in time."""
        self._horizon_s = horizon_s
        self._pods = view.pods
        self._demand_s = demand_s
        self._at = {
            each.key: {
                pod
                for pod, held in each.holders.items()
                if (held.is_warm or held.is_warming) and pod in view.pods
            }
            for each in view.models
        }
        self._load_s: defaultdict[str, float] = defaultdict(float)
        for key in self._at:
            self._spread(key, 1)

    def _spread(self, key: str, sign: int) -> None:
        if self._demand_s[key]:
            for pod in self._at[key]:
                self._load_s[pod] += sign * self._demand_s[key] / len(self._at[key])

    def can(self, model: ModelView) -> bool:
        """Whether one more copy is possible at all."""
        most = model.spec.policy.max_copies
        count = len(self._at[model.key])
        return count < len(self._pods) and (most is None or count < most)

    def spare_s(self, pod: str) -> float:
        """Seconds of the horizon that a machine has nothing to do in."""
        return max(0.0, self._horizon_s - self._load_s.get(pod, 0.0))

    def unserved_s(self, model: ModelView) -> float:
        """Seconds of the model's work that its machines do not serve within the horizon."""
        key = model.key
        demand_s, at = self._demand_s[key], self._at[key]
        if not demand_s or not at:
            return demand_s
        share_s = demand_s / len(at)
        served_s = sum(
            share_s * min(1.0, self._horizon_s / self._load_s[pod]) for pod in sorted(at)
        )
        return demand_s - served_s

    def unserved_without_s(self, model: ModelView, pod: str) -> float:
        """The same if it left a machine."""
        if not self._demand_s[model.key]:
            return 0.0
        self.remove(model, pod)
        found = self.unserved_s(model)
        self.add(model, pod)
        return found

    def add(self, model: ModelView, pod: str) -> None:
        """It is on its way to a machine."""
        self._spread(model.key, -1)
        self._at[model.key].add(pod)
        self._spread(model.key, 1)

    def remove(self, model: ModelView, pod: str) -> None:
        """It leaves a machine."""
        self._spread(model.key, -1)
        self._at[model.key].discard(pod)
        self._spread(model.key, 1)
