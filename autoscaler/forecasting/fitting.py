"""What is learnt from counts between forecasts: small, explicit, and found again from the counts.

`fit` costs more than a forecast and is due every ten minutes or so. Nothing is lost in a restart
but the memory of types (`behaviour`), which then are taken as found.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, TypeVar

from autoscaler.forecasting.arrival_patterns import PatternAssignment, classify
from autoscaler.forecasting.day_profile import own_profiles, shared_profile
from autoscaler.forecasting.exponential_smoothing import LevelFit, fit_levels
from autoscaler.forecasting.interarrival import PooledGaps, pool_gaps

if TYPE_CHECKING:
    from autoscaler.forecasting.history import Floats, History, Integers

_Rows = TypeVar("_Rows", PatternAssignment, LevelFit)


@dataclass(frozen=True, slots=True)
class Shared:
    """What all models share."""

    profile: Floats
    """(144,): how busy each ten minutes of day are, mean 1."""
    gaps: PooledGaps


@dataclass(frozen=True, slots=True)
class Fit:
    """What is known of each model, rows as in the history, and what all share."""

    shared: Shared
    behaviour: PatternAssignment
    profiles: Floats
    """(models, 144): how busy each ten minutes of day are, mean 1."""
    levels: LevelFit

    def take(self, rows: Integers) -> Fit:
        """Of some models only."""
        return replace(
            self,
            behaviour=_take(self.behaviour, rows),
            profiles=self.profiles[rows],
            levels=_take(self.levels, rows),
        )


def share(history: History) -> Shared:
    """What all models of a history share."""
    profile = shared_profile(history)
    return Shared(profile=profile, gaps=pool_gaps(history, profile))


def fit(history: History, previous: PatternAssignment | None = None) -> Fit:
    """Learn of all models of a history; `previous` types hold until they are clearly others."""
    shared = share(history)
    profiles = own_profiles(history, shared.profile)
    behaviour = classify(history, previous)
    return Fit(
        shared=shared,
        behaviour=behaviour,
        profiles=profiles,
        levels=fit_levels(history, profiles, behaviour.period_min),
    )


def _take(of: _Rows, rows: Integers) -> _Rows:
    return type(of)(*(getattr(of, field.name)[rows] for field in fields(of)))
