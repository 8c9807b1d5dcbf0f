"""Arrivals of a pool: history for forecasts, and counts since the last plan for policies. Pure.

The live autoscaler adds counts that it reads from the registry; the simulator adds every request.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoscaler.forecasting.counts import Counts
from autoscaler.forecasting.history import History, Integers
from registry.domain.model import ModelName


@dataclass(frozen=True, slots=True)
class ForecastInput:
    """The counts that one forecast starts from."""

    models: tuple[str, ...]
    rows: Integers | None
    """The models of `history`, as indices of `models`; None: all of them."""
    history: History
    seconds: Integers
    """(models, seconds): counts of the last minutes of all models, the current second last."""


class ObservedDemand:
    """The arrivals of one pool. Used by one task only."""

    def __init__(
        self, counts: Counts | None, *, time_scale: float = 1.0, epoch_s: float = 0.0
    ) -> None:
        """Without `counts` there is no history.

        The counts have a clock of their own: `epoch_s` + `time_scale` * time.
        """
        self._counts = counts
        self.time_scale = time_scale
        self._epoch_s = epoch_s
        self._models: frozenset[str] = frozenset()
        self.arrived: defaultdict[ModelName, int] = defaultdict(int)
        """Requests since the last plan."""
        self.changed: set[str] = set()
        """Models with arrivals since their last `forecast_input`."""
        self.last_arrival_s: dict[ModelName, float] = {}

    def counts_s(self, time_s: float) -> float:
        """Convert a time to the clock of the counts."""
        return self._epoch_s + self.time_scale * time_s

    def start_over(self, counts: Counts) -> None:
        """Replace the counts by empty ones."""
        self._counts = counts
        self._models = frozenset()

    def set_models(self, models: Sequence[ModelName], now_s: float) -> None:
        """Advance the clock, add new models and remove all models that are not listed."""
        if self._counts is not None:
            self._counts.advance(self.counts_s(now_s))
        names = frozenset(map(str, models))
        self.last_arrival_s = {
            name: min(at_s, now_s)
            for name, at_s in self.last_arrival_s.items()
            if str(name) in names
        }
        if self._counts is not None and names != self._models:
            for name in set(self._counts.names) - names:
                self._counts.remove_model(name)
            for name in sorted(names - self._models):
                self._counts.add_model(name)
        self._models = names

    def add(
        self,
        arrivals: Sequence[tuple[ModelName, float, int]],
        *,
        length_s: float = 0.0,
        is_new: bool = True,
    ) -> None:
        """Add (model, start, count) of windows of this length, in any order.

        `is_new`: the requests arrived since the last plan.
        """
        for model, start_s, count in arrivals:
            self.last_arrival_s[model] = max(
                self.last_arrival_s.get(model, 0.0), start_s + length_s
            )
            if is_new:
                self.arrived[model] += count
                self.changed.add(str(model))
        known = [each for each in arrivals if str(each[0]) in self._models]
        if self._counts is not None and known:
            self._counts.add(
                [str(model) for model, _, _ in known],
                [self.counts_s(start_s) for _, start_s, _ in known],
                [count for _, _, count in known],
            )

    def recent_rates(self, window_s: int) -> dict[str, float]:
        """Arrivals per second of the last whole seconds, by model; empty without counts."""
        if self._counts is None:
            return {}
        seconds = self._counts.recent_seconds()[:, -1 - window_s : -1]
        rates = seconds.mean(axis=1) if seconds.size else []
        return {name: float(rate) for name, rate in zip(self._counts.names, rates, strict=False)}

    def forecast_input(
        self, now_s: float, models: tuple[str, ...], rows: Integers | None = None
    ) -> ForecastInput | None:
        """A copy of the counts of these models, in their order; None if a model is not counted.

        With `rows` the history covers only those models. Its models are removed from `changed`.
        """
        if self._counts is None or not models:
            return None
        try:
            indices = self._counts.rows_of(models)
        except KeyError:
            return None  # a model was added after the last `set_models`
        chosen = indices if rows is None else indices[rows]
        history = self._counts.history(self.counts_s(now_s), chosen)
        self.changed -= set(models if rows is None else (models[row] for row in rows.tolist()))
        seconds = self._counts.recent_seconds(indices)
        if self.time_scale > 1:  # the registry's counts per second are too coarse for a fast clock
            seconds = np.zeros_like(seconds)
        return ForecastInput(models, rows, history, seconds)
