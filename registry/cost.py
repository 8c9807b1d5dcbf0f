"""What an eviction costs: arrivals per second by model, and the loss expected by them.

Rates are one process's own moving averages, and published forecasts. The loss is that of taking one
copy of a model off a device, in seconds of waiting: the gateway compares it with what a request
gains by a load, the autoscaler with what holding another model saves. Times come from the caller's
clock, which may jump.
"""

from collections.abc import KeysView, Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, isfinite
from typing import Final

WINDOW_S: Final = 60.0
"""Time constant of the averages: 15 to 600 s lead to equally good decisions."""
_FORECAST_WINDOW_S: Final = 20.0
"""A forecast counts as much as this many seconds of own observation: a quarter of the window's, so
that one that is wrong by ten times moves a rate by three."""
_MAX_SCALE: Final = 8.0
"""Beyond that many gateways a wrong forecast is likelier than a smaller share."""
_MIN_OBSERVED_S: Final = 1.0
_MIN_RATE_PER_S: Final = 1e-5
"""Models below this rate are dropped: two arrivals a day."""


@dataclass(slots=True)
class _Average:
    per_s: float
    """At `at_s`; decays from then on."""
    at_s: float


class ArrivalRates:
    """Exponentially weighted moving averages by model key. Cheap to record: one exponential."""

    def __init__(self) -> None:
        self._averages: dict[str, _Average] = {}
        self._observed_s = 0.0
        """Time that the averages cover: they are too low by what is missing of the window."""
        self._last_s = inf

    def record(self, key: str, now_s: float) -> None:
        """Count an arrival. A clock that was set back stops the averages' decay once."""
        if now_s > self._last_s:
            self._observed_s += now_s - self._last_s
        self._last_s = now_s
        average = self._averages.get(key)
        if average is None:
            average = self._averages[key] = _Average(0.0, now_s)
        passed_s, average.at_s = now_s - average.at_s, now_s
        decay = exp(-passed_s / WINDOW_S) if passed_s > 0.0 else 1.0  # `_decay`, without a call
        average.per_s = average.per_s * decay + 1.0 / WINDOW_S

    def rate_per_s(self, key: str, now_s: float) -> float:
        average = self._averages.get(key)
        if average is None:
            return 0.0
        return average.per_s * _decay(now_s - average.at_s) / self._covered()

    def rates_per_s(self, now_s: float) -> dict[str, float]:
        """All rates now; models that have nearly none are forgotten."""
        if now_s > self._last_s:
            self._observed_s += now_s - self._last_s
        self._last_s = now_s
        covered = self._covered()
        found: dict[str, float] = {}
        forgotten = []
        for key, average in self._averages.items():
            rate = average.per_s * _decay(now_s - average.at_s)
            if average.at_s > now_s:  # the clock was set back
                average.per_s, average.at_s = rate, now_s
            if rate < _MIN_RATE_PER_S:
                forgotten.append(key)
            else:
                found[key] = rate / covered
        for key in forgotten:
            del self._averages[key]
        return found

    def drop(self, key: str) -> None:
        self._averages.pop(key, None)

    def models(self) -> KeysView[str]:
        """The models that have had requests lately."""
        return self._averages.keys()

    def _covered(self) -> float:
        """Share of the window's weight that lies within the time observed."""
        return 1.0 - exp(-max(_MIN_OBSERVED_S, self._observed_s) / WINDOW_S)


def _decay(passed_s: float) -> float:
    return exp(-passed_s / WINDOW_S) if passed_s > 0 else 1.0


def blended_rates(own: Mapping[str, float], expected: Mapping[str, float]) -> dict[str, float]:
    """Own rates with published forecasts of the whole pool's arrivals.

    A gateway among several sees only its share of the arrivals; the ratio of the sums over the
    models that both know scales its rates, up only. A forecast is a prior for `_FORECAST_WINDOW_S`
    (a gamma distribution of the rate); one that is no positive number is ignored.
    """
    usable = {key: rate for key, rate in expected.items() if 0 <= rate < inf}
    if not usable:
        return dict(own)
    scale = _scale(own, usable)
    weight = _FORECAST_WINDOW_S / (WINDOW_S + _FORECAST_WINDOW_S)
    found = {key: rate * scale for key, rate in own.items()}
    for key, rate in usable.items():
        found[key] = (1.0 - weight) * found.get(key, 0.0) + weight * rate
    return found


