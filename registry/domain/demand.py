"""Demand for models: as gateways count it, as others announce it, as the autoscaler expects it.

Gateways cannot see the autoscaler's forecasts. They use the rates that it publishes together with
their own counts, and without them alone: rates that are old, of another version or no numbers are
ignored.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Any, Final, NamedTuple

import orjson

from registry.domain.model import ModelName


class CountWindow(StrEnum):
    """Lengths of the windows in which arrivals are counted."""

    SECOND = "second"
    MINUTE = "minute"
    TEN_MINUTES = "ten"


WINDOW_S: Mapping[CountWindow, int] = {
    CountWindow.SECOND: 1,
    CountWindow.MINUTE: 60,
    CountWindow.TEN_MINUTES: 600,
}


@dataclass(frozen=True, slots=True)
class ArrivalCount:
    """Requests of one model that arrived in the window that begins at `start_s`, registry time."""

    model: ModelName
    start_s: int
    count: int


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Requests of one model in the queues of gateways."""

    requests: int = 0
    starved: int = 0
    """Requests past 60 % of their time to the deadline (Blinowski et al. 2024, 4.2.3)."""
    oldest_s: float = inf
    """Registry time at which the oldest one arrived."""


@dataclass(frozen=True, slots=True)
class ArrivalHint:
    """Arrivals of a model that somebody announces, such as the next steps of workflows."""

    model: ModelName
    probability: float
    """That at least one comes."""
    until_s: float
    """Registry time by which they come."""
    count: float = 1.0
    """Expected number if any comes; at least 1."""


VERSION: Final = 1
"""Of the meaning of the expected rates."""
MAX_AGE_S: Final = 30.0
"""Six intervals of publication; an autoscaler that has stopped is ignored from then on."""
MAX_AHEAD_S: Final = 5.0
"""Rates from farther in the future were made before the clock was set back."""
MAX_MODELS: Final = 500
"""Models with the largest rates that are published: every gateway gets all of them."""
MAX_PER_S: Final = 1e6
_NONE: Final[Mapping[str, Any]] = {}


class Band(NamedTuple):
    """Mean and quantiles of the arrivals in the next minute, per second; shown to people only."""

    mean_per_s: float
    median_per_s: float
    high_per_s: float
    """The 0.99-quantile."""


@dataclass(frozen=True, slots=True)
class ExpectedRates:
    """Arrivals per second by model key, of the whole pool."""

    per_s: Mapping[str, float] = field(default_factory=dict)
    made_at_s: float = float("-inf")
    """Registry time."""
    bands: Mapping[str, Band] = field(default_factory=dict)
    """By model key; of some or none of the models."""

    def at(self, now_s: float) -> Mapping[str, float]:
        """The rates; empty if they are too old."""
        return self.per_s if self._is_valid(now_s) else _NONE

    def bands_at(self, now_s: float) -> Mapping[str, Band]:
        """The bands; empty if they are too old."""
        return self.bands if self._is_valid(now_s) else _NONE

    def _is_valid(self, now_s: float) -> bool:
        return -MAX_AHEAD_S <= now_s - self.made_at_s <= MAX_AGE_S


def encode_expected(rates: ExpectedRates) -> str:
    """The largest rates, to three digits."""
    usable = {key: rate for key, rate in rates.per_s.items() if _is_rate(rate) and rate > 0}
    largest = sorted(usable, key=lambda key: (-usable[key], key))[:MAX_MODELS]
    per_s = {key: float(f"{usable[key]:.3g}") for key in sorted(largest)}
    bands = {
        key: [float(f"{each:.3g}") for each in band]
        for key in per_s
        if (band := rates.bands.get(key)) is not None and all(map(_is_rate, band))
    }
    document = {"version": VERSION, "at_s": rates.made_at_s, "per_s": per_s, "bands": bands}
    return orjson.dumps(document).decode()


def decode_expected(text: str) -> ExpectedRates:
    """No rates if another version wrote them; raises ValueError, TypeError or LookupError."""
    stored: dict[str, Any] = orjson.loads(text)
    if stored["version"] != VERSION:
        return ExpectedRates()
    per_s = {key: float(rate) for key, rate in stored["per_s"].items() if _is_rate(rate)}
    bands = {
        key: Band(*map(float, band))
        for key, band in stored.get("bands", {}).items()
        if len(band) == len(Band._fields) and all(map(_is_rate, band))
    }
    return ExpectedRates(per_s, float(stored["at_s"]), bands)


def _is_rate(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value <= MAX_PER_S


HALF_LIFE_S: Final = 0.5
MAX_TENANTS: Final = 4096
"""Tenants whose use is known; all others come first."""


class TenantUsage:
    """Seconds of devices by tenant; the one that used least comes next, for equal shares.

    Use counts half after `HALF_LIFE_S`. The clock is passed in, and may be set back.
    """

    def __init__(self) -> None:
        self._used: OrderedDict[str, tuple[float, float, int]] = OrderedDict()
        """By tenant: seconds, the time that they are counted at, and the number of its last turn;
        in the order of these."""
        self._turns = 0

    def add(self, tenant: str, seconds: float, now_s: float) -> None:
        """A turn of the tenant, which takes so many seconds."""
        self._turns += 1
        self._used[tenant] = self._at(tenant, now_s) + seconds, now_s, self._turns
        self._used.move_to_end(tenant)
        if len(self._used) > MAX_TENANTS:
            self._used.popitem(last=False)

    def rank(self, tenant: str, now_s: float) -> tuple[float, int]:
        """The smallest is next: by use, then by the last turn."""
        known = self._used.get(tenant)
        return (0.0, 0) if known is None else (self._at(tenant, now_s), known[2])

    def _at(self, tenant: str, now_s: float) -> float:
        used_s, counted_at_s, _ = self._used.get(tenant, (0.0, now_s, 0))
        return float(used_s * 0.5 ** (max(0.0, now_s - counted_at_s) / HALF_LIFE_S))
