"""The value of a copy for all models together, in seconds of delay saved per second.

A copy does work that no other copy does in time (`work_allocation`: queued and expected requests)
and saves cold starts (`registry.cost.eviction`, as in the gateway's price). A second of late work
counts as much as a second of cold start, so that the queue of one model can be compared with the
only copy of another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autoscaler.placement.work_allocation import WorkAllocation
from autoscaler.planning.expected_arrivals import MINUTE_S, mean_per_s

if TYPE_CHECKING:
    from collections.abc import Callable

    from autoscaler.planning.pool_view import ModelView, PoolView

HORIZON_S: Final = 2.0
"""Work that is not done within it is late; a usual deadline."""


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