def _scale(own: Mapping[str, float], expected: Mapping[str, float]) -> float:
    """How much larger the pool's arrivals are than those that this process saw; at least 1."""
    known = [key for key in own if key in expected]
    seen, total = sum([own[key] for key in known]), sum([expected[key] for key in known])
    return min(max(1.0, total / seen), _MAX_SCALE) if seen > 0 else 1.0


COPY_FACTOR: Final = 4.0
"""Times its price that a further copy must save, for which no request has to wait: what is evicted
again is loaded twice, and gains are estimates."""
_MAX_STEPS: Final = 64
_TOLERANCE: Final = 1e-4
"""Relative; rates are known far less exactly."""


def characteristic_time_s(
    rates_per_s: Sequence[float], sizes_bytes: Sequence[float], capacity_bytes: float
) -> float:
    """How long a model stays in memory after its last request, if the oldest use is evicted.

    Che, Tung, Wang 2002, "Hierarchical web caching systems: modeling, design and experimental
    results", with sizes: the T at which sum(size * (1 - exp(-rate * T))) is the capacity. Infinite
    where all models with requests fit. Rates and sizes that are not positive numbers count as
    none.
    """
    models = [
        (rate, size)
        for rate, size in zip(rates_per_s, sizes_bytes, strict=True)
        if 0 < rate < inf and 0 < size < inf
    ]
    if not capacity_bytes > 0:
        return 0.0
    if sum([size for _, size in models]) <= capacity_bytes:
        return inf
    # Newton's method from the left: the filled memory is concave in T, so no step overshoots.
    time_s = 0.0
    for _ in range(_MAX_STEPS):
        left, slope = capacity_bytes, 0.0
        for rate, size in models:
            absent = size * exp(-rate * time_s)
            left -= size - absent
            slope += rate * absent
        if left <= _TOLERANCE * capacity_bytes or slope <= 0.0:
            break
        time_s += left / slope
    return time_s


def eviction_loss_s(
    reload_s: float, rate_per_s: float, characteristic_s: float, copies: int, serve_s: float = inf
) -> float:
    """What evicting one of a model's `copies` costs its later requests, in seconds of waiting.

    The model is wanted again before its time is over with probability 1 - exp(-rate * T); that
    request then waits for the load, and those that arrive meanwhile for half of it on average.
    Where other copies serve, a request misses this one only while all of them are busy, each
    request for `serve_s`; without that they are. Values that are not positive numbers cost nothing,
    except an infinite characteristic time.
    """
    if not (0 < reload_s < inf and 0 < rate_per_s < inf and characteristic_s > 0):
        return 0.0
    wanted = 1.0 - exp(-rate_per_s * characteristic_s)
    loss_s = reload_s * wanted * (1.0 + rate_per_s * reload_s / 2.0)
    if not isfinite(loss_s):
        return 0.0
    if copies <= 1:
        return loss_s
    return loss_s * busy_probability(copies - 1, rate_per_s * serve_s if serve_s > 0 else inf)


def busy_probability(servers: int, load: float) -> float:
    """Probability that a request finds all servers busy, where requests need `load` of them.

    Erlang's C formula (Erlang 1917, "Solution of some problems in the theory of probabilities of
    significance in automatic telephone exchanges"): arrivals and services are independent. 1 where
    the load is not below the number of servers.
    """
    if not load < servers:
        return 1.0
    blocked = 1.0  # Erlang's B formula, server by server
    for number in range(1, servers + 1):
        blocked = load * blocked / (number + load * blocked)
    return blocked / (1.0 - load / servers * (1.0 - blocked))
