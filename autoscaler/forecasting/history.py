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


class BadCounts(ForecastingError):
    """Counts that are negative, not finite or of the wrong shape."""


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

    def __post_init__(self) -> None:
        if not np.isfinite(self.origin_s) or self.origin_s < 0:
            raise BadCounts(f"origin_s must be finite and not negative, was {self.origin_s}")
        models = self.active_minutes.shape[0]
        for name in ("minutes", "ten_minutes", "active_minutes", "since_minute", "recent"):
            values = getattr(self, name)
            _check_counts(name, values, models, may_be_never=name == "active_minutes")

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
        if not self.windows_s or not all(1 <= each <= _MAX_WINDOW_S for each in self.windows_s):
            raise BadHorizon(
                f"windows_s must be one or more of 1 to {_MAX_WINDOW_S:.0f} s, was {self.windows_s}"
            )
        if list(self.windows_s) != sorted(set(self.windows_s)):
            raise BadHorizon(f"windows_s must be increasing, was {self.windows_s}")
        inside = all(0.001 <= each <= 0.9999 for each in self.probabilities)
        if not self.probabilities or not inside:
            raise BadHorizon(
                f"probabilities must be one or more of 0.001 to 0.9999, was {self.probabilities}"
            )
        if list(self.probabilities) != sorted(set(self.probabilities)):
            raise BadHorizon(f"probabilities must be increasing, was {self.probabilities}")
        if not 0 < self.max_per_s < np.inf:
            raise BadHorizon(f"max_per_s must be positive and finite, was {self.max_per_s}")

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


def _check_counts(
    name: str, values: NDArray[np.generic], models: int, *, may_be_never: bool
) -> None:
    if values.shape[0] != models:
        raise BadCounts(f"{name} must have {models} rows, one per model, had {values.shape[0]}")
    if values.dtype.kind == "u" or not values.size:
        return
    if values.dtype.kind not in "if":
        raise BadCounts(f"{name} must hold numbers, was {values.dtype}")
    numbers: Floats = values.astype(np.float64, copy=False)
    if not np.isfinite(numbers).all():
        raise BadCounts(f"{name} must be finite, row {_first(~np.isfinite(numbers))} is not")
    minimum = NEVER if may_be_never else 0
    if numbers.min() < minimum:
        raise BadCounts(f"{name} must be at least {minimum}, was {numbers.min():g}")


def _first(wrong: Booleans) -> int:
    return int(np.argwhere(wrong)[0][0])
