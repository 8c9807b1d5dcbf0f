"""Fits all parameters of the forecasts to arrival counts.

`fit` costs more than a forecast and is due every ten minutes or so. Everything can be refitted from
the counts after a restart, except the hysteresis of patterns.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, TypeVar

from autoscaler.forecasting.arrival_patterns import PatternAssignment, classify
from autoscaler.forecasting.day_profile import own_profiles, shared_profile
from autoscaler.forecasting.exponential_smoothing import SmoothingFit, fit_smoothing
from autoscaler.forecasting.interarrival import fit_gap_survival

if TYPE_CHECKING:
    from autoscaler.forecasting.history import Floats, History, Integers

_Rows = TypeVar("_Rows", PatternAssignment, SmoothingFit)


@dataclass(frozen=True, slots=True)
class SharedFit:
    """Parameters that all models share."""

    profile: Floats
    """(144,): relative load of each ten minutes of the day, mean 1."""
    gap_survival: Floats
    """(classes, ages): see `interarrival`."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Parameters per model, rows as in the history, and those that all share."""

    shared: SharedFit
    patterns: PatternAssignment
    profiles: Floats
    """(models, 144): relative load of each ten minutes of the day, mean 1."""
    smoothing: SmoothingFit

    def take(self, rows: Integers) -> Fit:
        """The same for some of the models."""
        return replace(
            self,
            patterns=_take(self.patterns, rows),
            profiles=self.profiles[rows],
            smoothing=_take(self.smoothing, rows),
        )


def fit_shared(history: History) -> SharedFit:
    profile = shared_profile(history)
    return SharedFit(profile=profile, gap_survival=fit_gap_survival(history, profile))


def fit(history: History, previous: PatternAssignment | None = None) -> Fit:
    """`previous`: patterns of the same models, for their hysteresis."""
    shared = fit_shared(history)
    profiles = own_profiles(history, shared.profile)
    patterns = classify(history, previous)
    return Fit(
        shared=shared,
        patterns=patterns,
        profiles=profiles,
        smoothing=fit_smoothing(history, profiles, patterns.period_min),
    )


def _take(of: _Rows, rows: Integers) -> _Rows:
    return type(of)(*(getattr(of, field.name)[rows] for field in fields(of)))
