"""The expected loss of taking one copy of a model off a device, in seconds of waiting.

The gateway compares it with what a request gains by a load, the autoscaler with what holding
another model saves.
"""

from __future__ import annotations

from math import exp, inf, isfinite
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    reload_s: float,
    rate_per_s: float,
    characteristic_s: float,
    copies: int,
    serve_s: float = inf,
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
