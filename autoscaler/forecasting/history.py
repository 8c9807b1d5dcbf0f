"""Input of a forecast (`History`), its windows (`ForecastHorizon`) and the result (`Forecast`).

Rows are models, in the order of the `Counts` they came from. Times are in seconds or whole minutes
since a common epoch, which must be a midnight in the time zone that daily patterns follow.
"""

from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.floating]
Integers: TypeAlias = NDArray[np.integer]
Booleans: TypeAlias = NDArray[np.bool_]

NEVER: Final = -1
"""Padding of `History.active_minutes`."""
MINUTES_OF_TEN: Final = 10
MINUTES_OF_DAY: Final = 1440
_MAX_WINDOW_S: Final = 86_400.0


class ForecastingError(ValueError):
    """Root: the input is invalid; the text has the value and what is allowed."""


class BadHorizon(ForecastingError):
    """Windows or probabilities outside the allowed range."""


@dataclass(frozen=True, slots=True)
class History:
    """Arrivals up to `origin_s`, per model.

    Forecast windows begin at `origin_s`. The current minute is not in `minutes`, but its arrivals
    are in `recent`.
    """

    origin_s: float
    minutes: NDArray[np.generic]
    """(models, bins): whole minutes, oldest first; the last one ended at or before `origin_s`."""
    ten_minutes: NDArray[np.generic]
    """(models, bins): counts per whole ten minutes, oldest first, over a longer past."""
    active_minutes: Integers
    """(models, k): the last minutes with arrivals, oldest first, padded with `NEVER` in front."""
    since_minute: Integers
    """(models,): the first minute with known counts."""
    recent: Floats
    """(models,): arrivals in the last 60 seconds."""

    @property
    def models(self) -> int:
        return int(self.active_minutes.shape[0])

    @property
    def origin_minute(self) -> int:
        """The current minute: the first that is not in `minutes`."""
        return int(self.origin_s // 60)

    @property
    def known_minutes(self) -> Floats:
        """(models,): number of whole minutes with known counts."""
        known = self.origin_minute - self.since_minute
        return np.clip(known, 1, self.minutes.shape[1]).astype(np.float64)

    @property
    def age_minutes(self) -> Floats:
        """(models,): minutes since the last arrival; infinity without one."""
        if not self.active_minutes.shape[1]:
            return np.full(self.models, np.inf)
        last = self.active_minutes[:, -1]
        age = np.maximum(self.origin_s / 60 - (last + 0.5), 0.0)
        return np.where(last == NEVER, np.inf, age)

    @property
    def gaps_min(self) -> Floats:
        """(models, k - 1): minutes between minutes with arrivals; padded with NaN in front."""
        if self.active_minutes.shape[1] < 2:
            return np.full((self.models, 1), np.nan)
        is_gap = self.active_minutes[:, :-1] != NEVER
        return np.where(is_gap, np.diff(self.active_minutes, axis=1), np.nan).astype(np.float64)

    def take(self, rows: Integers | Booleans) -> "History":
        return replace(
            self,
            minutes=self.minutes[rows],
            ten_minutes=self.ten_minutes[rows],
            active_minutes=self.active_minutes[rows],
            since_minute=self.since_minute[rows],
            recent=self.recent[rows],
        )


@dataclass(frozen=True, slots=True)
class ForecastHorizon:
    """Windows to forecast, all beginning at the origin, and quantiles of the arrivals in them."""

    windows_s: tuple[float, ...] = (10.0, 60.0, 600.0, 3600.0)
    probabilities: tuple[float, ...] = (0.5, 0.9, 0.95, 0.99)
    max_per_s: float = 100_000.0
    """Upper bound of a model's arrivals; larger means are clipped."""

    def __post_init__(self) -> None:
        for name, low, high in (("windows_s", 1, _MAX_WINDOW_S), ("probabilities", 0.001, 0.9999)):
            values = getattr(self, name)
            is_sound = values and all(low <= each <= high for each in values)
            if not is_sound or list(values) != sorted(set(values)):
                raise BadHorizon(f"{name} must be increasing, of {low} to {high:g}, was {values}")

    @property
    def windows_min(self) -> Floats:
        """(windows,): lengths in minutes."""
        return np.asarray(self.windows_s) / 60

    def clip_means(self, mean: Floats) -> Floats:
        """Means of arrivals, (models, windows), within a positive lower bound and `max_per_s`."""
        return np.clip(mean, 1e-9, self.max_per_s * np.asarray(self.windows_s))


@dataclass(frozen=True, slots=True)
class Forecast:
    """All values are finite and not negative; mean and P(arrival) never fall with the window."""

    mean: Floats
    """(models, windows): expected arrivals."""
    quantiles: Floats
    """(models, windows, probabilities): whole arrivals."""
    p_arrival: Floats
    """(models, windows): probability of at least one arrival, in [0, 1]."""

    def take(self, rows: Integers) -> "Forecast":
        return Forecast(self.mean[rows], self.quantiles[rows], self.p_arrival[rows])
