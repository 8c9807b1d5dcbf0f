"""Fits all parameters of the forecasts to arrival counts.

`fit` costs more than a forecast and is due every ten minutes or so. Everything can be refitted from
the counts after a restart.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, TypeVar

from autoscaler.forecasting.arrival_patterns import PatternAssignment, classify
from autoscaler.forecasting.day_profile import own_profiles, shared_profile
from autoscaler.forecasting.exponential_smoothing import SmoothingFit, fit_smoothing

if TYPE_CHECKING:
    from autoscaler.forecasting.history import Floats, History, Integers

_Rows = TypeVar("_Rows", PatternAssignment, SmoothingFit)


@dataclass(frozen=True, slots=True)
class Fit:
    """Parameters per model (rows as in the history), and parameters that all models share."""

    shared_profile: Floats
    """(144,): relative load of each ten minutes of the day, mean 1."""
    patterns: PatternAssignment
    profiles: Floats
    """(models, 144): as `shared_profile`, of each model."""
    smoothing: SmoothingFit

    def take(self, rows: Integers) -> Fit:
        """The parameters of the models at `rows`."""
        return replace(
            self,
            patterns=_take(self.patterns, rows),
            profiles=self.profiles[rows],
            smoothing=_take(self.smoothing, rows),
        )


def fit(history: History) -> Fit:
    shared = shared_profile(history)
    profiles = own_profiles(history, shared)
    patterns = classify(history)
    smoothing = fit_smoothing(history, profiles, patterns.period_min)
    return Fit(shared, patterns, profiles, smoothing)


def _take(parameters: _Rows, rows: Integers) -> _Rows:
    columns = (getattr(parameters, field.name) for field in fields(parameters))
    return type(parameters)(*(column[rows] for column in columns))
