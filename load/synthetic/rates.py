"""How many arrivals per second are expected when: steps of constant rate, in order of time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

_STEPS_PER_PERIOD: Final = 288
"""Of a diurnal rate: 5 minutes at a period of a day."""


@dataclass(frozen=True, slots=True)
class Step:
    """A constant rate from `start_s` until `end_s`."""

    start_s: float
    end_s: float
    rate_rps: float


def steady(*, rate_rps: float, duration_s: float) -> Iterator[Step]:
    """The same rate throughout."""
    yield Step(0.0, duration_s, rate_rps)


def diurnal(
    *, rate_rps: float, amplitude: float, period_s: float, duration_s: float
) -> Iterator[Step]:
    """A sine around `rate_rps`, lowest at the start: rate x (1 - amplitude x cos(2 pi t/period)).

    In steps that have the exact mean of the sine over them.
    """
    turn = 2.0 * math.pi / period_s
    step_s = period_s / _STEPS_PER_PERIOD
    steps = math.ceil(duration_s / step_s)
    for index in range(steps):
        start_s, end_s = index * step_s, min((index + 1) * step_s, duration_s)
        end_s = duration_s if index == steps - 1 else end_s
        if end_s > start_s:
            swing = (math.sin(turn * end_s) - math.sin(turn * start_s)) / (turn * (end_s - start_s))
            yield Step(start_s, end_s, max(rate_rps * (1.0 - amplitude * swing), 0.0))


def spike(
    *, rate_rps: float, peak_rps: float, at_s: float, length_s: float, duration_s: float
) -> Iterator[Step]:
    """`rate_rps`, but `peak_rps` for `length_s` from `at_s` on."""
    bounds = [0.0, min(at_s, duration_s), min(at_s + length_s, duration_s), duration_s]
    for start_s, end_s, rate in zip(
        bounds, bounds[1:], (rate_rps, peak_rps, rate_rps), strict=False
    ):
        if end_s > start_s:
            yield Step(start_s, end_s, rate)


def on_off(
    *, rate_rps: float, on_s: float, off_s: float, duration_s: float, rng: np.random.Generator
) -> Iterator[Step]:
    """`rate_rps` while on, nothing while off; both last exponentially long, with these means."""
    start_s, on = 0.0, True
    while start_s < duration_s:
        end_s = min(start_s + rng.exponential(on_s if on else off_s), duration_s)
        if end_s > start_s:
            yield Step(start_s, end_s, rate_rps if on else 0.0)
        start_s, on = end_s, not on
