"""What a copy is for, in one currency: seconds late per second, of all models together.

A copy does work that nobody else does in time (`work`: what waits, and what is expected), and saves
cold starts (`worth`). A second of work that is late counts as much as a second of a cold start, so
a queue of one model can be weighed against the only copy of another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from autoscaler.loading.work_allocation import WorkAllocation

if TYPE_CHECKING:
    from autoscaler.loading.holding_value import HoldingValue
    from autoscaler.planning.pool_view import Demand, ModelView, PoolView

_MINUTE_S: Final = 60.0
HORIZON_S: Final = 2.0
"""Work that is not done within it is late: a usual deadline."""


class MarginalValue:
    """What copies gain and harm, as the plan goes on."""

    def __init__(
        self, view: PoolView, worth: HoldingValue | None, horizon_s: float = HORIZON_S
    ) -> None:
        """Without `worth` cold starts do not count."""
        self._worth = worth
        self._horizon_s = horizon_s
        self._row = {model.key: row for row, model in enumerate(view.models)}
        self._copies = {
            model.key: sum(each.is_warm for each in model.holders.values()) for model in view.models
        }
        self._work = WorkAllocation(view, _demand_s(view, horizon_s), horizon_s)

    def spare(self, pod: str) -> float:
        """Share of the horizon that a pod has nothing to do in."""
        return self._work.spare_s(pod) / self._horizon_s

    def unserved(self, model: ModelView) -> float:
        """What a further copy could do at most."""
        return self._work.unserved_s(model) / self._horizon_s

    def relief(self, model: ModelView, pod: str) -> float:
        """What one more copy there would do, less the time of its load over a minute."""
        return min(self.unserved(model), self.spare(pod)) - _load_s(model) / _MINUTE_S

    def harm(self, model: ModelView, pod: str) -> float:
        """What is late without a copy: work that the others do not do, and cold starts.

        The copies of a model share what it is worth.
        """
        unserved_s = self._work.unserved_without_s(model, pod)
        return unserved_s / self._horizon_s + self.saves(model) / max(1, self._copies[model.key])

    def saves(self, model: ModelView) -> float:
        """Seconds of cold start by the model's place on a device."""
        return 0.0 if self._worth is None else self._worth.saves(self._row[model.key])

    def left(self, model: ModelView, pod: str) -> None:
        """A copy leaves."""
        self._copies[model.key] -= 1
        self._work.remove(model, pod)

    def came(self, model: ModelView, pod: str) -> None:
        """A copy is on its way."""
        self._work.add(model, pod)


def _demand_s(view: PoolView, horizon_s: float) -> dict[str, float]:
    """Seconds of work by key: what waits, and what is expected within the horizon."""
    expected = _expected(view.demand, horizon_s) if view.demand is not None else None
    return {
        model.key: (model.waiting.requests + (0.0 if expected is None else expected[row]))
        * model.infer_s
        for row, model in enumerate(view.models)
    }


def _expected(demand: Demand, horizon_s: float) -> list[float]:
    """(models,): arrivals within the horizon, by the window of a minute or the next longer one."""
    windows = np.asarray(demand.question.windows_s)
    column = int(np.argmax(windows >= min(_MINUTE_S, windows[-1])))
    mean = np.nan_to_num(demand.forecast.mean[:, column], nan=0.0, posinf=0.0)
    found: list[float] = (mean * (horizon_s / windows[column])).tolist()
    return found


def _load_s(model: ModelView) -> float:
    """From the nearest tier that some pod has it on."""
    return min(
        (model.load_from_s(each.tier) for each in model.holders.values() if not each.is_warm),
        default=max(model.load_s.values(), default=0.0),
    )
